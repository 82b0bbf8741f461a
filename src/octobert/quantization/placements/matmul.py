"""The six linear layers of every encoder layer, which do nearly all of the arithmetic."""

from octobert.core.placement import ATTENTION_FLOAT, HEAD_FLOAT, OUTPUTS_FLOAT, RESIDUAL_FLOAT, Placement
from octobert.core.plan import LINEAR

PLACEMENT = Placement(
    description="inputs and weights of the linear layers; everything else float",
    kinds=LINEAR,
    because={**ATTENTION_FLOAT, **RESIDUAL_FLOAT, **HEAD_FLOAT, **OUTPUTS_FLOAT},
)
