"""Statistics of scores and times: intervals of metrics and of paired differences, McNemar's test, speedups, throughput ratios.

Intervals of metrics come from the Bayesian bootstrap (Rubin 1981) with one more item, the unseen one: every item has an
exponential weight, and each end counts the unseen item as bad for that end as it can be. Without it, rows on which nothing went
wrong would prove that nothing can: for 40 rows without a mistake, the ordinary bootstrap gives the interval [1, 1]. For a share
this is the exact interval of Clopper & Pearson 1934, for other means of bounded values the bound of Gaffke 2005 (Learned-Miller
& Thomas 2020). `benchmarks/verdicts.py` simulates how often an end is on the wrong side.

Other sources: McNemar 1947; Dixon & Mood 1946 (sign test); Efron & Tibshirani 1993.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator

import numpy as np

from octobert.core.errors import OctobertError
from octobert.core.estimate import Estimate
from octobert.core.measurements import RESAMPLES, Score
from octobert.tasks import ExternalMetric, Extremes, Metric

# A metric that code of others computes may be slow: then fewer resamples, but at least so many.
SECONDS, LEAST = 10.0, 20
# Fewer resamples of a difference say too little about its ends.
_FEWEST = 200
CONFIDENCE = 0.95
# Kinds of unseen items that are tried. Of more, such as one for each sentence, one is drawn.
_FEW_KINDS = 20
# How often a right order is called wrong; the share of rows that another must make right in addition; the most classes.
ORDER_ERROR, _FAR, _MOST_CLASSES = 0.001, 0.1, 1000
# A weight is a number of copies of an item. With so many copies in all, rounding a weight does not matter.
_COPIES = 2000

# The items of one model, or of two models on the same rows.
_Items = tuple[np.ndarray, ...]


def scores_of(
    name: str,
    metric: Metric,
    items: np.ndarray,
    extremes: Extremes,
    *,
    seed: int,
    chance: float | None = None,
) -> list[Score]:
    """Compute a metric and its 95 % interval; of one that code of others computes, every value that it has.

    Such a metric is computed for at least `LEAST` resamples, and for no more once `SECONDS` have passed. The score says for how
    many it was. Resamples on which it fails or is undefined are left out.

    Args:
        name: of the metric.
        metric: function from items to a number.
        items: [items, …] what the metric reads, one entry per item.
        extremes: of the task.
        seed: of the resamples.
        chance: value of a model that does not read its input.

    Returns:
        The scores, without values that are undefined on these items.

    Example:
        >>> accuracy = lambda items: float(items.mean())
        >>> found = scores_of("accuracy", accuracy, np.ones(40), (np.zeros(40), np.ones(40)), seed=0)[0]
        >>> found.value, round(found.low, 2), found.high  # Clopper and Pearson: 0.912 to 1
        (1.0, 0.91, 1.0)
    """
    values = metric.values(items) if isinstance(metric, ExternalMetric) else {name: metric(items)}
    ends = []
    for unseen, sign in zip(extremes, (1, -1), strict=True):
        ends.append(list(_values(name, metric, (items,), (unseen,), sign, seed)))
    scores = []
    for key, value in values.items():
        if np.isfinite(value):
            below, above = (
                np.array([drawn[0].get(key, np.nan) for drawn in draws]) for draws in ends
            )
            low, high = _interval(below, above)
            count = min(int(np.isfinite(draws).sum()) for draws in (below, above))
            scores.append(
                Score(
                    metric=key,
                    value=value,
                    low=low,
                    high=high,
                    rows=len(items),
                    chance=chance,
                    resamples=count,
                )
            )
    return scores


def paired(
    metric: Metric, ours: np.ndarray, theirs: np.ndarray, extremes: Extremes, *, seed: int
) -> tuple[float, float | None, float | None, float | None]:
    """Compute the difference of a metric between two models on the same items.

    Args:
        metric: function from items to a number.
        ours, theirs: [items, …] of the two models, in the same order.
        extremes: of the task.
        seed: of the resamples.

    Returns:
        (ours minus theirs, lower and upper end of the 95 % interval, p-value of "no difference"). Where the metric is undefined
        on every resample, or too slow for enough of them, there is neither an interval nor a p-value.

    Example:
        >>> accuracy, same = lambda items: float(items.mean()), np.ones(40)
        >>> [round(end, 2) for end in paired(accuracy, same, same, (np.zeros(40), np.ones(40)), seed=0)]
        [0.0, -0.09, 0.09, 1.0]
    """
    difference = metric(ours) - metric(theirs)
    # The unseen item may be one that only the other model answers, or only ours.
    ends = []
    for unseen, sign in ((extremes, 1), (extremes[::-1], -1)):
        drawn = _values("", metric, (ours, theirs), unseen, sign, seed)
        firsts = ([next(iter(values.values()), np.nan) for values in both] for both in drawn)
        ends.append(np.array([value - other for value, other in firsts]))
    low, high = _interval(*ends)
    defined = [draws[np.isfinite(draws)] for draws in ends]
    if low is None or min(map(len, defined)) < _FEWEST:
        return difference, None, None, None
    against = defined[0] <= 0 if difference > 0 else defined[1] >= 0
    p_value = min(1.0, 2 * float(against.sum() + 1) / (len(against) + 1))
    return difference, low, high, p_value if difference else 1.0


def _worst(metric: Metric, items: _Items, unseen: _Items, sign: int) -> _Items:
    """Select the unseen item, of a few kinds such as one of each class, that moves a metric or a difference most.

    Args:
        sign: 1 for the kind that lowers it most, −1 for the one that raises it most.
    """
    kinds = len(unseen[0])
    if kinds > _FEW_KINDS or isinstance(metric, ExternalMetric):
        return unseen
    moved = []
    for kind in range(kinds):
        value, *other = (
            metric(np.concatenate([model_items, new[[kind]]]))
            for model_items, new in zip(items, unseen, strict=True)
        )
        moved.append(sign * (value - (other[0] if other else 0.0)))
    worst = int(np.argmin(np.nan_to_num(moved)))
    return tuple(new[[worst]] for new in unseen)


def _values(
    name: str, metric: Metric, items: _Items, unseen: _Items, sign: int, seed: int
) -> Iterator[tuple[dict[str, float], ...]]:
    """The values of a metric on resamples of the items of each model; none where code of others fails.

    Args:
        unseen: [kinds, …] of each model: the one that moves the metric most, or one of many by chance, is the one more item.
        sign: of the end of the interval; see `_worst`.
    """
    started = time.perf_counter()
    for number, drawn in enumerate(_resamples(items, _worst(metric, items, unseen, sign), seed)):
        if not isinstance(metric, ExternalMetric):
            yield tuple({name: metric(model_items)} for model_items in drawn)
            continue
        if number >= LEAST and time.perf_counter() - started > SECONDS / 2:
            return
        try:
            yield tuple(metric.values(model_items) for model_items in drawn)
        except OctobertError:
            # A resample may lack a class that the metric needs.
            yield tuple({} for _ in drawn)


def _resamples(items: _Items, unseen: _Items, seed: int) -> Iterator[_Items]:
    """Items with random weights, each as many times as its weight says, with one unseen item."""
    generator, count = np.random.default_rng(seed), len(items[0])
    copies = -(-_COPIES // count)
    for _ in range(RESAMPLES):
        # Rounded up or down at random, so that the mean stays.
        weights = np.floor(
            generator.exponential(copies, count + 1) + generator.random(count + 1)
        ).astype(np.int64)
        drawn, one = (
            np.repeat(np.arange(count), weights[:-1]),
            np.full(weights[-1], generator.integers(len(unseen[0]))),
        )
        yield tuple(
            np.concatenate([model_items[drawn], other[one]])
            for model_items, other in zip(items, unseen, strict=True)
        )


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


def reordered(items: np.ndarray, classes: int) -> tuple[int, ...]:
    """Return the class of the rows that each class of a model is, if its answers fit the rows far better in another order.

    The order is the best of all (an assignment problem). It is far better if it makes a tenth of the rows more right than the
    present order, and than the most frequent class alone. Both must be beyond chance: the sign test, with Hoeffding's bound
    for its tail, at `ORDER_ERROR` divided by the number of orders.

    Args:
        items: [items, 2] predicted and right classes.
        classes: how many there are.

    Returns:
        The order; empty where the present one fits as well, with an error of at most `ORDER_ERROR`.

    Example:
        >>> reordered(np.array([[0, 1], [1, 2], [2, 0]] * 20), 3)
        (1, 2, 0)
    """
    from scipy.optimize import linear_sum_assignment

    if classes > _MOST_CLASSES:
        return ()
    predicted, right = items.astype(np.int64).T
    counts = np.zeros((classes, classes))
    np.add.at(counts, (predicted, right), 1)
    # Of equally good orders the one that changes least.
    _, order = linear_sum_assignment(counts + np.eye(classes) / (classes + 1), maximize=True)
    moved = order[predicted] == right
    for rival in (predicted == right, right == counts.sum(axis=0).argmax()):
        differ, more = np.sum(moved != rival), np.sum(moved) - np.sum(rival)
        doubt = math.lgamma(classes + 1) - math.log(ORDER_ERROR)
        if more < _FAR * len(items) or more**2 < 2 * differ * doubt:
            return ()
    return tuple(order.tolist())


def percentile(
    samples: np.ndarray, q: float, *, seed: int, over: np.ndarray | None = None
) -> Estimate:
    """Compute a percentile of times, or the ratio of two percentiles, with its 95 % interval by the bootstrap over the rounds.

    Args:
        samples: [rounds] times of a model.
        q: the percentile.
        seed: of the resamples.
        over: [rounds] times of another model in the same rounds, to divide by its percentile.

    Example:
        >>> percentile(np.array([2.0, 2.0, 2.0]), 50, seed=0, over=np.array([4.0, 4.0, 4.0]))
        Estimate(value=0.5, low=0.5, high=0.5)
    """
    drawn = np.random.default_rng(seed).integers(0, len(samples), (RESAMPLES, len(samples)))
    below = np.ones(1) if over is None else np.percentile(over[drawn], q, axis=1)
    tail = (1 - CONFIDENCE) / 2 * 100
    low, high = np.percentile(
        np.percentile(samples[drawn], q, axis=1) / below, [tail, 100 - tail]
    ).tolist()
    value = np.percentile(samples, q) / (1.0 if over is None else np.percentile(over, q))
    return Estimate(value=float(value), low=low, high=high)


def _interval(below: np.ndarray, above: np.ndarray) -> tuple[float | None, float | None]:
    """The lower end from one set of resamples, the upper end from another; undefined ones are left out."""
    defined = [draws[np.isfinite(draws)] for draws in (below, above)]
    if not all(map(len, defined)):
        return None, None
    tail = (1 - CONFIDENCE) / 2 * 100
    return float(np.percentile(defined[0], tail)), float(np.percentile(defined[1], 100 - tail))
