"""Calibrator: a fixed fraction of the exact range."""

from __future__ import annotations

from octobert.core.frozen import FrozenModel
from octobert.core.ranges import Interval, TensorStatistics


class Options(FrozenModel):
    """Options of the calibrator.

    Args:
        fraction: of the exact range.
    """

    fraction: float = 1.0


SWEEP = (Options(fraction=0.9), Options(fraction=1.0))


def interval(statistics: TensorStatistics, options: Options) -> Interval:
    """Return the scaled range."""
    low, high = (options.fraction * end for end in (statistics.minimum, statistics.maximum))
    return Interval(low=low, high=high, bound=max(abs(low), abs(high)))
