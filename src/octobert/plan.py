"""The plan is the contract: per value, how it is quantized, or that it stays float, and why.

Methods make plans and edit nothing; `capability.check` holds a plan against a target; `graph.qdq` writes it. Search edits
plans, never graphs. Everything here is frozen and has a JSON form (`model_dump_json` / `model_validate_json`).
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

DType = Literal["int8", "uint8"]
LIMITS: dict[str, tuple[int, int]] = {"int8": (-128, 127), "uint8": (0, 255)}
# Symmetric int8 leaves -128 unused, so that negation is exact and weights need no zero point.
SYMMETRIC_LIMITS: dict[str, tuple[int, int]] = {"int8": (-127, 127), "uint8": (0, 255)}


class Noun(BaseModel):
    """Frozen data with a JSON form; unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Site(Noun):
    """A place where a value enters an operator, and could enter it as 8-bit integers.

    Args:
        role: what the value is there, such as `linear.input` or `scores.key` (see `graph.sites`).
        module: the module path of the operator, without the operator's own suffix.
        layer: index of the encoder layer, None outside the layers.
        node: name of the operator.
        input: index of the input.
        value: name of the value.
    """

    role: str
    module: str
    layer: int | None
    node: str
    input: int
    value: str

    @property
    def is_weight(self) -> bool:
        """Whether the value is a constant."""
        return self.role.endswith(".weight")


class Quantizer(Noun):
    """How floats become integers: `q = round(x / scale) + zero_point`, clipped to the type.

    Args:
        dtype: the integer type.
        symmetric: zero point 0 (int8) or 128 (uint8).
        axis: one scale per index of this axis; None for one scale.
        low, high: the interval that is represented. None for weights, whose own values give it.
    """

    dtype: DType
    symmetric: bool
    axis: int | None = None
    low: float | None = None
    high: float | None = None


class Decision(Noun):
    """What happens to one site: a quantizer, or None, which means float; and the reason in words."""

    site: Site
    quantizer: Quantizer | None
    reason: str


class QuantPlan(Noun):
    """Every decision about one graph, for one target."""

    method: str
    placement: str
    target: str
    decisions: tuple[Decision, ...]

    @property
    def quantized(self) -> tuple[tuple[Site, Quantizer], ...]:
        """The sites that are quantized, and how."""
        return tuple((d.site, d.quantizer) for d in self.decisions if d.quantizer is not None)

    def counts(self) -> dict[str, tuple[int, int]]:
        """role → (sites in 8 bits, sites in all)."""
        table: dict[str, tuple[int, int]] = {}
        for decision in self.decisions:
            done, total = table.get(decision.site.role, (0, 0))
            table[decision.site.role] = (done + (decision.quantizer is not None), total + 1)
        return table
