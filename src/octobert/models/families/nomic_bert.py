"""NomicBERT: norms after attention and feed-forward, rotary positions, gated feed-forwards, linear layers without biases."""

from octobert.core.family import GATED_PARTS, EncoderFamily

FAMILY = EncoderFamily(
    model_types=("nomic_bert",),
    prefix="nomic_bert",
    layer="layers.{}",
    parts={
        **GATED_PARTS,
        "attention_norm": "post_attention_layernorm",
        "ffn_norm": "post_mlp_layernorm",
    },
    without_heads=("question-answering",),
)
