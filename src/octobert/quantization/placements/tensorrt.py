"""What the TensorRT and MIGraphX reference workflows quantize: every matrix product, and the residual adds before LayerNorms.

Bias adds, mask adds and the adds inside a decomposed norm stay float; heads are matrix products, so they are taken. A norm is
recognised whatever form it had (LayerNormalization, SkipLayerNormalization, ReduceMean of any opset): capture made it one.
"""

from octobert.core.placement import OUTPUTS_FLOAT, Placement
from octobert.core.plan import ATTENTION, HEAD, LINEAR, RESIDUAL

PLACEMENT = Placement(
    description="all matrix products, heads included, and both inputs of the residual adds that feed a LayerNorm",
    kinds=(*LINEAR, *ATTENTION, *RESIDUAL, *HEAD),
    because=OUTPUTS_FLOAT,
)
