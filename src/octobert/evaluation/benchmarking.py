"""A benchmark: latencies, and with the goal `throughput` inferences at the same time, of the same candidates and workloads.

For throughput, too, each candidate has its own process, and they take turns of some seconds. The order is turned round in every
round (A B, B A, …), so that a machine that becomes faster or slower hits all alike, and ratios are those of turns of the same
round.
"""

from __future__ import annotations

import datetime
import itertools
import math
from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
from pydantic import Field

from octobert.config.measuring import Benchmark
from octobert.core import environment
from octobert.core.environment import Environment
from octobert.core.frozen import Row, Tabular
from octobert.core.measurements import (
    Figures,
    Footprint,
    Latency,
    Load,
    M,
    Speedup,
    Throughput,
    Turn,
)
from octobert.data.encoded import size_of
from octobert.evaluation import latency
from octobert.evaluation.candidates import Candidate
from octobert.evaluation.interleaving import Stays, interleave, until_narrow
from octobert.evaluation.latency import CpuTimes, Workload
from octobert.evaluation.worker import OnProgress, Saturated, Worker, working

# Rounds of a benchmark that ends by time.
_MANY = 10**9


class BenchmarkResult(Tabular):
    """Times of models, measured in turn. Tokens are counted without padding.

    Args:
        latencies: One entry for each model and shape: one inference after another.
        footprints: Size, memory and load time of each model.
        speedups: Of each quantized model, compared with its float model in every precision that was timed; the first is its
            baseline.
        throughputs: One entry for each model and shape: inferences at the same time. Empty for the goal `latency`.
        ratios: As `speedups`, of the throughputs.
        precisions: Model → arithmetic of its operators, such as `int8 + f32`; float baselines are left out.
        load: What else the machine did meanwhile.
        environment: The machine and the versions of the runtimes.
        date: When it was measured, in UTC.
        settings: What was asked for.
    """

    latencies: tuple[Latency, ...]
    footprints: tuple[Footprint, ...]
    speedups: tuple[Speedup, ...]
    throughputs: tuple[Throughput, ...] = ()
    ratios: tuple[Speedup, ...] = ()
    precisions: dict[str, str] = Field(default_factory=dict)
    load: Load
    environment: Environment
    date: datetime.date
    settings: Benchmark

    def figures(self) -> tuple[Figures, ...]:
        """What was measured of each model."""

        def own(name: str, measured: Sequence[M]) -> tuple[M, ...]:
            return tuple(one for one in measured if one.candidate == name)

        return tuple(
            Figures(
                model=(name := footprint.candidate),
                footprint=footprint,
                times=own(name, self.latencies),
                throughputs=own(name, self.throughputs),
                speedups=own(name, self.speedups),
                ratios=own(name, self.ratios),
            )
            for footprint in self.footprints
        )

    def to_rows(self) -> list[Row]:
        """One row for each model, shape and number of inferences at the same time; times in milliseconds."""
        precision = {
            footprint.candidate: footprint.precision for footprint in self.footprints
        } | self.precisions
        measured: list[Latency | Throughput] = [*self.latencies, *self.throughputs]
        return [
            {
                "model": timed.candidate,
                "precision": precision[timed.candidate],
                "batch": timed.batch,
                "sequence": timed.sequence,
                "streams": timed.streams if isinstance(timed, Throughput) else 1,
                **{f"{name}_ms": value for name, value in timed.statistics_ms.items()},
                "rows_per_second": timed.rows_per_second,
                "tokens_per_second": timed.tokens_per_second,
            }
            for timed in measured
        ]


def benchmark(
    candidates: Sequence[Candidate],
    workloads: Sequence[Workload],
    settings: Benchmark,
    rivals: Mapping[str, Sequence[str]],
    *,
    seconds_per_shape: float = latency.SECONDS_PER_SHAPE,
    stays: Stays[float] | None = None,
    on_progress: OnProgress = lambda *_: None,
) -> BenchmarkResult:
    """Time candidates.

    Args:
        candidates: what to time.
        workloads: what each of them runs.
        settings: of the benchmark; the shapes are those of `workloads`.
        rivals: quantized model → the float models that it is compared with.
        seconds_per_shape, stays: of latencies, as of `latency.measure`; `settings.seconds` and `settings.within` come first.
        on_progress: called with what is timed, the rounds done, and all rounds.

    Raises:
        TargetError: a candidate cannot be opened, or its process died.
    """
    asynchronous, repeats = settings.goal == "throughput", settings.repeats
    if settings.seconds is not None and not asynchronous:
        repeats, seconds_per_shape = _MANY, settings.seconds * len(candidates)
    elif settings.within:
        stays = until_narrow(
            _compared([each.title for each in candidates], rivals), settings.within
        )
    timed = latency.measure(
        candidates,
        workloads,
        repeats=repeats,
        threads=settings.threads,
        warmup=settings.warmup,
        pause_ms=settings.pause_ms,
        seconds_per_shape=seconds_per_shape,
        stays=stays,
        on_progress=on_progress,
    )
    load, measured = timed.load, tuple[Throughput, ...]()
    if asynchronous:
        measured, meanwhile = measure_throughput(
            candidates, workloads, settings, on_progress=on_progress
        )
        load = Load(
            cores=load.cores,
            others=max(load.others, meanwhile.others),
            stolen=max(load.stolen, meanwhile.stolen),
        )
    return BenchmarkResult(
        latencies=timed.latencies,
        footprints=timed.footprints,
        speedups=latency.speedups(timed.latencies, rivals),
        throughputs=measured,
        ratios=latency.speedups(measured, rivals),
        load=load,
        environment=environment.current(),
        date=environment.today(),
        settings=settings,
    )


def _compared(titles: Sequence[str], rivals: Mapping[str, Sequence[str]]) -> list[tuple[int, int]]:
    """The places of models that are compared: quantized ones with their float models and with each other."""
    pairs = [(name, rival) for name, others in rivals.items() for rival in others]
    pairs += itertools.combinations(rivals, 2)
    return [(titles.index(one), titles.index(other)) for one, other in pairs]


def measure_throughput(
    candidates: Sequence[Candidate],
    workloads: Sequence[Workload],
    settings: Benchmark,
    *,
    on_progress: OnProgress,
) -> tuple[tuple[Throughput, ...], Load]:
    """Measure the throughput of all candidates on all workloads, in turn.

    Before its first turn, each request of a candidate runs every batch once, untimed, for as long as a turn at the most, and
    then `settings.warmup` batches more.

    Args:
        candidates: what to measure.
        workloads: what each of them runs.
        settings: seconds of each candidate and workload, streams, requests, threads, warm-up and pause.
        on_progress: called with what is measured, the turns done, and all turns.

    Returns:
        (throughput of each workload and candidate, what else the machine did meanwhile).

    Raises:
        TargetError: a candidate cannot be opened, or its process died.
    """
    streams = 0 if settings.streams == "auto" else settings.streams
    total, seconds = settings.turns()
    measured: list[Throughput] = []
    with working(
        candidates,
        settings.threads,
        streams=streams,
        pause_ms=settings.pause_ms,
        on_progress=on_progress,
    ) as workers:
        requests = {
            worker: worker.facts.streams if settings.requests == "auto" else settings.requests
            for worker in workers
        }
        before = CpuTimes.now()
        for workload in workloads:
            batches = workload.rounds
            for worker, in_flight in requests.items():
                worker.ask("warm", (batches, len(batches), in_flight, seconds))
                if settings.warmup:
                    worker.ask("warm", (batches, settings.warmup, in_flight, math.inf))
            turns = interleave(
                workers,
                lambda worker, _: worker.ask(
                    "saturate",
                    (batches, math.inf, requests[worker], seconds),  # noqa: B023  # called at once
                ),
                total,
                on_round=partial(on_progress, f"throughput {workload.shape}"),
            )
            measured += [
                _throughput(worker, workload, requests[worker], saturated)
                for worker, saturated in zip(workers, turns, strict=True)
            ]
        return tuple(measured), before.load_until(CpuTimes.now())


def _throughput(
    worker: Worker, workload: Workload, requests: int, saturated: Sequence[Saturated]
) -> Throughput:
    """The record of a candidate's turns."""
    rows, tokens = np.array([size_of(feeds) for feeds in workload.rounds]).T
    return Throughput(
        candidate=worker.candidate.title,
        batch=workload.batch,
        sequence=workload.sequence,
        streams=worker.facts.streams,
        requests=requests,
        threads=worker.facts.threads,
        turns=tuple(
            Turn(seconds=turn.seconds, rows=int(rows @ turn.runs), tokens=int(tokens @ turn.runs))
            for turn in saturated
        ),
        samples_ms=tuple(ms for turn in saturated for ms in turn.samples_ms),
    )
