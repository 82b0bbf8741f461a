"""Measurements as data: scores, paired comparisons, latencies, speedups, memory.

Names carry units. Measurements keep their raw samples or confidence intervals, and the precision that the runtime reports.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

import numpy as np
from pydantic import computed_field, model_validator

from octobert.core.frozen import FrozenModel

# Of the bootstrap of an interval.
RESAMPLES = 1000
# Statistics of times, from the fastest to the slowest; p999 is the percentile 99.9.
STATISTICS = ("min", "avg", "p50", "p75", "p90", "p95", "p99", "p999", "max")
_PERCENTILES = {"p50": 50.0, "p75": 75.0, "p90": 90.0, "p95": 95.0, "p99": 99.0, "p999": 99.9}
# Figures that follow from others: they are written for readers of the JSON, and not read back.
_COMPUTED = ("statistics_ms", "rows_per_second", "tokens_per_second")


def statistics_of(samples: Sequence[float]) -> dict[str, float]:
    """Return every statistic of `STATISTICS` by name.

    Example:
        >>> [f"{name} {value:.1f}" for name, value in statistics_of([1.0, 2.0, 6.0]).items()][:3]
        ['min 1.0', 'avg 3.0', 'p50 2.0']
    """
    array = np.asarray(samples, dtype=np.float64)
    percentiles = dict(zip(_PERCENTILES, np.percentile(array, list(_PERCENTILES.values())).tolist(), strict=True))
    return {"min": float(array.min()), "avg": float(array.mean()), **percentiles, "max": float(array.max())}


def _without_computed(raw: Any) -> Any:
    """Data without the figures that are computed from it."""
    return {name: value for name, value in raw.items() if name not in _COMPUTED} if isinstance(raw, dict) else raw


class Score(FrozenModel):
    """A metric with its 95 % confidence interval.

    Args:
        metric: its name.
        value: on all rows.
        low: lower end of the interval (percentile bootstrap over items); None where the metric is undefined on every resample.
        high: upper end of the interval, or None.
        rows: evaluation rows.
        chance: the best value on these rows of a model that does not read its input, such as the share of the most frequent
            class; None where the task does not say.
        resamples: that the interval comes from; fewer where a metric of the recipe's own is slow or undefined on some of them.
    """

    metric: str
    value: float
    low: float | None
    high: float | None
    rows: int
    chance: float | None = None
    resamples: int = RESAMPLES


def score_named(name: str | None, scores: Iterable[Score]) -> Score | None:
    """The score of a metric; the first value of one that has several, which are called `name.key`."""
    return next((score for score in scores if name is not None and (score.metric + ".").startswith(name + ".")), None)


class Comparison(FrozenModel):
    """A quantized model compared with a float baseline on the same rows.

    Args:
        candidate: name of the quantized model.
        reference: name of the float baseline.
        metric: name of the metric; None for data without labels.
        difference: metric of the candidate minus metric of the reference.
        low: lower end of the paired 95 % confidence interval of the difference; None where the metric is undefined on every
            resample, as are `high` and the bootstrap's `p_value` then.
        high: upper end of that interval.
        p_value: of the hypothesis "no difference": exact McNemar test for accuracy, otherwise the paired bootstrap.
        fidelity_name: what `fidelity` measures, such as agreement.
        fidelity: how closely the candidate follows the reference.
        fidelity_chance: `fidelity` of a candidate that always gives the reference's most frequent answer; 1 where the reference
            has only one answer, so that agreement says nothing. None where the task does not say.
        output_error: root mean square difference of the raw outputs.
        changed: items with another answer: index, expected answer, answer of the reference, answer of the candidate.
        divergence: mean Kullback-Leibler divergence from the reference's distributions in nats, where the task measures it.
        direction: what the changed items have in common beyond chance, as a sentence; empty where nothing is.
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
    fidelity_chance: float | None = None
    divergence: float | None = None
    direction: str = ""


class Latency(FrozenModel):
    """Latencies of one candidate at one shape.

    Args:
        candidate: its name.
        batch: rows of a batch.
        sequence: tokens of a row, or `data` for evaluation rows.
        samples_ms: raw samples in the order of measurement.
        rows: rows of all samples together.
        tokens: tokens of all samples together, without padding.
        sample_tokens: tokens of each sample, without padding; empty where all are alike.
    """

    candidate: str
    batch: int
    sequence: int | str
    samples_ms: tuple[float, ...]
    rows: int
    tokens: int
    sample_tokens: tuple[int, ...] = ()

    _stored = model_validator(mode="before")(_without_computed)

    def percentile_ms(self, percent: float) -> float:
        """Return a percentile of the samples.

        Args:
            percent: from 0 to 100.
        """
        return float(np.percentile(self.samples_ms, percent))

    @computed_field  # type: ignore[prop-decorator]
    @property
    def statistics_ms(self) -> dict[str, float]:
        """Statistics of the samples, by the names of `STATISTICS`."""
        return statistics_of(self.samples_ms)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def rows_per_second(self) -> float:
        """Rows per second of one batch after another."""
        return self.rows / (sum(self.samples_ms) / 1000.0)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def tokens_per_second(self) -> float:
        """Tokens per second of one batch after another, without padding."""
        return self.tokens / (sum(self.samples_ms) / 1000.0)


class Turn(FrozenModel):
    """One turn of a candidate in which inferences ran without a pause.

    Args:
        seconds: from the start of the first inference to the end of the last.
        rows: rows of all inferences together.
        tokens: tokens of all inferences together, without padding.
    """

    seconds: float
    rows: int
    tokens: int


class Throughput(FrozenModel):
    """What one candidate does at one shape when inferences run at the same time.

    Args:
        candidate: its name.
        batch: rows of a batch.
        sequence: tokens of a row, or `data` for evaluation rows.
        streams: inferences that the runtime runs at the same time.
        requests: inferences in flight; those above `streams` wait.
        threads: threads of one inference.
        turns: the candidate's turns, in order.
        samples_ms: time of each inference from its request to its result, in the order of the turns.
    """

    candidate: str
    batch: int
    sequence: int | str
    streams: int
    requests: int
    threads: int
    turns: tuple[Turn, ...]
    samples_ms: tuple[float, ...]

    _stored = model_validator(mode="before")(_without_computed)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def statistics_ms(self) -> dict[str, float]:
        """Statistics of the samples, by the names of `STATISTICS`."""
        return statistics_of(self.samples_ms)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def rows_per_second(self) -> float:
        """Rows of all turns per second."""
        return sum(turn.rows for turn in self.turns) / sum(turn.seconds for turn in self.turns)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def tokens_per_second(self) -> float:
        """Tokens of all turns per second, without padding."""
        return sum(turn.tokens for turn in self.turns) / sum(turn.seconds for turn in self.turns)


class Speedup(FrozenModel):
    """How many times as fast as a float model a model is, at one shape: in one inference after another, or in throughput.

    Args:
        candidate: name of the model.
        reference: name of the float model.
        batch: rows of a batch.
        sequence: tokens of a row, or `data` for evaluation rows.
        ratio: median time of the reference divided by the median time of the candidate; of throughputs, the geometric mean
            of the ratios of their rows per second in each round.
        low: lower end of the 95 % confidence interval of the ratio over the rounds that timed both (bootstrap; of throughputs,
            Student's t on logarithms).
        high: upper end of that interval.
    """

    candidate: str
    reference: str
    batch: int
    sequence: int | str
    ratio: float
    low: float
    high: float


class SpeedGoal(FrozenModel):
    """Whether a target is as much faster than its float baseline as a recipe wants.

    Args:
        target: its name.
        min_speedup: the goal.
        state: `met` if the intervals of all timed shapes are above the goal, `missed` if one of them is below it, otherwise
            `not clear`; `not measured` where the target cannot run.
        slowest: the smallest of the speedups; None where none was measured.
    """

    target: str
    min_speedup: float
    state: Literal["met", "missed", "not clear", "not measured"]
    slowest: Speedup | None = None


class Load(FrozenModel):
    """What else a machine did while models were timed.

    Args:
        cores: number of cores.
        others: cores that other programs used, on average.
        stolen: share of the CPU time that the hypervisor gave to other machines (0 where it is not known).
    """

    cores: int
    others: float
    stolen: float


class Footprint(FrozenModel):
    """Load time, size and memory of a candidate, measured in a process of its own.

    Args:
        candidate: its name.
        load_ms: time to open the model.
        size_bytes: size of the files that are opened.
        peak_memory_bytes: peak memory of the process after it has run all shapes.
        precision: precision of the float operators, as the runtime reports it.
        threads: threads of one inference.
        device: what it ran on, such as `CPU` or `NVIDIA GPU`.
    """

    candidate: str
    load_ms: float
    size_bytes: int
    peak_memory_bytes: int
    precision: str
    threads: int
    device: str = "CPU"
