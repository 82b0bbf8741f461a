"""Interleaved timing: every candidate has its own process, and they take turns, so that changes of the machine hit all alike.

Each process opens its model once and then answers requests; only one works at a time. A timing request is one untimed run,
which restores caches and clock speed after another candidate's turn, and one timed run of the same feeds. The order of the
candidates changes in every round.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import psutil

from octobert.config.measuring import Benchmark
from octobert.core import budget
from octobert.core.errors import ModelError
from octobert.core.estimate import Estimate, geometric_mean, quantile
from octobert.core.measurements import Footprint, Latency, Load, Speedup, Throughput, TimedShape
from octobert.core.session import Feeds
from octobert.data.encoded import Encoded, feeds_of, size_of
from octobert.evaluation.candidates import Candidate, candidate_of, float_of
from octobert.evaluation.interleaving import Stays, interleave
from octobert.evaluation.worker import OnProgress, working
from octobert.inference.opened import FinishedModel

# Time limit of a workload.
SECONDS_PER_SHAPE = 60.0
# Tokens of the row that a file is tried on.
_TRIED = 8


@dataclass(frozen=True)
class Workload:
    """The batches that are timed; the same for every candidate.

    Args:
        batch: rows of a batch.
        sequence: tokens of a row, or `data` for rows of the user's data.
        rounds: `rounds[r]` are the feeds of round r, arrays of shape [batch, sequence]. Later rounds start over.
    """

    batch: int
    sequence: int | str
    rounds: tuple[Feeds, ...]

    @property
    def shape(self) -> TimedShape:
        """Their shape."""
        return TimedShape(self.batch, self.sequence)

    def feeds(self, number: int) -> Feeds:
        """Return the feeds of a round."""
        return self.rounds[number % len(self.rounds)]


class Timed(NamedTuple):
    """What was measured of some candidates.

    Args:
        latencies: of each candidate and workload.
        footprints: of each candidate.
        load: what else the machine did meanwhile.
    """

    latencies: tuple[Latency, ...]
    footprints: tuple[Footprint, ...]
    load: Load


def random_workload(batch: int, sequence: int, vocabulary: int, seed: int) -> Workload:
    """Return a workload of random token ids without padding.

    Args:
        batch: rows.
        sequence: tokens of a row.
        vocabulary: ids are below it.
        seed: of the ids.

    Example:
        >>> random_workload(2, 8, 100, seed=0).rounds[0]["input_ids"].shape
        (2, 8)
    """
    budget.check_batch(batch, sequence, where="benchmark")
    ids = np.random.default_rng(seed).integers(0, vocabulary, (batch, sequence), dtype=np.int64)
    feeds = {
        "input_ids": ids,
        "attention_mask": np.ones_like(ids),
        "token_type_ids": np.zeros_like(ids),
    }
    return Workload(batch, sequence, (feeds,))


def workloads_of(
    settings: Benchmark, rows: Sequence[Encoded], pad_id: int, vocabulary: int, seed: int
) -> list[Workload]:
    """Return the workloads that the settings ask for, one for each batch size and length.

    Args:
        settings: batch sizes and lengths. The length `data` takes rows of the user's data, other rows in each round.
        rows: tokenized rows of the user's data.
        pad_id: id of the padding token.
        vocabulary: random ids are below it.
        seed: of the random ids.
    """
    workloads: list[Workload] = []
    for batch in settings.batch:
        for sequence in settings.sequence:
            if sequence != "data":
                workloads.append(random_workload(batch, int(sequence), vocabulary, seed))
                continue
            # Data with fewer rows than a batch is one batch of all rows.
            groups = [rows[i : i + batch] for i in range(0, len(rows) - batch + 1, batch)] or [rows]
            workloads.append(Workload(batch, "data", tuple(feeds_of(g, pad_id) for g in groups)))
    return workloads


def fit_lengths(settings: Benchmark, longest: int) -> Benchmark:
    """Return the settings with default lengths cut to the model's limit. Lengths that the user chose are not changed.

    Args:
        longest: the model's limit in tokens.
    """
    if "sequence" in settings.model_fields_set:
        return settings
    fitting = tuple(s if s == "data" else min(int(s), longest) for s in settings.sequence)
    return settings.replaced(sequence=fitting)


def check_lengths(settings: Benchmark, longest: int) -> None:
    """Check that the model has positions for every length of the settings.

    Args:
        longest: the model's limit in tokens.

    Raises:
        ModelError: a length is above the limit.
    """
    too_long = [s for s in settings.sequence if s != "data" and int(s) > longest]
    if too_long:
        raise ModelError(
            "the sequence is longer than the model allows",
            where="benchmark.sequence",
            got=str(too_long[0]),
            expected=f"at most {longest}",
            fix="remove it",
        )


def measure(
    candidates: Sequence[Candidate],
    workloads: Sequence[Workload],
    *,
    repeats: int,
    threads: int,
    seconds_per_shape: float = SECONDS_PER_SHAPE,
    warmup: int = 0,
    pause_ms: float = 10,
    stays: Stays[float] | None = None,
    on_progress: OnProgress = lambda *_: None,
) -> Timed:
    """Time all candidates on all workloads, interleaved.

    Args:
        candidates: what to time.
        workloads: what each of them runs.
        repeats: rounds of each workload. If they would take longer than `seconds_per_shape`, fewer, but at least five.
        threads: threads of one inference; 0 lets each runtime choose.
        seconds_per_shape: time limit of each workload, in seconds.
        warmup: untimed runs of each candidate and workload before the first round.
        pause_ms: before each run of a candidate.
        stays: says which candidates are timed in more rounds of a workload; None for all.
        on_progress: called with what is timed, the rounds done, and all rounds.

    Raises:
        TargetError: a candidate cannot be opened, or its process died.
    """
    latencies: list[Latency] = []
    with working(candidates, threads, pause_ms=pause_ms, on_progress=on_progress) as workers:
        before = CpuTimes.now()
        for workload in workloads:
            for worker in workers if warmup else ():
                worker.ask("warm", (workload.rounds, warmup, 1, math.inf))
            samples = interleave(
                workers,
                lambda worker, number: worker.ask("time", workload.feeds(number)),  # noqa: B023  # called at once
                repeats,
                shuffled=True,
                seconds=seconds_per_shape,
                stays=stays,
                on_round=partial(on_progress, f"timing {workload.shape}"),
            )
            latencies += [
                _latency(worker.candidate.title, workload, samples_ms)
                for worker, samples_ms in zip(workers, samples, strict=True)
            ]
        load = before.load_until(CpuTimes.now())
        footprints = [
            Footprint(
                candidate=worker.candidate.title,
                load_ms=worker.facts.load_ms,
                size_bytes=worker.candidate.size_bytes,
                peak_memory_bytes=worker.ask("peak", None),
                precision=worker.facts.precision,
                threads=worker.facts.threads,
                device=worker.ask("device", None) or worker.candidate.device,
            )
            for worker in workers
        ]
    return Timed(tuple(latencies), tuple(footprints), load)


def try_out(model: FinishedModel) -> None:
    """Run a model of unknown origin, and its float model, on one row each, in processes with limits of time and memory.

    Raises:
        TargetError: one of them does not run there.
    """
    rows = random_workload(1, min(_TRIED, model.longest or _TRIED), 1, seed=0).rounds
    tried = [one for one in (candidate_of(model), float_of(model)) if one is not None]
    with working(tried, 0, pause_ms=0, limited=True) as workers:
        for worker in workers:
            worker.ask("warm", (rows, 1, 1, math.inf))


def speedups(
    measured: Sequence[Latency | Throughput], rivals: Mapping[str, Sequence[str]]
) -> tuple[Speedup, ...]:
    """Compare models with float models, shape by shape.

    Args:
        measured: latencies or throughputs of all models, from one interleaved run.
        rivals: model → the float models that it is compared with.
    """
    timings = {(timing.candidate, timing.shape): timing for timing in measured}
    return tuple(
        Speedup(
            candidate=timing.candidate,
            reference=rival,
            batch=timing.batch,
            sequence=timing.sequence,
            ratio=_ratio(timing, timings[rival, timing.shape]),
        )
        for timing in measured
        for rival in rivals.get(timing.candidate, ())
    )


def _ratio(timing: Latency | Throughput, reference: Latency | Throughput) -> Estimate:
    """How many times as fast a model is as another one, of the ratios of the rounds in which both had a turn."""
    if isinstance(timing, Throughput) and isinstance(reference, Throughput):
        rates = [
            np.array([turn.rows / turn.seconds for turn in throughput.turns])
            for throughput in (timing, reference)
        ]
        return geometric_mean((rates[0] / rates[1]).tolist())
    ratios = np.array(reference.samples_ms) / np.array(timing.samples_ms)
    return quantile(ratios.tolist())


@dataclass(frozen=True)
class CpuTimes:
    """Seconds of CPU time up to now: of all programs, of this process with those that it started, and of the hypervisor."""

    at: float
    busy: float
    process_tree: float
    stolen: float

    @staticmethod
    def now() -> CpuTimes:
        times = psutil.cpu_times()
        process = psutil.Process()
        used = [member.cpu_times() for member in (process, *process.children(recursive=True))]
        return CpuTimes(
            at=time.perf_counter(),
            busy=times.user + times.system + getattr(times, "nice", 0.0),
            process_tree=sum(cpu_times.user + cpu_times.system for cpu_times in used),
            stolen=getattr(times, "steal", 0.0),
        )

    def load_until(self, end: CpuTimes) -> Load:
        cores, seconds = psutil.cpu_count() or 1, max(end.at - self.at, 1e-3)
        others = ((end.busy - self.busy) - (end.process_tree - self.process_tree)) / seconds
        return Load(
            cores=cores,
            others=max(0.0, others),
            stolen=max(0.0, end.stolen - self.stolen) / (seconds * cores),
        )


def _latency(candidate: str, workload: Workload, samples_ms: Sequence[float]) -> Latency:
    """The record of a candidate's samples. One that was hopelessly slow has those of the first rounds."""
    rows, tokens = np.array([size_of(workload.feeds(n)) for n in range(len(samples_ms))]).T.tolist()
    return Latency(
        candidate=candidate,
        batch=workload.batch,
        sequence=workload.sequence,
        samples_ms=tuple(samples_ms),
        rows=sum(rows),
        tokens=sum(tokens),
        sample_tokens=tuple(tokens) if len(workload.rounds) > 1 else (),
    )
