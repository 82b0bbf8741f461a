"""The sites of the TensorRT and MIGraphX reference workflows: all matrix products, and the residual adds before LayerNorms.

Heads are matrix products, so they are quantized. Bias adds and mask adds stay float.
"""

from octobert.core.plan import ATTENTION, HEAD, LINEAR, OUTPUTS_FLOAT, RESIDUAL, Placement

PLACEMENT = Placement(
    description="all matrix products, heads included, and both inputs of the residual adds that feed a LayerNorm",
    kinds=(*LINEAR, *ATTENTION, *RESIDUAL, *HEAD),
    because=OUTPUTS_FLOAT,
)
