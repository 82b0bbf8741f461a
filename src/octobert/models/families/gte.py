"""GTE, multilingual and v1.5, and models made from it: norms behind, rotary positions, gated feed-forwards."""

from octobert.core.family import GATED_PARTS, EncoderFamily

FAMILY = EncoderFamily(
    model_types=("gte",),
    prefix="gte",
    layer="layers.{}",
    parts={
        **GATED_PARTS,
        "attention_norm": "post_attention_layernorm",
        "ffn_norm": "post_mlp_layernorm",
    },
    without_heads=("question-answering",),
)
