"""The mean of the rows' minima and the mean of their maxima. A single unusual row has little influence.

Source: the default for activations in NNCF (`nncf.quantize`).
"""

from __future__ import annotations

from octobert.core.frozen import FrozenModel
from octobert.core.ranges import Interval, TensorStatistics


class Options(FrozenModel):
    """No options."""


SWEEP = (Options(),)


def interval(statistics: TensorStatistics, options: Options) -> Interval:
    """Return the interval between the two means."""
    low, high = (float(mean) for mean in statistics.extremes.mean(axis=0, dtype="float64"))
    return Interval.from_ends(low, high)
