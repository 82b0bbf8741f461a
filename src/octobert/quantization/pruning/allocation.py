"""Which level each sublayer gets, so that a model fits into a time: an exact knapsack by dynamic programming."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

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
