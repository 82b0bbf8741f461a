"""Cover a given percentage of the values and clip the rest, half of it on each side.

Quantiles are read from the histogram, so they are exact to within one bin (0.8 % of the value). The symmetric bound is the
quantile of the absolute values. The ends never lie outside the observed range.

Source: Wu et al. 2020, arXiv:2004.09602, section 4.1.
"""

from __future__ import annotations

from typing import ClassVar, Self

import numpy as np
from pydantic import Field

from octobert.core.ranges import Interval, TensorStatistics
from octobert.quantization.calibrators import Calibrator


class Percentile(Calibrator):
    """A percentage of the values.

    Args:
        keep: percentage of the values that lie inside the interval.
        num_bins: the ends lie on the edges of that many equal bins over twice the largest magnitude, as in onnxruntime;
            0 for quantiles.
    """

    # On MRPC a little closer to float than the default (docs/evidence/accuracy.md).
    prior: ClassVar[float] = 0.5

    keep: float = Field(default=99.999, gt=50, le=100)
    num_bins: int = Field(default=0, ge=0, le=16384)

    @classmethod
    def sweep(cls) -> tuple[Self, ...]:
        """Return several: accuracy drops sharply on either side of the best one."""
        return tuple(cls(keep=keep) for keep in (99.9, 99.99, 99.999, 99.9999))

    def interval(self, seen: TensorStatistics) -> Interval:
        """Return the interval that covers `keep` percent of the values."""
        if self.keep == 100:
            return Interval.from_ends(seen.minimum, seen.maximum)
        cut = (1 - self.keep / 100) / 2
        if self.num_bins:
            return _on_edges(seen, self.num_bins, cut)
        low, high = seen.quantiles(cut, 1 - cut)
        values, counts = seen.points()
        order = np.argsort(np.abs(values), kind="stable")
        cumulative = np.cumsum(counts[order])
        index = min(int(np.searchsorted(cumulative, self.keep / 100 * seen.count)), len(order) - 1)
        return Interval(low=low, high=high, bound=float(abs(values[order[index]])))


def _on_edges(statistics: TensorStatistics, bins: int, cut: float) -> Interval:
    """Return the interval between the left edges of the bins that hold the quantiles.

    Args:
        bins: of the histogram from minus the largest magnitude to the largest; of magnitudes as many from zero.
        cut: share of the values that is left out on each side.
    """
    largest = max(abs(statistics.minimum), abs(statistics.maximum))
    edges = np.linspace(-largest, largest, bins + 1)
    shares = statistics.cumulated(edges[1:]) / statistics.count
    low, high = (float(edges[np.searchsorted(shares, share)]) for share in (cut, 1 - cut))
    below = np.cumsum(statistics.magnitudes(bins)) / statistics.count
    bound = largest * int(np.searchsorted(below, 1 - 2 * cut)) / bins
    return Interval(
        low=max(low, statistics.minimum), high=min(high, statistics.maximum), bound=bound
    )
