"""DeBERTa-v2 and v3: BERT's layers, whose scores also compare contents with relative positions, both ways."""

from octobert.core.family import BERT_PARTS, TINY, EncoderFamily

FAMILY = EncoderFamily(
    model_types=("deberta-v2",),
    prefix="deberta",
    layer="encoder.layer.{}",
    parts={
        **BERT_PARTS,
        "query": "attention.self.query_proj",
        "key": "attention.self.key_proj",
        "value": "attention.self.value_proj",
    },
    embeddings_norm="embeddings.LayerNorm",
    position_offset=0,
    tiny_config=lambda: {
        **TINY,
        "relative_attention": True,
        "position_buckets": 8,
        "norm_rel_ebd": "layer_norm",
        "share_att_key": True,
        "pos_att_type": ["p2c", "c2p"],
        "position_biased_input": False,
        "type_vocab_size": 0,
    },
)
