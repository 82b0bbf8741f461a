"""DeBERTa v1: layers as in BERT; one linear layer for Q, K and V; attention scores also depend on relative positions."""

from octobert.core.family import BERT_PARTS, EncoderFamily

_UNLIKE_BERT = ("query", "key", "value")

FAMILY = EncoderFamily(
    model_types=("deberta",),
    prefix="deberta",
    parts={
        "qkv": "attention.self.in_proj",
        **{role: path for role, path in BERT_PARTS.items() if role not in _UNLIKE_BERT},
    },
)
