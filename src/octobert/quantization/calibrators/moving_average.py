"""An exponential moving average of the rows' minima and maxima. The result depends on the order of the rows.

Source: `torch.ao.quantization.MovingAverageMinMaxObserver`.
"""

from __future__ import annotations

from pydantic import Field

from octobert.core.ranges import Interval, TensorStatistics
from octobert.quantization.calibrators import Calibrator


class MovingAverage(Calibrator):
    """A moving average of the rows' minima and maxima.

    Args:
        constant: weight of each new row; PyTorch has 0.01.
    """

    constant: float = Field(default=0.01, gt=0, le=1)

    def interval(self, seen: TensorStatistics) -> Interval:
        """Return the averages after the last row. They start at the extremes of the first row."""
        average = seen.extremes[0].astype("float64")
        for row in seen.extremes[1:]:
            average += self.constant * (row - average)
        low, high = float(average[0]), float(average[1])
        return Interval.from_ends(low, high)
