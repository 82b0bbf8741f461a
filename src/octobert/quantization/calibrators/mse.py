"""The interval whose 8-bit grid has the least mean squared error over the observed values, rounding and clipping together.

Both ends are searched over fractions of the exact range, by coordinate descent from the full range: first the ends in
common, then each alone. The error is computed from the histogram's occupied bins.
"""

from __future__ import annotations

import numpy as np
from pydantic import Field

from octobert.core.frozen import FrozenModel
from octobert.core.ranges import Interval, TensorStatistics

_LEVELS = 255  # steps between 256 codes
_SIDE = 127
_MIN_SCALE = float(np.finfo(np.float32).tiny)


class Options(FrozenModel):
    """Args:
    candidates: fractions of the range that are tried for each end.
    rounds: passes over the two ends.
    """

    candidates: int = Field(default=64, ge=4, le=1024)
    rounds: int = Field(default=3, ge=1, le=20)


def interval(statistics: TensorStatistics, options: Options) -> Interval:
    """The interval of least squared error, and the symmetric bound of least squared error."""
    values, counts = statistics.points()
    low, high = min(statistics.minimum, 0.0), max(statistics.maximum, 0.0)
    bound = max(-low, high)
    if bound == 0.0:
        return Interval(low=0.0, high=0.0, bound=0.0)
    fractions = np.linspace(0.05, 1.0, options.candidates)

    def least(lows: np.ndarray, highs: np.ndarray) -> int:
        errors = [_error(values, counts, a, b) for a, b in np.broadcast(lows, highs)]
        return int(np.argmin(errors))

    # Symmetric quantizers have 127 steps on either side of zero.
    symmetric = [_error(values, counts, -b, b, levels=2 * _SIDE) for b in bound * fractions]
    best_bound = bound * fractions[int(np.argmin(symmetric))]
    start = fractions[least(low * fractions, high * fractions)]
    best_low, best_high = low * start, high * start
    for _ in range(options.rounds):
        before = (best_low, best_high)
        best_low = low * fractions[least(low * fractions, np.array(best_high))]
        best_high = high * fractions[least(np.array(best_low), high * fractions)]
        if (best_low, best_high) == before:
            break
    return Interval(low=float(best_low), high=float(best_high), bound=float(best_bound))


def _error(values: np.ndarray, counts: np.ndarray, low: float, high: float, levels: int = _LEVELS) -> float:
    """Sum of squared errors of a grid of so many steps over [low, high] that contains 0 exactly."""
    scale = max(float(high - low) / levels, _MIN_SCALE)
    zero = np.rint(-low / scale)
    codes = np.clip(np.rint(values / scale) + zero, 0, levels)
    return float(np.dot((values - (codes - zero) * scale) ** 2, counts))
