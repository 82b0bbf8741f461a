"""Statistics of scores: bootstrap intervals, paired differences, McNemar's test."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from octobert.core.measurements import Score
from octobert.tasks._task import Metric

RESAMPLES = 1000
CONFIDENCE = 0.95


def score(name: str, metric: Metric, items: np.ndarray, *, seed: int) -> Score | None:
    """A metric and its bootstrap interval; None where it is not defined on these items."""
    value = metric(items)
    if not np.isfinite(value):
        return None
    low, high = _interval([metric(items[i]) for i in _resamples(len(items), seed)])
    return Score(metric=name, value=value, low=low, high=high, rows=len(items))


def paired(metric: Metric, ours: np.ndarray, theirs: np.ndarray, *, seed: int) -> tuple[float, float, float, float]:
    """Difference of a metric on the same items: (difference, low, high, p-value)."""
    difference = metric(ours) - metric(theirs)
    draws = [metric(ours[i]) - metric(theirs[i]) for i in _resamples(len(ours), seed)]
    low, high = _interval(draws)
    defined = np.array(draws)[np.isfinite(draws)]
    beyond = np.sum(np.abs(defined - defined.mean()) >= abs(difference) - 1e-12)
    p_value = float((beyond + 1) / (len(defined) + 1))
    return difference, low, high, p_value


def mcnemar(ours: np.ndarray, theirs: np.ndarray) -> float:
    """Exact two-sided McNemar test that two classifiers are right equally often on the same rows (McNemar 1947).

    Args:
        ours, theirs: [items] whether each was right.
    """
    from scipy.stats import binomtest

    right, left = int(np.sum(ours & ~theirs)), int(np.sum(~ours & theirs))
    return 1.0 if right + left == 0 else float(binomtest(right, right + left, 0.5).pvalue)


def _resamples(count: int, seed: int) -> Iterator[np.ndarray]:
    generator = np.random.default_rng(seed)
    for _ in range(RESAMPLES):
        yield generator.integers(0, count, count)


def _interval(draws: Sequence[float]) -> tuple[float, float]:
    tail = (1 - CONFIDENCE) / 2 * 100
    # A resample can leave a metric undefined (one class only): such draws say nothing.
    low, high = np.nanpercentile(np.array(draws, dtype=np.float64), [tail, 100 - tail])
    return float(low), float(high)
