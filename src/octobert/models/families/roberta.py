"""RoBERTa, XLM-RoBERTa and CamemBERT: BERT's layers; positions are counted from the padding id, and there are no segments."""

from octobert.core.family import BERT_PARTS, EncoderFamily

FAMILY = EncoderFamily(
    model_types=("roberta", "xlm-roberta", "camembert"),
    prefix="roberta",
    layer="encoder.layer.{}",
    parts=BERT_PARTS,
    embeddings_norm="embeddings.LayerNorm",
    position_offset=2,
)
