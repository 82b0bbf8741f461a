"""Cover a given percentage of the values and clip the rest, half of it on each side.

Quantiles are read from the histogram, so they are exact to within one bin (0.8 % of the value). The symmetric bound is the
quantile of the absolute values. The ends never lie outside the observed range.

Source: Wu et al. 2020, arXiv:2004.09602, section 4.1.
"""

from __future__ import annotations

import numpy as np
from pydantic import Field

from octobert.core.frozen import FrozenModel
from octobert.core.ranges import Interval, TensorStatistics


class Options(FrozenModel):
    """Args:
    keep: percentage of the values that lie inside the interval.
    """

    keep: float = Field(default=99.999, gt=50, le=100)


# Accuracy drops sharply on either side of the best percentage, which shows only when several are compared.
SWEEP = tuple(Options(keep=keep) for keep in (99.9, 99.99, 99.999, 99.9999))
# On MRPC a little closer to float than the default (docs/evidence/accuracy.md).
PRIOR = 0.5


def interval(statistics: TensorStatistics, options: Options) -> Interval:
    """Return the interval that covers `keep` percent of the values."""
    if options.keep == 100:
        return Interval.from_ends(statistics.minimum, statistics.maximum)
    cut = (1 - options.keep / 100) / 2
    low, high = statistics.quantiles(cut, 1 - cut)
    values, counts = statistics.points()
    order = np.argsort(np.abs(values), kind="stable")
    cumulative = np.cumsum(counts[order])
    index = min(
        int(np.searchsorted(cumulative, options.keep / 100 * statistics.count)), len(order) - 1
    )
    return Interval(low=low, high=high, bound=float(abs(values[order[index]])))
