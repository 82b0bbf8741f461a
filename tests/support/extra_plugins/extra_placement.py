"""Placement: the first feed-forward layer only."""

from octobert.core.plan import Placement

PLACEMENT = Placement(
    description="input and weight of the first feed-forward layer", kinds=("linear.*@ffn_up",)
)
