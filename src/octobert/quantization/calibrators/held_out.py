"""The range of the rows that transforms learned from, with as much room as the rows that they did not learn from ask for.

Smoothing fits every channel to its own largest value, so that any other text has as many chances to leave the range as there
are channels; and the more room, the coarser the grid. Held-out calibration rows tell what is lost either way. The error of a
row is the variance of rounding of its values, and the squares of what is clipped. The ends with the smallest mean of a power
of this error are taken: a row that is far from float weighs more than many that are a little farther.
"""

from __future__ import annotations

import numpy as np

from octobert.core.ranges import STEPS, Interval, TensorStatistics, held_out
from octobert.quantization.calibrators import Calibrator

# Of the error of a row. 1 is right for the mean, and clips one text in a hundred much (docs/evidence/accuracy.md).
POWER = 3
# Ends that are tried, in units of those of the other rows.
_FACTORS = np.geomspace(1, 8, 43)


class HeldOut(Calibrator):
    """As much room as held-out rows ask for."""

    def interval(self, seen: TensorStatistics) -> Interval:
        """Return the interval with the smallest error of held-out rows; the exact one where there are none."""
        held = held_out(len(seen.extremes))
        if not held.any():
            return Interval.from_ends(seen.minimum, seen.maximum)
        low, high = seen.extremes[~held, 0].min(), seen.extremes[~held, 1].max()
        # No row loses anything beyond the extremes of all of them.
        lows = np.maximum(min(low, 0) * _FACTORS, min(seen.minimum, 0))
        highs = np.minimum(max(high, 0) * _FACTORS, max(seen.maximum, 0))
        values = seen.count / len(seen.extremes)
        rounded = values * ((highs - lows[:, None]) / STEPS) ** 2 / 12
        clipped_low, clipped_high = _clipped(seen, lows, 0), _clipped(seen, highs, 1)
        errors = rounded[..., None] + clipped_low[:, None, held] + clipped_high[:, held]
        best = np.unravel_index(int((errors**POWER).mean(axis=-1).argmin()), rounded.shape)
        return Interval.from_ends(float(lows[best[0]]), float(highs[best[1]]))


def _clipped(statistics: TensorStatistics, ends: np.ndarray, end: int) -> np.ndarray:
    """The squares of what rows lose beyond ends, as far as statistics tell: of the extreme of each, times what all values lose
    in proportion to all extremes.

    Args:
        ends: [N] of the range.
        end: 0 for lower ends, 1 for upper ones.

    Returns:
        [N, rows].
    """
    sign = (-1, 1)[end]
    bins, counts = statistics.points()
    of_rows, of_values = (
        np.maximum(sign * (beyond - ends[:, None]), 0) ** 2
        for beyond in (statistics.extremes[:, end].astype(np.float64), bins)
    )
    every = (of_values @ counts) / np.maximum(of_rows.sum(axis=1), np.finfo(float).tiny)
    clipped: np.ndarray = of_rows * np.maximum(every, 1)[:, None]
    return clipped
