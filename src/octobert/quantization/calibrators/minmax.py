"""The exact minimum and maximum. Nothing is clipped, so a single outlier sets the scale."""

from __future__ import annotations

from octobert.core.frozen import FrozenModel
from octobert.core.ranges import Interval, TensorStatistics


class Options(FrozenModel):
    """No options."""


SWEEP = (Options(),)


def interval(statistics: TensorStatistics, options: Options) -> Interval:
    """Return the interval from minimum to maximum."""
    return Interval.from_ends(statistics.minimum, statistics.maximum)
