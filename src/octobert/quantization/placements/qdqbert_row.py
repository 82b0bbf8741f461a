"""The positions of the IMDB QAT example (layout ROW): outputs are quantized, and every reader reads them in 8 bits.

Q, K, V and intermediate outputs after the bias, scores before scale and mask, probabilities, context, GELU, residual sums
before LayerNorm, and every LayerNorm's output. The output projections of attention and feed-forward keep float outputs.
"""

from octobert.core.placement import HEAD_FLOAT, Placement
from octobert.core.plan import ATTENTION

_COVERED = dict.fromkeys(("linear.input", *ATTENTION), "quantized where the value is made")

PLACEMENT = Placement(
    description="outputs of Q, K, V, intermediate, scores, probabilities, context, GELU, residual sums and LayerNorms; weights",
    kinds=(
        "linear.weight",
        "linear.output@query",
        "linear.output@key",
        "linear.output@value",
        "linear.output@qkv",
        "linear.output@ffn_up",
        "scores.output",
        "probs.output",
        "context.output",
        "activation.output",
        "residual.output",
        "norm.output",
    ),
    because={**_COVERED, **HEAD_FLOAT},
)
