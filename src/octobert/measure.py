"""Measured figures as data, and the arithmetic that makes them honest: intervals, paired tests, percentiles.

Every figure carries its unit in its name, its raw samples or its interval, and the precision that really ran.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from octobert.plan import Noun
from octobert.task import Metric

RESAMPLES = 1000
CONFIDENCE = 0.95


class Score(Noun):
    """A metric with its 95 % interval (percentile bootstrap over items)."""

    metric: str
    value: float
    low: float
    high: float
    rows: int


class Comparison(Noun):
    """A quantized model against the float model of the same runtime, on the same rows.

    Args:
        candidate, reference: names of the two.
        metric: what was compared; None where the data has no gold.
        difference: metric of candidate minus metric of reference, with its paired 95 % interval.
        p_value: of "no difference": exact McNemar for accuracy, the paired bootstrap centred on zero otherwise.
        fidelity: name and value of how closely the candidate follows the reference.
        output_error: root mean square difference of the raw outputs.
        changed: items that came out otherwise: index, what was expected, what the reference said, what the candidate says.
    """

    candidate: str
    reference: str
    metric: str | None
    difference: float | None
    low: float | None
    high: float | None
    p_value: float | None
    fidelity_name: str
    fidelity: float
    output_error: float
    changed: tuple[tuple[int, str, str, str], ...]


class Latency(Noun):
    """Times of one candidate at one shape.

    Args:
        candidate: its name.
        batch, sequence: rows of a batch; tokens of a row, or `data` for rows of the user's data.
        samples_ms: raw, in the order they were taken.
        rows: rows in all samples together.
        tokens: real tokens in all samples together.
    """

    candidate: str
    batch: int
    sequence: int | str
    samples_ms: tuple[float, ...]
    rows: int
    tokens: int

    def percentile_ms(self, percent: float) -> float:
        """Percentile of the samples."""
        return float(np.percentile(self.samples_ms, percent))

    @property
    def rows_per_second(self) -> float:
        """Throughput of this candidate run alone, one batch after another."""
        return self.rows / (sum(self.samples_ms) / 1000.0)


class Footprint(Noun):
    """What a candidate costs beside time, measured in a process of its own.

    Args:
        load_ms: from opening the file to being ready.
        size_bytes: of the files it opens.
        peak_memory_bytes: of the whole process, after all shapes were run.
        precision: arithmetic of its float parts, as the runtime reports it.
    """

    candidate: str
    load_ms: float
    size_bytes: int
    peak_memory_bytes: int
    precision: str
    threads: int


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
