"""The bound with the smallest Kullback-Leibler divergence between the distributions before and after quantization.

Magnitudes are counted in `num_bins` equal bins. For each candidate bound, the bins below it are merged into
`num_quantized_bins` levels and expanded again, and the result is compared with the original bins, where everything beyond
the bound is added to the last bin. All bounds are evaluated at once, from cumulative sums.

Source: Migacz, "8-bit Inference with TensorRT", GTC 2017.
"""

from __future__ import annotations

from typing import ClassVar, Self

import numpy as np
from pydantic import Field, model_validator

from octobert.core.errors import DataError
from octobert.core.ranges import Interval, TensorStatistics
from octobert.quantization.calibrators import Calibrator


class Entropy(Calibrator):
    """The bound with the smallest divergence.

    Args:
        num_bins: bins of the histogram of magnitudes.
        num_quantized_bins: levels after merging; int8 has 128 on either side of zero.
    """

    prior: ClassVar[float] = 0.3

    num_bins: int = Field(default=2048, ge=16, le=16384)
    num_quantized_bins: int = Field(default=128, ge=8, le=1024)

    @model_validator(mode="after")
    def _more_bins_than_levels(self) -> Self:
        if self.num_bins <= self.num_quantized_bins:
            raise ValueError("num_bins must be greater than num_quantized_bins")
        return self

    def interval(self, seen: TensorStatistics) -> Interval:
        """Return the observed range, clipped at the chosen bound.

        Raises:
            DataError: there are fewer values than `num_bins`.
        """
        if seen.count < self.num_bins:
            raise DataError(
                "too few values for entropy calibration",
                got=f"{seen.count} values",
                expected=f"at least num_bins = {self.num_bins}",
                fix="calibrate on more rows, or set a lower num_bins",
            )
        largest = max(abs(seen.minimum), abs(seen.maximum))
        if largest == 0.0:
            return Interval.from_ends(0.0, 0.0)
        counts = seen.magnitudes(self.num_bins)
        bins = _smallest_divergence(counts, self.num_quantized_bins)
        bound = largest * bins / self.num_bins
        return Interval(low=max(seen.minimum, -bound), high=min(seen.maximum, bound), bound=bound)


def _smallest_divergence(counts: np.ndarray, levels: int) -> int:
    """Return the number of bins below the best bound.

    Let h be the counts, n their sum, and m the sum of the counts below a bound. Then p = h / n, with the counts beyond the
    bound added to the last bin, and q = (mean of the occupied bins of the same group) / m. The divergence is the sum of
    p log p over bins minus the sum of p log q over groups.

    Args:
        counts: [bins] values per bin of magnitude.
        levels: groups that the bins are merged into.
    """
    bins, total = len(counts), counts.sum()
    candidates = np.arange(levels, bins + 1)
    cumulative = np.concatenate([[0.0], np.cumsum(counts)])
    occupied = np.concatenate([[0], np.cumsum(counts > 0)])
    cumulative_entropy = np.concatenate([[0.0], np.cumsum(_xlogx(counts / total))])
    rest = total - cumulative[candidates]
    last = counts[candidates - 1]
    entropy = cumulative_entropy[candidates - 1] + _xlogx((last + rest) / total)
    # Each group has candidates // levels bins; the last one also takes the remainder.
    edges = np.arange(levels + 1) * (candidates // levels)[:, None]
    edges[:, -1] = candidates
    sums = np.diff(cumulative[edges], axis=1)
    sizes = np.diff(occupied[edges], axis=1)
    sizes[:, -1] += (last == 0) & (rest > 0)
    shares = sums.copy()
    shares[:, -1] += rest
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(sums / sizes / cumulative[candidates][:, None])
        cross = np.where(shares > 0, shares / total * logs, 0.0).sum(axis=1)
    divergence = entropy - cross
    # q is undefined where the bound cuts off all values. Of equally good bounds, the widest clips least.
    divergence[~np.isfinite(divergence)] = np.inf
    best = np.flatnonzero(divergence <= divergence.min() + 1e-12)
    return int(candidates[best[-1]])


def _xlogx(values: np.ndarray) -> np.ndarray:
    return np.where(values > 0, values * np.log(np.where(values > 0, values, 1.0)), 0.0)
