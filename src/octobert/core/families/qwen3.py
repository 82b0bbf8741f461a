"""Qwen3 as an encoder (Qwen3-Embedding): each token attends to those before it; Q and K have norms of their own."""

from octobert.core.family import GATED_PARTS, EncoderFamily

FAMILY = EncoderFamily(
    model_types=("qwen3",),
    prefix="model",
    layer="layers.{}",
    parts={
        **GATED_PARTS,
        "attention_norm": "input_layernorm",
        "ffn_norm": "post_attention_layernorm",
    },
    embeddings_norm="",
    final_norm="norm",
    windowed=True,
    without_heads=("masked-lm",),
)
