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
        np.ceil(np.maximum(own, 0) / step - 1e-9).astype(np.int64) for own in map(np.asarray, times)
    ]
    best = np.full(steps + 1, np.inf)
    best[0] = 0.0
    chosen = np.zeros((len(weights), steps + 1), dtype=np.int16)
    for index, (weight, loss) in enumerate(zip(weights, losses, strict=True)):
        reached = np.full(steps + 1, np.inf)
        for level in range(len(weight)):
            taken = int(weight[level])
            if taken > steps:
                continue
            with_it = best[: steps + 1 - taken] + loss[level]
            better = with_it < reached[taken:]
            reached[taken:][better] = with_it[better]
            chosen[index, taken:][better] = level
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
        own = next(each for each in self.times if each.kind == sublayer.kind)
        share = own.last if sublayer.layer == max(each.layer for each in self.sublayers) else 1.0
        return share * float(np.interp(units, own.units, own.ms))

    def speedup(self, units: Mapping[str, int]) -> float:
        """The predicted speedup of a model whose modules have so many units."""
        saved = sum(
            self.ms(each, each.units) - self.ms(each, units[each.module]) for each in self.sublayers
        )
        return self.whole_ms / (self.whole_ms - saved)

    def allocated(self, speedup: float) -> dict[str, int] | None:
        """Module → its units in the model with the smallest sum of losses and this predicted speedup; None where no model
        is that fast."""
        ms = [
            [self.ms(each, units) for units in self.units[each.module]] for each in self.sublayers
        ]
        budget = sum(self.ms(each, each.units) for each in self.sublayers) - self.whole_ms * (
            1 - 1 / speedup
        )
        places = allocate(ms, [self.losses[each.module] for each in self.sublayers], budget)
        if places is None:
            return None
        return {
            each.module: self.units[each.module][place]
            for each, place in zip(self.sublayers, places, strict=True)
        }


class Allocated(NamedTuple):
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
    table: Table, wanted: float, measure: Callable[[Mapping[str, int]], Estimate]
) -> Allocated | None:
    """Find levels whose model is as much faster as wanted, measured.

    Args:
        wanted: speedup over the whole model.
        measure: times the model of these units (module → units) against the whole one.

    Returns:
        The slowest of the models that are fast enough; None where none is.
    """
    asked, found = wanted, list[Allocated]()
    # Of the whole model's time: what the table was asked to save, and what was saved.
    shares: list[tuple[float, float]] = []
    for _ in range(1 + CORRECTIONS):
        units = table.allocated(asked)
        if units is None or any(units == each.units for each in found):
            break
        one = Allocated(units, table.speedup(units), measure(units))
        found.append(one)
        if fast_enough(wanted, one.measured) and not _faster(wanted, one.measured):
            break
        shares.append((1 - 1 / asked, 1 - 1 / one.measured.value))
        saved = _corrected(shares, 1 - 1 / wanted)
        if not 0 < saved < 1:
            break
        asked = 1 / (1 - saved)
    enough = [each for each in found if fast_enough(wanted, each.measured)]
    return min(enough, key=lambda each: each.measured.value, default=None)


def _corrected(shares: Sequence[tuple[float, float]], wanted: float) -> float:
    """The share of the time to ask the table for next.

    It is between a model that saves too little and one that saves too much, where there are both: what is saved is not
    proportional to what is asked for. Otherwise it is changed by the ratio, at most doubled.

    Args:
        shares: (asked, saved) of each model that was timed.
        wanted: share that is to be saved.
    """
    slow = max(
        (each for each in shares if each[1] < wanted), key=lambda each: each[1], default=None
    )
    fast = min(
        (each for each in shares if each[1] >= wanted), key=lambda each: each[1], default=None
    )
    if slow is not None and fast is not None:
        return slow[0] + (wanted - slow[1]) / (fast[1] - slow[1]) * (fast[0] - slow[0])
    asked, saved = shares[-1]
    return asked * min(wanted / max(saved, 1e-9), 2.0)


def fast_enough(wanted: float, measured: Estimate) -> bool:
    """Whether a measured speedup is the wanted one or more, within its noise."""
    return min(
        measured.high, measured.value * (1 + NOISE)
    ) >= wanted or measured.value >= wanted * (1 - NEAR)


def _faster(wanted: float, measured: Estimate) -> bool:
    """Whether a model is faster than wanted beyond its noise, so that it could keep more."""
    return max(measured.low, measured.value * (1 - NOISE)) > wanted and measured.value > wanted * (
        1 + NEAR
    )
