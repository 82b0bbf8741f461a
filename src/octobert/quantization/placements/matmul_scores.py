"""The linear layers and Q·Kᵀ. probs·V stays float. OpenVINO fuses this best: its attention kernel takes 8-bit Q and K."""

from octobert.core.plan import DECODER, HEAD_FLOAT, LINEAR, OUTPUTS_FLOAT, RESIDUAL_FLOAT, Placement

_PROBS = "probabilities lie close to zero on one side, and 8 bits save no time there"

PLACEMENT = Placement(
    description="inputs and weights of the linear layers, and both inputs of Q·Kᵀ",
    kinds=(*LINEAR, *DECODER, "scores.query", "scores.key"),
    because={
        "context.probs": _PROBS,
        "context.value": _PROBS,
        **RESIDUAL_FLOAT,
        **HEAD_FLOAT,
        **OUTPUTS_FLOAT,
    },
)
