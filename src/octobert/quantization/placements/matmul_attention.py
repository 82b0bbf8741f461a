"""The linear layers, and both matrix products of attention."""

from octobert.core.placement import HEAD_FLOAT, OUTPUTS_FLOAT, RESIDUAL_FLOAT, Placement
from octobert.core.plan import ATTENTION, DECODER, LINEAR

PLACEMENT = Placement(
    description="inputs and weights of the linear layers, and the four inputs of the attention products",
    kinds=(*LINEAR, *DECODER, *ATTENTION),
    because={**RESIDUAL_FLOAT, **HEAD_FLOAT, **OUTPUTS_FLOAT},
)
