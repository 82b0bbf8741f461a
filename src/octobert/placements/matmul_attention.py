"""The linear layers, and both matrix products inside attention."""

from octobert.placement import HEAD_FLOAT, OUTPUTS_FLOAT, RESIDUAL_FLOAT, Placement

PLACEMENT = Placement(
    description="inputs and weights of the linear layers, and the four inputs of the attention products",
    kinds=("linear.input", "linear.weight", "scores.query", "scores.key", "context.probs", "context.value"),
    because={**RESIDUAL_FLOAT, **HEAD_FLOAT, **OUTPUTS_FLOAT},
)
