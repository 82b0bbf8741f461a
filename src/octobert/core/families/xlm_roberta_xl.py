"""XLM-RoBERTa XL and XXL: RoBERTa with norms before attention and feed-forward, and none after the embeddings."""

from octobert.core.family import BERT_PARTS, EncoderFamily

FAMILY = EncoderFamily(
    model_types=("xlm-roberta-xl",),
    prefix="roberta",
    parts={
        **BERT_PARTS,
        "attention_norm": "attention.self_attn_layer_norm",
        "ffn_norm": "LayerNorm",
    },
    embeddings_norm="",
    position_offset=None,
    final_norm="encoder.LayerNorm",
)
