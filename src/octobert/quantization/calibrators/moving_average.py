"""An exponential moving average of the rows' minima and maxima. The result depends on the order of the rows.

Source: `torch.ao.quantization.MovingAverageMinMaxObserver`.
"""

from __future__ import annotations

from pydantic import Field

from octobert.core.frozen import FrozenModel
from octobert.core.ranges import Interval, TensorStatistics


class Options(FrozenModel):
    """Args:
    constant: weight of each new row; PyTorch has 0.01.
    """

    constant: float = Field(default=0.01, gt=0, le=1)


SWEEP = (Options(),)


def interval(statistics: TensorStatistics, options: Options) -> Interval:
    """Return the averages after the last row. They start at the extremes of the first row."""
    average = statistics.extremes[0].astype("float64")
    for row in statistics.extremes[1:]:
        average += options.constant * (row - average)
    low, high = float(average[0]), float(average[1])
    return Interval.from_ends(low, high)
