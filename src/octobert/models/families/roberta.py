"""RoBERTa, XLM-RoBERTa and CamemBERT: layers as in BERT; positions start after the padding id. No segment ids."""

from octobert.core.family import BERT_PARTS, EncoderFamily

FAMILY = EncoderFamily(
    model_types=("roberta", "xlm-roberta", "camembert"),
    prefix="roberta",
    layer="encoder.layer.{}",
    parts=BERT_PARTS,
    embeddings_norm="embeddings.LayerNorm",
    position_offset=2,
)
