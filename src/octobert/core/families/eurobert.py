"""EuroBERT: RMS norms before attention and feed-forward, rotary positions, gated feed-forwards; heads may share K and V."""

from octobert.core.family import GATED_PARTS, EncoderFamily

FAMILY = EncoderFamily(
    model_types=("eurobert",),
    prefix="model",
    layer="layers.{}",
    parts={
        **GATED_PARTS,
        "attention_norm": "input_layernorm",
        "ffn_norm": "post_attention_layernorm",
    },
    embeddings_norm="",
    final_norm="norm",
    native=dict,
    without_heads=("question-answering",),
)
