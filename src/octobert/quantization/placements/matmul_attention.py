"""The linear layers, and both matrix products of attention."""

from octobert.core.plan import (
    ATTENTION,
    DECODER,
    HEAD_FLOAT,
    LINEAR,
    OUTPUTS_FLOAT,
    RESIDUAL_FLOAT,
    Placement,
)

PLACEMENT = Placement(
    description="inputs and weights of the linear layers, and the four inputs of the attention products",
    kinds=(*LINEAR, *DECODER, *ATTENTION),
    because={**RESIDUAL_FLOAT, **HEAD_FLOAT, **OUTPUTS_FLOAT},
)
