"""DeBERTa-v2 and v3: layers as in BERT; attention scores also depend on relative positions, from query and from key."""

from octobert.core.family import BERT_PARTS, EncoderFamily

FAMILY = EncoderFamily(
    model_types=("deberta-v2",),
    prefix="deberta",
    parts={
        **BERT_PARTS,
        "query": "attention.self.query_proj",
        "key": "attention.self.key_proj",
        "value": "attention.self.value_proj",
    },
)
