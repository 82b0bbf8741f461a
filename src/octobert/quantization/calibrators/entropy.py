"""The bound that loses the least information: least Kullback-Leibler divergence between values before and after quantization.

Magnitudes are counted in `num_bins` equal bins. For every bound between `num_quantized_bins` and all of them, the bins within
are merged into `num_quantized_bins`, spread out again, and held against the bins with everything beyond added to the last one
(Migacz, "8-bit Inference with TensorRT", GTC 2017). All bounds are tried at once, from cumulative sums.
"""

from __future__ import annotations

import numpy as np
from pydantic import Field, model_validator

from octobert.core.errors import DataError
from octobert.core.frozen import FrozenModel
from octobert.core.ranges import Interval, TensorStatistics


class Options(FrozenModel):
    """Args:
    num_bins: bins of the histogram of magnitudes.
    num_quantized_bins: levels that they are merged into; 128 is what int8 has on either side of zero.
    """

    num_bins: int = Field(default=2048, ge=16, le=16384)
    num_quantized_bins: int = Field(default=128, ge=8, le=1024)

    @model_validator(mode="after")
    def _something_to_choose(self) -> Options:
        if self.num_bins <= self.num_quantized_bins:
            raise ValueError("num_bins must be greater than num_quantized_bins, or there is only one bound to choose from")
        return self


def interval(statistics: TensorStatistics, options: Options) -> Interval:
    """The interval within the chosen bound on either side.

    Raises:
        DataError: fewer values than bins.
    """
    if statistics.count < options.num_bins:
        raise DataError(
            "there are too few values for entropy calibration",
            got=f"{statistics.count} values",
            expected=f"at least num_bins = {options.num_bins}",
            fix="calibrate on more rows, or set num_bins lower",
        )
    largest = max(abs(statistics.minimum), abs(statistics.maximum))
    if largest == 0.0:
        return Interval(low=0.0, high=0.0, bound=0.0)
    counts = statistics.magnitudes(options.num_bins)
    kept = _least_divergence(counts, options.num_quantized_bins)
    bound = largest * kept / options.num_bins
    return Interval(low=max(statistics.minimum, -bound), high=min(statistics.maximum, bound), bound=bound)


def _least_divergence(counts: np.ndarray, levels: int) -> int:
    """How many of the bins are kept.

    With h the counts, n all of them and m those within a bound: p = h / n with the rest added to the last bin, q = the mean
    of the occupied bins of its group / m. The divergence is a sum of p log p over bins, and of p log q over groups.
    """
    bins, total = len(counts), counts.sum()
    candidates = np.arange(levels, bins + 1)
    cumulative = np.concatenate([[0.0], np.cumsum(counts)])
    occupied = np.concatenate([[0], np.cumsum(counts > 0)])
    own = np.concatenate([[0.0], np.cumsum(_xlogx(counts / total))])
    rest = total - cumulative[candidates]
    last = counts[candidates - 1]
    entropy = own[candidates - 1] + _xlogx((last + rest) / total)
    # Groups of candidates // levels bins each; the last one takes what is left over.
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
    # A bound that cuts everything off has no q at all; the widest of equally good ones clips the least.
    divergence[~np.isfinite(divergence)] = np.inf
    best = np.flatnonzero(divergence <= divergence.min() + 1e-12)
    return int(candidates[best[-1]])


def _xlogx(values: np.ndarray) -> np.ndarray:
    return np.where(values > 0, values * np.log(np.where(values > 0, values, 1.0)), 0.0)
