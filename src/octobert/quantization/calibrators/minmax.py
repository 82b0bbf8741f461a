"""The exact minimum and maximum. Nothing is clipped, so a single outlier sets the scale."""

from __future__ import annotations

from octobert.core.ranges import Interval, TensorStatistics
from octobert.quantization.calibrators import Calibrator


class MinMax(Calibrator):
    """The exact minimum and maximum."""

    def interval(self, seen: TensorStatistics) -> Interval:
        """Return the interval from minimum to maximum."""
        return Interval.from_ends(seen.minimum, seen.maximum)
