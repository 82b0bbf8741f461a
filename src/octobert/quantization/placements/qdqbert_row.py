"""The positions of the IMDB QAT example (layout ROW): outputs are quantized, and all their readers read 8 bits.

Quantized outputs: Q, K, V and intermediate after the bias, scores before scale and mask, probabilities, context, GELU, residual
sums before LayerNorm, and LayerNorms. The output projections of attention and feed-forward have float outputs.
"""

from octobert.core.plan import ATTENTION, HEAD_FLOAT, Placement

_COVERED = dict.fromkeys(("linear.input", *ATTENTION), "quantized at the operator that outputs it")

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
