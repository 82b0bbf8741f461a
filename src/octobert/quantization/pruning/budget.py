"""Levels of all sublayers for a wanted speedup: predicted by the times of the levels, corrected by what whole models took.

Which level each sublayer gets, so that the sum of the times fits into a budget, is an exact knapsack by dynamic programming.

A sum of times of levels is a prediction. Sublayers share caches and threads, and differences of small times are noisy: sums
were up to a tenth too high or too low (docs/evidence/pruning.md). So what is allocated is timed as a model, and where that
misses the wanted speedup, the time to be saved is changed by the ratio of what was wanted and measured.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from octobert.core.estimate import Estimate
from octobert.core.pruning import LevelTimes, Sublayer

# Times that a budget is corrected.
CORRECTIONS = 3
# A measured speedup is the wanted one within this share, or within its interval as far as that is not wider than the second
# share: on a busy machine an interval may hold anything.
NEAR, NOISE = 0.02, 0.05
# Steps that the time of the model is cut into. Times are rounded up to a step, so that the budget holds; with 48 sublayers the
# rounding costs less than a quarter of a percent of the time.
STEPS = 20_000
# Milliseconds of a step where there is no time at all.
_SMALLEST = 1e-12


def allocate(
    times: Sequence[Sequence[float]],
    losses: Sequence[Sequence[float]],
    budget_ms: float,
    *,
    steps: int = STEPS,
) -> list[int] | None:
    """Choose one level of each sublayer, so that the sum of the losses is smallest and the sum of the times within a budget.

    Args:
        times: of each sublayer, the milliseconds of each of its levels.
        losses: of each sublayer, the loss of the model at each of its levels.
        budget_ms: for all sublayers together.
        steps: that the budget is cut into; times are rounded up to one.

    Returns:
        The index of the level of each sublayer; None where even the fastest levels take longer.

    Example:
        >>> allocate([[0.0, 1.0, 2.0], [0.0, 1.0, 2.0]], [[9.0, 1.0, 0.0], [3.0, 2.0, 0.0]], 3.1)
        [1, 2]
    """
    if budget_ms < 0:
        return None
    step = max(budget_ms / steps, _SMALLEST)
    # A time that is a whole number of steps but for its last digits is that number.
    weights = [
        np.ceil(np.maximum(level_times, 0) / step - 1e-9).astype(np.int64)
        for level_times in map(np.asarray, times)
    ]
    best = np.full(steps + 1, np.inf)
    best[0] = 0.0
    chosen = np.zeros((len(weights), steps + 1), dtype=np.int16)
    for index, (weight, loss) in enumerate(zip(weights, losses, strict=True)):
        reached = np.full(steps + 1, np.inf)
        for level in range(len(weight)):
            duration = int(weight[level])
            if duration > steps:
                continue
            with_it = best[: steps + 1 - duration] + loss[level]
            better = with_it < reached[duration:]
            reached[duration:][better] = with_it[better]
            chosen[index, duration:][better] = level
        best = reached
    place = int(best.argmin())
    if not np.isfinite(best[place]):
        return None
    levels = []
    for index in range(len(weights) - 1, -1, -1):
        level = int(chosen[index, place])
        levels.append(level)
        place -= int(weights[index][level])
    return levels[::-1]


@dataclass(frozen=True)
class Table:
    """Times and losses of the levels of all sublayers.

    Args:
        sublayers: of the model.
        units: module → the units of its levels, ascending.
        losses: module → the loss of the model at each of its levels.
        times: of levels of each kind.
        whole_ms: milliseconds of the whole model.
    """

    sublayers: Sequence[Sublayer]
    units: Mapping[str, Sequence[int]]
    losses: Mapping[str, Sequence[float]]
    times: Sequence[LevelTimes]
    whole_ms: float

    def ms(self, sublayer: Sublayer, units: int) -> float:
        """Milliseconds of a sublayer with so many units."""
        times = next(levels for levels in self.times if levels.kind == sublayer.kind)
        share = (
            times.last if sublayer.layer == max(other.layer for other in self.sublayers) else 1.0
        )
        return share * float(np.interp(units, times.units, times.ms))

    def speedup(self, units: Mapping[str, int]) -> float:
        """The predicted speedup of a model whose modules have so many units."""
        saved = sum(
            self.ms(sublayer, sublayer.units) - self.ms(sublayer, units[sublayer.module])
            for sublayer in self.sublayers
        )
        return self.whole_ms / (self.whole_ms - saved)

    def allocation(self, speedup: float) -> dict[str, int] | None:
        """Module → its units in the model with the smallest sum of losses and this predicted speedup; None where no model
        is that fast."""
        ms = [
            [self.ms(sublayer, units) for units in self.units[sublayer.module]]
            for sublayer in self.sublayers
        ]
        budget = sum(
            self.ms(sublayer, sublayer.units) for sublayer in self.sublayers
        ) - self.whole_ms * (1 - 1 / speedup)
        places = allocate(ms, [self.losses[sublayer.module] for sublayer in self.sublayers], budget)
        if places is None:
            return None
        return {
            sublayer.module: self.units[sublayer.module][place]
            for sublayer, place in zip(self.sublayers, places, strict=True)
        }


class Allocation(NamedTuple):
    """Levels, and how fast their model is.

    Args:
        units: module → the units that stay.
        predicted: speedup by the times of the levels.
        measured: speedup of the model.
    """

    units: dict[str, int]
    predicted: float
    measured: Estimate


def reach(
    table: Table, goal: float, measure: Callable[[Mapping[str, int]], Estimate]
) -> Allocation | None:
    """Find levels whose model has a speedup, measured.

    Args:
        goal: speedup over the whole model.
        measure: times the model of these units (module → units) against the whole one.

    Returns:
        The slowest of the models that are fast enough; None where none is.
    """
    asked, models = goal, list[Allocation]()
    # Shares of the whole model's time: what the table was asked to save, and what was saved.
    shares: list[tuple[float, float]] = []
    for _ in range(1 + CORRECTIONS):
        units = table.allocation(asked)
        if units is None or any(units == model.units for model in models):
            break
        model = Allocation(units, table.speedup(units), measure(units))
        models.append(model)
        if fast_enough(goal, model.measured) and not _faster(goal, model.measured):
            break
        shares.append((1 - 1 / asked, 1 - 1 / model.measured.value))
        saved = _corrected(shares, 1 - 1 / goal)
        if not 0 < saved < 1:
            break
        asked = 1 / (1 - saved)
    enough = [model for model in models if fast_enough(goal, model.measured)]
    return min(enough, key=lambda model: model.measured.value, default=None)


def _corrected(shares: Sequence[tuple[float, float]], goal: float) -> float:
    """The share of the time to ask the table for next.

    It is between a model that saves too little and one that saves too much, where there are both: what is saved is not
    proportional to what is asked for. Otherwise it is changed by the ratio, at most doubled.

    Args:
        shares: (asked, saved) of each model that was timed.
        goal: share that is to be saved.
    """
    slow = max((pair for pair in shares if pair[1] < goal), key=lambda pair: pair[1], default=None)
    fast = min((pair for pair in shares if pair[1] >= goal), key=lambda pair: pair[1], default=None)
    if slow is not None and fast is not None:
        return slow[0] + (goal - slow[1]) / (fast[1] - slow[1]) * (fast[0] - slow[0])
    asked, saved = shares[-1]
    return asked * min(goal / max(saved, 1e-9), 2.0)


def fast_enough(goal: float, measured: Estimate) -> bool:
    """Return whether a measured speedup is the goal or more, within its noise."""
    return min(measured.high, measured.value * (1 + NOISE)) >= goal or measured.value >= goal * (
        1 - NEAR
    )


def _faster(goal: float, measured: Estimate) -> bool:
    """Return whether a model is faster than the goal beyond its noise, so that it could keep more."""
    return max(measured.low, measured.value * (1 - NOISE)) > goal and measured.value > goal * (
        1 + NEAR
    )
