"""A value with its interval: what every measurement, ratio and drop of a metric comes to."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pydantic import ConfigDict

from octobert.core.frozen import FrozenModel

# Statistics of times, from the fastest to the slowest; p999 is the percentile 99.9.
STATISTICS = ("min", "avg", "p50", "p75", "p90", "p95", "p99", "p999", "max")
_PERCENTILES = {"p50": 50.0, "p75": 75.0, "p90": 90.0, "p95": 95.0, "p99": 99.0, "p999": 99.9}


class Estimate(FrozenModel):
    """A measured value with its 95 % confidence interval.

    Args:
        value: that was measured.
        low: lower end of the interval.
        high: upper end.
    """

    # Of a few rounds, a percentile has no upper end.
    model_config = ConfigDict(ser_json_inf_nan="strings")

    value: float
    low: float
    high: float

    def over(self, other: Estimate) -> Estimate:
        """The ratio to another estimate. The interval reaches from the smallest to the largest quotient."""
        return Estimate(
            value=self.value / other.value, low=self.low / other.high, high=self.high / other.low
        )

    def times(self, factor: float) -> Estimate:
        """The estimate in another unit, or with the other sign."""
        low, high = sorted((factor * self.low, factor * self.high))
        return Estimate(value=factor * self.value, low=low, high=high)

    def inverse(self) -> Estimate:
        """The reciprocal of a ratio, or of a time."""
        return Estimate(value=1 / self.value, low=1 / self.high, high=1 / self.low)

    @staticmethod
    def exactly(value: float) -> Estimate:
        """An estimate without noise."""
        return Estimate(value=value, low=value, high=value)


def quantile(samples: Sequence[float], share: float = 0.5, *, reach: float = 1.96) -> Estimate:
    """The median of samples, or another quantile, with its 95 % confidence interval.

    The interval reaches from one order statistic to another, by how many samples are below the quantile: a binomial
    distribution, here by its normal approximation with correction for continuity (Conover, Practical Nonparametric Statistics,
    3.2). It assumes nothing of the distribution of the samples. Too few samples, fewer than six for the median, give less than
    95 %: from the smallest to the largest.

    Args:
        reach: of the interval, in standard deviations of a normal distribution; 1.96 is 95 %.

    Example:
        >>> quantile([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0])
        Estimate(value=5.0, low=2.0, high=8.0)
    """
    # Records of estimates are read by commands that start without numpy.
    import numpy as np

    ordered, last = sorted(samples), len(samples) - 1
    middle = share * len(samples)
    ranks = reach * math.sqrt(len(samples) * share * (1 - share)) + 0.5
    below, above = max(math.floor(middle - ranks), 0), min(math.ceil(middle + ranks) - 1, last)
    value = float(np.quantile(ordered, share))
    return Estimate(value=value, low=ordered[min(below, last)], high=ordered[max(above, 0)])


def geometric_mean(samples: Sequence[float]) -> Estimate:
    """The geometric mean of rates or of their ratios, with its 95 % confidence interval.

    There are few rounds, and each is the mean of many inferences, so the interval is Student's t on the logarithms.

    Args:
        samples: at least two.

    Example:
        >>> round(geometric_mean([2.0, 8.0]).value, 6)
        4.0
    """
    import numpy as np
    from scipy.special import stdtrit

    logs = np.log(samples)
    middle, error = float(logs.mean()), float(logs.std(ddof=1)) / len(logs) ** 0.5
    reach = float(stdtrit(len(logs) - 1, 0.975)) * error
    value, low, high = np.exp([middle, middle - reach, middle + reach]).tolist()
    return Estimate(value=value, low=low, high=high)


def statistics_of(samples: Sequence[float]) -> dict[str, float]:
    """Return every statistic of `STATISTICS` by name.

    Example:
        >>> [f"{name} {value:.1f}" for name, value in statistics_of([1.0, 2.0, 6.0]).items()][:3]
        ['min 1.0', 'avg 3.0', 'p50 2.0']
    """
    import numpy as np

    array = np.asarray(samples, dtype=np.float64)
    percentiles = dict(
        zip(_PERCENTILES, np.percentile(array, list(_PERCENTILES.values())).tolist(), strict=True)
    )
    return {
        "min": float(array.min()),
        "avg": float(array.mean()),
        **percentiles,
        "max": float(array.max()),
    }
