"""RoBERTa, XLM-RoBERTa and CamemBERT: BERT's layers; positions are counted from the padding id, and there are no segments."""

from octobert.core.family import BERT_PARTS, TINY, EncoderFamily

FAMILY = EncoderFamily(
    model_types=("roberta", "xlm-roberta", "camembert"),
    prefix="roberta",
    layer="encoder.layer.{}",
    parts=BERT_PARTS,
    embeddings_norm="embeddings.LayerNorm",
    position_offset=2,
    tiny_config=lambda: {
        **TINY,
        "max_position_embeddings": 66,
        "type_vocab_size": 1,
        "pad_token_id": 1,
        "bos_token_id": 0,
        "eos_token_id": 2,
    },
)
