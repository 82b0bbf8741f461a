"""GTE (multilingual, v1.5) and Arctic-embed M v2: norms behind, rotary positions, gated feed-forwards."""

from octobert.core.family import GATED_PARTS, EncoderFamily
from octobert.core.model_config import Config


def native(config: Config) -> Config:
    """Name the model type of transformers, and write NTK scaling of the rotary positions as a scaled base and a linear factor.

    With factor f and head size d, NTK scaling has the base f·b and divides all frequencies by f^(2/d) (Su, 2023,
    kexue.fm/archives/9706).
    """
    changed = {**config, "model_type": "gte"}
    scaling = config.get("rope_scaling") or {}
    if scaling.get("type") == "ntk" and not scaling.get("mixed_b"):
        factor = float(scaling["factor"])
        size = config["hidden_size"] // config["num_attention_heads"]
        del changed["rope_scaling"]
        changed["rope_parameters"] = {
            "rope_type": "linear",
            "rope_theta": float(changed.pop("rope_theta", 10_000.0)) * factor,
            "factor": factor ** (2 / size),
        }
    return changed


FAMILY = EncoderFamily(
    model_types=("gte", "new"),
    prefix="gte",
    layer="layers.{}",
    parts=GATED_PARTS,
    native=native,
    without_heads=("question-answering",),
    requires={
        "layer_norm_type": "layer_norm",
        "logn_attention_scale": False,
        "position_embedding_type": "rope",
    },
)
