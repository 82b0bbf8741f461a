"""RoBERTa with norms before attention and feed-forward."""

from octobert.core.family import BERT_PARTS, EncoderFamily

FAMILY = EncoderFamily(
    model_types=("roberta-prelayernorm",),
    prefix="roberta_prelayernorm",
    parts={
        **BERT_PARTS,
        "attention_norm": "attention.LayerNorm",
        "ffn_norm": "intermediate.LayerNorm",
    },
    position_offset=None,
    final_norm="LayerNorm",
)
