"""Keep a share of the values and clip the rest, half on each side (Wu et al. 2020, arXiv:2004.09602, section 4.1).

Quantiles come from the histogram, so they are exact to within one of its bins (0.8 % of the value); an end is never
outside what was seen. Symmetric bounds are the quantile of absolute values.
"""

from __future__ import annotations

import numpy as np
from pydantic import Field

from octobert.core.frozen import FrozenModel
from octobert.core.ranges import Interval, TensorStatistics


class Options(FrozenModel):
    """Args:
    keep: percent of values inside the interval.
    """

    keep: float = Field(default=99.999, gt=50, le=100)


def interval(statistics: TensorStatistics, options: Options) -> Interval:
    """The interval that holds `keep` percent of the values."""
    if options.keep == 100:
        low, high = statistics.minimum, statistics.maximum
        return Interval(low=low, high=high, bound=max(abs(low), abs(high)))
    cut = (1 - options.keep / 100) / 2
    low, high = statistics.quantiles(cut, 1 - cut)
    values, counts = statistics.points()
    order = np.argsort(np.abs(values), kind="stable")
    cumulative = np.cumsum(counts[order])
    index = min(int(np.searchsorted(cumulative, options.keep / 100 * statistics.count)), len(order) - 1)
    return Interval(low=low, high=high, bound=float(abs(values[order[index]])))
