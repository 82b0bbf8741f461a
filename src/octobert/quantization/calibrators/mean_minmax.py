"""The mean of the rows' minima and the mean of their maxima. A single unusual row has little influence.

Source: the default for activations in NNCF (`nncf.quantize`).
"""

from __future__ import annotations

from octobert.core.ranges import Interval, TensorStatistics
from octobert.quantization.calibrators import Calibrator


class MeanMinMax(Calibrator):
    """The mean of the rows' minima, and of their maxima."""

    def interval(self, seen: TensorStatistics) -> Interval:
        """Return the interval between the two means."""
        low, high = (float(mean) for mean in seen.extremes.mean(axis=0, dtype="float64"))
        return Interval.from_ends(low, high)
