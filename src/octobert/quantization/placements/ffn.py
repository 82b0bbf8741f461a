"""The two feed-forward layers: two thirds of the arithmetic. Attention stays float."""

from octobert.core.plan import (
    ATTENTION_FLOAT,
    HEAD_FLOAT,
    OUTPUTS_FLOAT,
    RESIDUAL_FLOAT,
    Placement,
)

PLACEMENT = Placement(
    description="inputs and weights of the two feed-forward layers; everything else float",
    kinds=("linear.input@ffn_*", "linear.weight@ffn_*"),
    because={**ATTENTION_FLOAT, **RESIDUAL_FLOAT, **HEAD_FLOAT, **OUTPUTS_FLOAT},
)
