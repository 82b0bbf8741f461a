"""Measurements as data: scores, paired comparisons, latencies, speedups, memory.

Names carry units. Measurements keep their raw samples or confidence intervals, and the precision that the runtime reports.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import numpy as np
from pydantic import Field, computed_field, model_validator

from octobert.core.closeness import ClassChange, Closeness, Crossed, OutputCloseness
from octobert.core.estimate import Estimate, quantile, statistics_of
from octobert.core.frozen import FrozenModel, both_ends
from octobert.core.stored_vectors import VectorType

# A share of equal answers, a mean cosine, or a correlation.
FidelityKind = Literal["share", "cosine", "correlation"]
# Of the bootstrap of an interval.
RESAMPLES = 1000
# Figures that follow from others: they are written for readers of the JSON, and not read back.
_COMPUTED = ("statistics_ms", "rows_per_second", "tokens_per_second")
# Fewer rounds give no interval of 95 % for a median; the gain in speed that they cannot exclude then.
_LEAST_ROUNDS, _ANY_GAIN = 6, 1.05


def _without_computed(raw: Any) -> Any:
    """Data without the figures that are computed from it."""
    if not isinstance(raw, dict):
        return raw
    return {name: value for name, value in raw.items() if name not in _COMPUTED}


class Score(FrozenModel):
    """A metric with its 95 % confidence interval.

    Args:
        metric: its name.
        value: on all rows.
        low: lower end of the interval, as `evaluation.statistics` computes it; None where the metric is undefined on every
            resample.
        high: upper end of the interval, or None.
        rows: evaluation rows.
        chance: the best value on these rows of a model that does not read its input, such as the share of the most frequent
            class; None where the task does not say.
        resamples: that the interval comes from; fewer where a metric of the recipe's own is slow or undefined on some of them.
        order: that the rows seem to number the classes otherwise than the model, as a sentence; empty where nothing says so.
    """

    metric: str
    value: float
    low: float | None
    high: float | None
    rows: int
    chance: float | None = None
    resamples: int = RESAMPLES
    order: str = ""

    _both = model_validator(mode="after")(both_ends)


def score_named(name: str | None, scores: Iterable[Score]) -> Score | None:
    """The score of a metric; the first value of one that has several, which are called `name.key`."""
    return next(
        (
            score
            for score in scores
            if name is not None and (score.metric + ".").startswith(name + ".")
        ),
        None,
    )


class OfCandidate(FrozenModel):
    """A measurement of one model.

    Args:
        candidate: name of the model.
    """

    candidate: str


M = TypeVar("M", bound=OfCandidate)


def first_of(name: str, measurements: Iterable[M]) -> M | None:
    """The first measurement of a model; None where it has none."""
    return next((one for one in measurements if one.candidate == name), None)


class Comparison(OfCandidate):
    """A quantized model compared with a float baseline on the same rows.

    Args:
        candidate: name of the quantized model.
        reference: name of the float baseline.
        metric: name of the metric; None for data without labels.
        difference: metric of the candidate minus metric of the reference.
        low: lower end of the paired 95 % confidence interval of the difference, as `evaluation.statistics` computes it; None
            where the metric is undefined on every resample, as are `high` and the `p_value` of the resamples then.
        high: upper end of that interval.
        p_value: of the hypothesis "no difference": exact McNemar test for accuracy, otherwise from the resamples.
        fidelity_name: what `fidelity` measures, such as agreement.
        fidelity_kind: what it is.
        fidelity: how closely the candidate follows the reference.
        fidelity_chance: `fidelity` of a candidate that always gives the reference's most frequent answer; 1 where the reference
            has only one answer, so that agreement says nothing. None where the task does not say.
        output_error: root mean square difference of the raw outputs.
        differences: every metric of the task → metric of the candidate minus metric of the reference; without those that
            are undefined.
        changed: items with another answer: index, expected answer, answer of the reference, answer of the candidate.
        divergence: mean Kullback-Leibler divergence from the reference's distributions in nats, where the task measures it.
        direction: what the changed items have in common beyond chance, as a sentence; empty where nothing is.
        simulated: the candidate's answers are those of its file on the CPU, because its device is not here.
        probe: how near it is to the reference on texts that nothing was fitted to; None where that was not compared.
        outputs: of a graph of any kind, each of its outputs.
        classes: class by class, the rarest first; empty where no class is rare.
        crossed: rows that cross the task's `threshold`; None where it has none.
    """

    reference: str
    metric: str | None
    difference: float | None
    low: float | None
    high: float | None
    p_value: float | None
    fidelity_name: str
    fidelity_kind: FidelityKind = "share"
    fidelity: float
    output_error: float
    changed: tuple[tuple[int, str, str, str], ...]
    differences: dict[str, Estimate] = Field(default_factory=dict)
    fidelity_chance: float | None = None
    divergence: float | None = None
    direction: str = ""
    simulated: bool = False
    probe: Closeness | None = None
    outputs: tuple[OutputCloseness, ...] = ()
    classes: tuple[ClassChange, ...] = ()
    crossed: Crossed | None = None

    _both = model_validator(mode="after")(both_ends)

    @property
    def drop(self) -> Estimate | None:
        """How far the metric is below that of the reference, with its interval; None where that is not known."""
        value, low, high = self.difference, self.low, self.high
        if value is None or low is None or high is None or math.isnan(value):
            return None
        return Estimate(value=value, low=low, high=high).times(-1)

    @property
    def is_share(self) -> bool:
        """True where `fidelity` is a share of equal answers, and no cosine or correlation."""
        return self.fidelity_kind == "share"


class StoredScore(OfCandidate):
    """The main metric of retrieval in documents whose vectors are stored in a smaller form.

    Args:
        candidate: name of the quantized model.
        type, dimensions: of the form; see `core.stored_vectors`.
        size_bytes: of one vector.
        metric: its name.
        value: of the metric.
        difference: from the float model's vectors in float32; None where there is no interval.
        documents: the model of the documents' vectors: the quantized model, or its float model, whose index stays as it is.
    """

    type: VectorType
    dimensions: int
    size_bytes: int
    metric: str
    value: float
    difference: Estimate | None
    documents: str = ""


@dataclass(frozen=True)
class TimedShape:
    """The shape of a timed batch.

    Args:
        batch: rows.
        sequence: tokens of each row, or `data` for rows of the evaluation data.

    Example:
        >>> str(TimedShape(8, 128)), str(TimedShape(1, "data"))
        ('8 rows of 128 tokens', '1 row of the data')
    """

    batch: int
    sequence: int | str

    def __str__(self) -> str:
        of = "the data" if self.sequence == "data" else f"{self.sequence} tokens"
        return f"{self.batch} row{'s' * (self.batch != 1)} of {of}"


class _AtShape(OfCandidate):
    """A measurement of one model at one shape."""

    batch: int
    sequence: int | str

    @property
    def shape(self) -> TimedShape:
        """Its shape."""
        return TimedShape(self.batch, self.sequence)


S = TypeVar("S", bound=_AtShape)


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


class _Timed(_AtShape):
    """Samples of times, and the figures that are computed from them."""

    samples_ms: tuple[float, ...]

    _stored = model_validator(mode="before")(_without_computed)

    def _whole(self) -> Turn:
        """All samples together."""
        raise NotImplementedError

    @computed_field  # type: ignore[prop-decorator]
    @property
    def statistics_ms(self) -> dict[str, float]:
        """Statistics of the samples, by the names of `STATISTICS`."""
        return statistics_of(self.samples_ms)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def rows_per_second(self) -> float:
        """Rows of all samples per second."""
        whole = self._whole()
        return whole.rows / whole.seconds

    @computed_field  # type: ignore[prop-decorator]
    @property
    def tokens_per_second(self) -> float:
        """Tokens of all samples per second, without padding."""
        whole = self._whole()
        return whole.tokens / whole.seconds


class Latency(_Timed):
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

    rows: int
    tokens: int
    sample_tokens: tuple[int, ...] = ()

    def percentile_ms(self, percent: float) -> float:
        """Return a percentile of the samples.

        Args:
            percent: from 0 to 100.
        """
        return float(np.percentile(self.samples_ms, percent))

    def _whole(self) -> Turn:
        return Turn(seconds=sum(self.samples_ms) / 1000.0, rows=self.rows, tokens=self.tokens)


class Throughput(_Timed):
    """The throughput of one candidate at one shape when inferences run at the same time.

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

    streams: int
    requests: int
    threads: int
    turns: tuple[Turn, ...]

    def _whole(self) -> Turn:
        return Turn(
            seconds=sum(turn.seconds for turn in self.turns),
            rows=sum(turn.rows for turn in self.turns),
            tokens=sum(turn.tokens for turn in self.turns),
        )


class Speedup(_AtShape):
    """How many times as fast as a float model a model is, at one shape: in one inference after another, or in throughput.

    Args:
        candidate: name of the model.
        reference: name of the float model.
        batch: rows of a batch.
        sequence: tokens of a row, or `data` for evaluation rows.
        ratio: median of the ratios of their times in the rounds that timed both (interval by order statistics); of
            throughputs, the geometric mean of the ratios of their rows per second (Student's t on logarithms).
    """

    reference: str
    ratio: Estimate


class Load(FrozenModel):
    """Other work of a machine while models were timed.

    Args:
        cores: number of cores.
        others: cores that other programs used, on average.
        stolen: share of the CPU time that the hypervisor gave to other machines (0 where it is not known).
    """

    cores: int
    others: float
    stolen: float


class Footprint(OfCandidate):
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

    load_ms: float
    size_bytes: int
    peak_memory_bytes: int
    precision: str
    threads: int
    device: str = "CPU"

    @property
    def size_mb(self) -> float:
        """Size in MB."""
        return self.size_bytes / 1e6

    @property
    def peak_memory_mb(self) -> float:
        """Peak memory in MB."""
        return self.peak_memory_bytes / 1e6


class Figures(FrozenModel):
    """What is known of one model of a run.

    Args:
        model: its name: a target, or a float baseline.
        absent: why it cannot run here, or was left out; else empty. Scores of such a target are those of its file on the CPU.
        scores: its metrics.
        calibration_error: expected calibration error (ECE) of its probabilities; None where it has none.
        against_float: compared with its float baseline; None for the model that all others are compared with.
        stored: of retrieval: scores with smaller forms of stored vectors.
        footprint: size, memory and load time; None where it was not timed.
        times: one entry for each timed shape.
        throughputs: the same, of inferences at the same time; empty where the recipe does not ask for them.
        speedups: over every float form that was timed on its runtime, at each shape; those over the baseline first.
        ratios: as `speedups`, of the throughputs.
    """

    model: str
    absent: str = ""
    scores: tuple[Score, ...] = ()
    calibration_error: float | None = None
    against_float: Comparison | None = None
    stored: tuple[StoredScore, ...] = ()
    footprint: Footprint | None = None
    times: tuple[Latency, ...] = ()
    throughputs: tuple[Throughput, ...] = ()
    speedups: tuple[Speedup, ...] = ()
    ratios: tuple[Speedup, ...] = ()

    @model_validator(mode="after")
    def _of_one_model(self) -> Figures:
        one = [each for each in (self.against_float, self.footprint) if each is not None]
        parts = (*one, *self.stored, *self.times, *self.throughputs, *self.speedups, *self.ratios)
        other = next((part.candidate for part in parts if part.candidate != self.model), None)
        if other is not None:
            raise ValueError(f'figures of "{self.model[:60]}" name the model "{other[:60]}"')
        if (self.footprint is None) != (not self.times):
            raise ValueError(f'"{self.model[:60]}" needs both a footprint and times, or none')
        return self


def check_models(models: Sequence[Figures]) -> None:
    """Raise ValueError where the models of a report do not fit each other, as in a file that was edited."""
    names = [figures.model for figures in models]
    if len(set(names)) < len(names):
        raise ValueError("a model is listed twice")
    timed = [figures for figures in models if figures.footprint is not None]
    # Rows without labels give no scores.
    judged = any(figures.scores for figures in models)
    for figures in models:
        compared = figures.against_float
        scored = () if compared is None or not judged else (compared.reference,)
        for name, field in (
            *((name, "scores") for name in scored),
            *((over.reference, "footprint") for over in (*figures.speedups, *figures.ratios)),
        ):
            if not any(each.model == name and getattr(each, field) for each in models):
                raise ValueError(f'figures name the model "{name[:60]}", which has no {field}')
    for figures in timed:
        # A float model that computes what another one computes has no scores of its own.
        unscored = judged and not figures.scores and (figures.against_float or figures.speedups)
        if unscored or any(
            [one.shape for one in getattr(figures, field) if one.samples_ms]
            != [one.shape for one in getattr(timed[0], field)]
            for field in ("times", "throughputs")
        ):
            raise ValueError("not every timed model has scores, and times of the same shapes")


def shapes(measured: Sequence[_AtShape]) -> list[TimedShape]:
    """Return the timed shapes, in order."""
    return list(dict.fromkeys(one.shape for one in measured))


def in_order(measured: Sequence[_AtShape]) -> list[TimedShape]:
    """The timed shapes, rows of the data and small batches first."""
    return sorted(shapes(measured), key=lambda shape: (shape.sequence != "data", shape.batch))


def at_first_shape(measured: Sequence[S]) -> list[S]:
    """What was measured on rows of the data, one at a time where that was done; else at the first shape."""
    first = next(iter(in_order(measured)), None)
    return [one for one in measured if one.shape == first]


def paired_speedup(ours: Latency, theirs: Latency) -> Speedup | None:
    """How fast a model is compared with any other one: the median of the ratios of the rounds, with its interval.

    All models were timed on the same rows in a round, so that the ratios do not vary with the lengths of the rows.

    Args:
        ours: times of the model.
        theirs: of the other one, at the same shape.

    Returns:
        None where no round has timed both.
    """
    ratios = [b / a for a, b in zip(ours.samples_ms, theirs.samples_ms, strict=False) if a > 0]
    if not ratios:
        return None
    ratio = quantile(ratios)
    if len(ratios) < _LEAST_ROUNDS:
        ratio = Estimate(
            value=ratio.value, low=min(ratio.low, 1.0), high=max(ratio.high, _ANY_GAIN)
        )
    return Speedup(
        candidate=ours.candidate,
        reference=theirs.candidate,
        batch=ours.batch,
        sequence=ours.sequence,
        ratio=ratio,
    )
