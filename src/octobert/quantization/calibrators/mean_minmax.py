"""The mean of the rows' minima and the mean of their maxima, as NNCF's default for activations: one odd row moves little."""

from __future__ import annotations

from octobert.core.frozen import FrozenModel
from octobert.core.ranges import Interval, TensorStatistics


class Options(FrozenModel):
    """No options."""


def interval(statistics: TensorStatistics, options: Options) -> Interval:
    """The interval between the means."""
    low, high = (float(one) for one in statistics.extremes.mean(axis=0, dtype="float64"))
    return Interval(low=low, high=high, bound=max(abs(low), abs(high)))
