"""The interval whose 8-bit grid has the smallest mean squared error, of rounding and clipping together.

Coordinate descent over fractions of the observed range: first both ends with the same fraction, then each end alone. The error
is computed from the occupied bins of the histogram. Where a norm reads the values, directly or after a residual add, the error
of each token counts relative to its energy.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from pydantic import Field

from octobert.core.ranges import STEPS, Interval, TensorStatistics
from octobert.quantization.calibrators import Calibrator

# Steps of a symmetric 8-bit grid on either side of zero.
_SIDE = 127
_MIN_SCALE = float(np.finfo(np.float32).tiny)


class MeanSquaredError(Calibrator):
    """The interval with the smallest squared error.

    Args:
        candidates: number of fractions that are tried for each end.
        rounds: most passes over the two ends.
    """

    # With SmoothQuant as accurate as the default, and without it better (docs/evidence/accuracy.md).
    prior: ClassVar[float] = 0.6

    candidates: int = Field(default=64, ge=4, le=1024)
    rounds: int = Field(default=3, ge=1, le=20)

    def interval(self, seen: TensorStatistics) -> Interval:
        """Return the interval and the symmetric bound with the smallest squared error."""
        values, counts = seen.points(relative=True)
        low, high = min(seen.minimum, 0.0), max(seen.maximum, 0.0)
        bound = max(-low, high)
        if bound == 0.0:
            return Interval.from_ends(0.0, 0.0)
        fractions = np.linspace(0.05, 1.0, self.candidates)

        def best(lows: np.ndarray, highs: np.ndarray) -> int:
            errors = [_error(values, counts, a, b) for a, b in np.broadcast(lows, highs)]
            return int(np.argmin(errors))

        symmetric = [_error(values, counts, -b, b, levels=2 * _SIDE) for b in bound * fractions]
        best_bound = bound * fractions[int(np.argmin(symmetric))]
        start = fractions[best(low * fractions, high * fractions)]
        best_low, best_high = low * start, high * start
        for _ in range(self.rounds):
            before = (best_low, best_high)
            best_low = low * fractions[best(low * fractions, np.array(best_high))]
            best_high = high * fractions[best(np.array(best_low), high * fractions)]
            if (best_low, best_high) == before:
                break
        return Interval(low=float(best_low), high=float(best_high), bound=float(best_bound))


def _error(
    values: np.ndarray, counts: np.ndarray, low: float, high: float, levels: int = STEPS
) -> float:
    """Return the sum of squared errors of a grid of `levels` steps over [low, high]. The grid contains 0 exactly."""
    scale = max(float(high - low) / levels, _MIN_SCALE)
    zero = np.rint(-low / scale)
    codes = np.clip(np.rint(values / scale) + zero, 0, levels)
    return float(np.dot((values - (codes - zero) * scale) ** 2, counts))
