"""NomicBERT: norms after attention and feed-forward, rotary positions, gated feed-forwards, linear layers without biases."""

from octobert.core.family import GATED_PARTS, EncoderFamily
from octobert.core.model_config import Config

# Keys of checkpoints with code of their own → those of transformers.
_KEYS = {
    "n_embd": "hidden_size",
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "n_inner": "intermediate_size",
    "layer_norm_epsilon": "layer_norm_eps",
    "max_trained_positions": "max_position_embeddings",
    "resid_pdrop": "hidden_dropout_prob",
    "attn_pdrop": "attention_probs_dropout_prob",
    "rotary_emb_base": "rope_theta",
}


def native(config: Config) -> Config:
    """Rename the keys. Longer texts than the model was trained with would need other rotary positions."""
    old = {_KEYS[key]: value for key, value in config.items() if key in _KEYS}
    new = {key: value for key, value in config.items() if key not in _KEYS}
    return {"max_position_embeddings": 2048, **old, **new}


FAMILY = EncoderFamily(
    model_types=("nomic_bert",),
    prefix="nomic_bert",
    layer="layers.{}",
    parts=GATED_PARTS,
    native=native,
    without_heads=("question-answering",),
    requires={
        "activation_function": "swiglu",
        "causal": False,
        "mlp_fc1_bias": False,
        "parallel_block": False,
        "prenorm": False,
        "qkv_proj_bias": False,
        "rotary_emb_fraction": 1.0,
        "rotary_emb_interleaved": False,
        "rotary_emb_scale_base": None,
        "use_rms_norm": False,
    },
)
