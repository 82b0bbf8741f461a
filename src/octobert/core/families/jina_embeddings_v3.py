"""Jina embeddings v3: XLM-RoBERTa with rotary positions and other module names."""

from octobert.core.family import GATED_PARTS, EncoderFamily

FAMILY = EncoderFamily(
    model_types=("jina_embeddings_v3",),
    prefix="roberta",
    layer="layers.{}",
    parts={
        **GATED_PARTS,
        "ffn_up": "mlp.fc1",
        "activation": "mlp.activation_fn",
        "ffn_down": "mlp.fc2",
    },
)
