"""RoBERTa, XLM-RoBERTa and CamemBERT: layers as in BERT; positions start after the padding id. No segment ids."""

from octobert.core.family import EncoderFamily

FAMILY = EncoderFamily(
    model_types=("roberta", "xlm-roberta", "camembert"),
    prefix="roberta",
    position_offset=None,
)
