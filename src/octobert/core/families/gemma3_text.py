"""Gemma 3 as an encoder (EmbeddingGemma): tokens attend to all others, or to a window; branches end in norms."""

from octobert.core.family import GATED_PARTS, EncoderFamily

FAMILY = EncoderFamily(
    model_types=("gemma3_text",),
    prefix="model",
    layer="layers.{}",
    parts={
        **GATED_PARTS,
        "attention_norm": "input_layernorm",
        "branch_norm.attention": "post_attention_layernorm",
        "ffn_norm": "pre_feedforward_layernorm",
        "branch_norm": "post_feedforward_layernorm",
    },
    embeddings_norm="",
    final_norm="norm",
    windowed=True,
    without_heads=("masked-lm", "question-answering", "token-classification"),
    requires={"use_bidirectional_attention": True},
)
