"""Statistics of scores and times: bootstrap intervals, paired differences, McNemar's test, speedups, throughput ratios.

Sources: McNemar 1947; Dixon & Mood 1946 (sign test); Efron & Tibshirani 1993.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from octobert.core.errors import OctobertError
from octobert.core.measurements import RESAMPLES, Score
from octobert.tasks import Computed, Metric

# A metric that code of others computes may be slow: then fewer resamples, but at least so many.
SECONDS, LEAST = 10.0, 20
CONFIDENCE = 0.95


def score(name: str, metric: Metric, items: np.ndarray, *, seed: int, chance: float | None = None) -> Score | None:
    """Compute a metric and its 95 % interval by the percentile bootstrap.

    Args:
        name: of the metric.
        metric: function from items to a number.
        items: [items, …] what the metric reads, one entry per item.
        seed: of the resamples.
        chance: value of a model that does not read its input.

    Returns:
        None if the metric is undefined on these items.

    Example:
        >>> result = score("mean", lambda values: float(values.mean()), np.array([1.0, 2.0, 3.0]), seed=0)
        >>> result.value, result.low < 2.0 < result.high
        (2.0, True)
    """
    value = metric(items)
    if not np.isfinite(value):
        return None
    low, high = _interval([metric(items[i]) for i in _resamples(len(items), seed)])
    return Score(metric=name, value=value, low=low, high=high, rows=len(items), chance=chance)


def scores_of(name: str, metric: Metric, items: np.ndarray, *, seed: int, chance: float | None = None) -> list[Score]:
    """Compute a metric as `score` does; of one that code of others computes, every value that it has.

    Such a metric is computed for at least `LEAST` resamples, and for no more once `SECONDS` have passed. The score says for how
    many it was. Resamples on which it fails or is undefined are left out.
    """
    if not isinstance(metric, Computed):
        single = score(name, metric, items, seed=seed, chance=chance)
        return [] if single is None else [single]
    values = metric.values(items)
    draws = [drawn for indices in _in_time(_resamples(len(items), seed)) if (drawn := _tried(metric, items[indices]))]
    found = []
    for key, value in values.items():
        if np.isfinite(value):
            own = [each[key] for each in draws if np.isfinite(each.get(key, np.nan))]
            low, high = _interval(own) if own else (None, None)
            found.append(Score(metric=key, value=value, low=low, high=high, rows=len(items), resamples=len(own)))
    return found


def _tried(metric: Computed, items: np.ndarray) -> dict[str, float]:
    """The values of a metric on a resample, which may lack a class that the metric needs; none where it fails."""
    try:
        return metric.values(items)
    except OctobertError:
        return {}


def _in_time(resamples: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
    """As many resamples as fit into `SECONDS`, but `LEAST`."""
    started = time.perf_counter()
    for number, indices in enumerate(resamples):
        if number >= LEAST and time.perf_counter() - started > SECONDS:
            return
        yield indices


def paired(
    metric: Metric, ours: np.ndarray, theirs: np.ndarray, *, seed: int
) -> tuple[float, float, float, float] | tuple[float, None, None, None]:
    """Compute the difference of a metric between two models on the same items, by the paired bootstrap.

    Args:
        metric: function from items to a number.
        ours, theirs: [items, …] of the two models, in the same order.
        seed: of the resamples.

    Returns:
        (ours minus theirs, lower and upper end of the 95 % interval, p-value of "no difference"). Where the metric is undefined
        on every resample there is neither an interval nor a p-value.
    """
    difference = metric(ours) - metric(theirs)
    if isinstance(metric, Computed):
        both = ((_tried(metric, ours[i]), _tried(metric, theirs[i])) for i in _in_time(_resamples(len(ours), seed)))
        draws = [next(iter(own.values())) - next(iter(other.values())) for own, other in both if own and other]
    else:
        draws = [metric(ours[i]) - metric(theirs[i]) for i in _resamples(len(ours), seed)]
    defined = np.array(draws)[np.isfinite(draws)]
    if not len(defined):
        return difference, None, None, None
    low, high = _interval(draws)
    beyond = np.sum(np.abs(defined - defined.mean()) >= abs(difference) - 1e-12)
    p_value = float((beyond + 1) / (len(defined) + 1))
    return difference, low, high, p_value


def mcnemar(ours: np.ndarray, theirs: np.ndarray) -> float:
    """Return the p-value of the exact two-sided McNemar test: two classifiers are right equally often on the same rows.

    Args:
        ours, theirs: [items] bool, whether each was right.

    Example:
        >>> mcnemar(np.array([True, True, True]), np.array([True, True, True]))
        1.0
    """
    return sign_test(int(np.sum(ours & ~theirs)), int(np.sum(~ours & theirs)))


def sign_test(one: int, other: int) -> float:
    """Return the p-value of the exact two-sided sign test: of two outcomes, each is as likely as the other.

    Args:
        one, other: how often each occurred.

    Example:
        >>> sign_test(8, 0), sign_test(3, 3)
        (0.0078125, 1.0)
    """
    # Importing scipy.stats takes half a second, and `binomtest` computes nothing else here.
    from scipy.special import bdtr

    return min(1.0, 2 * float(bdtr(min(one, other), one + other, 0.5)))


def speedup(own_ms: np.ndarray, reference_ms: np.ndarray, *, seed: int) -> tuple[float, float, float]:
    """Compute the ratio of two medians of times that were measured in turn, by the paired bootstrap over the rounds.

    Args:
        own_ms, reference_ms: [rounds] times of the two models in the same rounds.
        seed: of the resamples.

    Returns:
        (median of the reference divided by the own median, lower and upper end of the 95 % interval).

    Example:
        >>> speedup(np.array([1.0, 1.1, 0.9]), np.array([2.0, 2.2, 1.8]), seed=0)
        (2.0, 2.0, 2.0)
    """
    drawn = np.stack(list(_resamples(len(own_ms), seed)))
    ratios = np.median(reference_ms[drawn], axis=1) / np.median(own_ms[drawn], axis=1)
    low, high = _interval(ratios.tolist())
    return float(np.median(reference_ms) / np.median(own_ms)), low, high


def percentile(samples: np.ndarray, q: float, *, seed: int, over: np.ndarray | None = None) -> tuple[float, float, float]:
    """Compute a percentile of times, or the ratio of two percentiles, and its 95 % interval by the bootstrap over the rounds.

    Args:
        samples: [rounds] times of a model.
        q: the percentile.
        seed: of the resamples.
        over: [rounds] times of another model in the same rounds, to divide by its percentile.

    Returns:
        (value, lower and upper end of the interval).

    Example:
        >>> percentile(np.array([2.0, 2.0, 2.0]), 50, seed=0, over=np.array([4.0, 4.0, 4.0]))
        (0.5, 0.5, 0.5)
    """
    drawn = np.stack(list(_resamples(len(samples), seed)))
    below = np.ones(1) if over is None else np.percentile(over[drawn], q, axis=1)
    low, high = _interval((np.percentile(samples[drawn], q, axis=1) / below).tolist())
    value = np.percentile(samples, q) / (1.0 if over is None else np.percentile(over, q))
    return float(value), low, high


def rate_ratio(own: np.ndarray, reference: np.ndarray) -> tuple[float, float, float]:
    """Compute the ratio of two throughputs that were measured in turn. There are few rounds, and each is the mean of many
    inferences, so the interval is Student's t on the logarithms of the rounds' ratios.

    Args:
        own, reference: [rounds] rows per second of the two models in the same rounds; at least two rounds.

    Returns:
        (geometric mean of the ratios, lower and upper end of the 95 % interval).

    Example:
        >>> [round(end, 6) for end in rate_ratio(np.array([20.0, 22.0]), np.array([10.0, 11.0]))]
        [2.0, 2.0, 2.0]
    """
    from scipy.special import stdtrit

    logs = np.log(own / reference)
    middle, error = float(logs.mean()), float(logs.std(ddof=1)) / len(logs) ** 0.5
    reach = float(stdtrit(len(logs) - 1, (1 + CONFIDENCE) / 2)) * error
    return float(np.exp(middle)), float(np.exp(middle - reach)), float(np.exp(middle + reach))


def _resamples(count: int, seed: int) -> Iterator[np.ndarray]:
    generator = np.random.default_rng(seed)
    for _ in range(RESAMPLES):
        yield generator.integers(0, count, count)


def _interval(draws: Sequence[float]) -> tuple[float, float]:
    tail = (1 - CONFIDENCE) / 2 * 100
    # A metric can be undefined on a resample, for example if it has one class only. Such draws are left out.
    low, high = np.nanpercentile(np.array(draws, dtype=np.float64), [tail, 100 - tail])
    return float(low), float(high)
