"""The Placement noun: which kinds of sites a plan quantizes, as data that can be printed and edited."""

from __future__ import annotations

from octobert.plan import Noun


class Placement(Noun):
    """A named choice of site roles (`graph.sites.ROLES`).

    Args:
        description: one line for people.
        roles: roles that are quantized.
        because: role that stays float → why, for the plan and the report.
    """

    description: str
    roles: tuple[str, ...]
    because: dict[str, str]


HEAD_FLOAT = {
    "head.input": "heads and poolers are small, and the answer is read from them",
    "head.weight": "heads and poolers are small, and the answer is read from them",
}
RESIDUAL_FLOAT = {
    "residual.branch": "residual adds carry the outliers of the stream, and run fused with LayerNorm in float",
    "residual.skip": "residual adds carry the outliers of the stream, and run fused with LayerNorm in float",
}
ATTENTION_FLOAT = dict.fromkeys(
    ("scores.query", "scores.key", "context.probs", "context.value"),
    "attention products are a small share of the work, and 8 bits gain no time on CPUs here",
)
