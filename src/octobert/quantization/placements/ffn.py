"""The two feed-forward layers: two thirds of the arithmetic. Attention stays float."""

from octobert.core.plan import Placement
from octobert.quantization.placements import matmul

PLACEMENT = Placement(
    description="inputs and weights of the two feed-forward layers; everything else float",
    kinds=("linear.input@ffn_*", "linear.weight@ffn_*"),
    because=matmul.PLACEMENT.because,
)
