"""Records of a search for the best model on a machine: variants, what was found out of each, and the one that was chosen."""

from __future__ import annotations

import math
from typing import Any, Literal

from pydantic import Field, field_validator

from octobert.core.environment import Environment
from octobert.core.estimate import Estimate
from octobert.core.frozen import FrozenModel, Row, Tabular
from octobert.core.limits import Check, Limit
from octobert.core.measurements import Load

# Name of the chosen package in an output directory.
BEST = "best"


class Variant(FrozenModel):
    """One way to make the model: a target, and keys of the recipe.

    Args:
        name: short and unique in a search: `openvino-cpu int8 matmul-attention`.
        target: plugin name.
        changes: recipe key → value, as `--set` takes them; without the target.
        precision: of most products: `f32`, `bf16`, `f16`, or 8 or 4 bits: `int8`, `int8 dynamic`, `int4 weights`.
    """

    name: str
    target: str
    changes: dict[str, Any] = Field(default_factory=dict)
    precision: str


class VariantResult(FrozenModel):
    """The result of a search on one variant.

    Args:
        variant: the variant.
        state: `chosen`; `admissible`: it meets all limits, and another one is better; `excluded`: it misses a limit, or cannot
            be made; `slower`: it was dropped by its time (or size) before its accuracy was known; `not tried`: the search
            ended first.
        reason: one sentence: what ruled it out, or why it was chosen; until the search has ended, only why it cannot be made.
        checks: the limits that it misses, on the tuning rows and in the times of its races.
        ratio: time divided by the time of the float reference, measured in turn; below 1 is faster. Of throughputs the inverse.
            Of a variant that left the search before the last race, its time relative to the chosen one, in the last race of
            both, times the ratio of the chosen one.
        time_ms: of the goal's statistic, in milliseconds for one text; None where it was not timed. Relative to the chosen
            one as `ratio`.
        figures: goal, limit or tie, such as `latency@p90` → value in the units of `config.choosing.UNITS`; metrics of the task
            are in `values`.
        rounds: in which it was timed.
        drops: metric → metric of the float reference minus metric of the variant, on the same tuning rows.
        values: metric → value on these rows.
        rows: tuning rows that were judged; fewer than all where these already showed that a limit is missed.
        size_bytes: of the files that are opened.
        peak_memory_bytes: of a process that runs it.
        on_frontier: no other variant is both faster and more accurate.
        seconds: that it took to make, time and judge it.
        number: its place in the order in which variants were tried, from 1; 0 where it was not tried.
    """

    variant: Variant
    state: Literal["chosen", "admissible", "excluded", "slower", "not tried"]
    reason: str = ""
    checks: tuple[Check, ...] = ()
    ratio: Estimate | None = None
    time_ms: Estimate | None = None
    figures: dict[str, Estimate] = Field(default_factory=dict)
    rounds: int = 0
    drops: dict[str, Estimate] = Field(default_factory=dict)
    values: dict[str, float] = Field(default_factory=dict)
    rows: int = 0
    size_bytes: int | None = None
    peak_memory_bytes: int | None = None
    on_frontier: bool = False
    seconds: float = 0.0
    number: int = 0

    @field_validator("ratio")
    @classmethod
    def _is_a_ratio(cls, value: Estimate | None) -> Estimate | None:
        if value is not None and not all(
            0 < end < math.inf for end in (value.value, value.low, value.high)
        ):
            raise ValueError("a ratio of times is positive")
        return value


class Selection(Tabular):
    """`choice` in `report.json`: how a model was chosen, and what else was tried.

    Args:
        how: `choose` or `search`, the key of the recipe.
        goal: what was optimized: `latency`, `latency@p90`, `throughput`, `size`, `memory`, or a metric.
        limits: that a model must keep.
        metric: the main metric; None for data without labels.
        rows: tuning rows.
        reference: name of the float variant that ratios and drops refer to.
        winner: name of the variant that was packaged as `best`.
        met: whether the winner meets all limits on the tuning rows.
        sentence: what to use, how much it gains and loses on the evaluation rows, and why.
        found: of all variants, in the order of the table.
        minutes: time limit; None where there is none.
        seconds: that the search took, interrupted runs included.
        ended: why the search ended.
        load: what else the machine did in the race in which it did most; None where nothing was timed.
        environment: the machine and its software; the choice holds for machines of this kind.
        simulated: environment variables that made a runtime use fewer instructions than this CPU has → value.
        recipe: of the search, as `loading.as_written` gives it, to be run again on another machine.
    """

    how: Literal["choose", "search"]
    goal: str
    limits: tuple[Limit, ...]
    metric: str | None
    rows: int
    reference: str
    winner: str
    met: bool
    sentence: str = ""
    found: tuple[VariantResult, ...]
    minutes: float | None
    seconds: float
    ended: str
    load: Load | None = None
    environment: Environment
    simulated: dict[str, str] = Field(default_factory=dict)
    recipe: dict[str, Any] = Field(default_factory=dict)

    @property
    def best(self) -> VariantResult:
        """The result of the winner."""
        return self._of(self.winner)

    @property
    def float_result(self) -> VariantResult:
        """The result of the float variant that ratios and drops refer to."""
        return self._of(self.reference)

    def _of(self, name: str) -> VariantResult:
        return next(found for found in self.found if found.variant.name == name)

    def to_rows(self) -> list[Row]:
        """One row per variant."""
        return [
            {
                "variant": result.variant.name,
                "target": result.variant.target,
                "precision": result.variant.precision,
                "state": result.state,
                **{f"ratio{end}": getattr(result.ratio, name, None) for end, name in _ENDS},
                **{f"time_ms{end}": getattr(result.time_ms, name, None) for end, name in _ENDS},
                **{
                    f"drop{end}": getattr(result.drops.get(self.metric or ""), name, None)
                    for end, name in _ENDS
                },
                "rows": result.rows,
                "size_mb": None if result.size_bytes is None else result.size_bytes / 1e6,
                "on_frontier": result.on_frontier,
                "reason": result.reason,
            }
            for result in self.found
        ]


_ENDS = (("", "value"), ("_low", "low"), ("_high", "high"))
