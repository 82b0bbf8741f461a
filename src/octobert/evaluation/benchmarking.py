"""A benchmark: latencies, and with the goal `throughput` inferences at the same time, of the same candidates and workloads.

For throughput, too, each candidate has its own process, and they take turns of some seconds. The order is turned round in every
round (A B, B A, …), so that a machine that becomes faster or slower hits all alike, and ratios are those of turns of the same
round.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Mapping, Sequence

import numpy as np
from pydantic import Field

from octobert.config.measuring import Benchmark
from octobert.core import environment
from octobert.core.environment import Environment
from octobert.core.frozen import Row, Tabular
from octobert.core.measurements import Footprint, Latency, Load, Speedup, Throughput, Turn
from octobert.evaluation import latency
from octobert.evaluation.candidates import Candidate
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
        date: When it was measured, in UTC; None in results of octobert 0.1.
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
    date: datetime.date | None = None
    settings: Benchmark

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
    seed: int = 0,
    on_progress: OnProgress = lambda *_: None,
) -> BenchmarkResult:
    """Time candidates.

    Args:
        candidates: what to time.
        workloads: what each of them runs.
        settings: of the benchmark; the shapes are those of `workloads`.
        rivals: quantized model → the float models that it is compared with.
        seed: of the order of latencies, and of intervals.
        on_progress: called with what is timed, the rounds done, and all rounds.

    Raises:
        TargetError: a candidate cannot be opened, or its process died.
    """
    asynchronous = settings.goal == "throughput"
    by_time = not asynchronous and settings.seconds is not None
    limit = {"seconds_per_shape": (settings.seconds or 0) * len(candidates)} if by_time else {}
    timed = latency.measure(
        candidates,
        workloads,
        repeats=_MANY if by_time else settings.repeats,
        threads=settings.threads,
        warmup=settings.warmup,
        pause_ms=settings.pause_ms,
        seed=seed,
        on_progress=on_progress,
        **limit,
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


def measure_throughput(
    candidates: Sequence[Candidate],
    workloads: Sequence[Workload],
    settings: Benchmark,
    *,
    on_progress: OnProgress = lambda *_: None,
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
    measured: list[Throughput] = []
    pause_ms = settings.pause_ms
    with working(
        candidates, settings.threads, streams=streams, pause_ms=pause_ms, on_progress=on_progress
    ) as workers:
        before = CpuTimes.now()
        for workload in workloads:
            measured += _measure_workload(workers, workload, settings, on_progress)
        return tuple(measured), before.load_until(CpuTimes.now())


def order_of(count: int, round: int) -> list[int]:
    """Return the order in which candidates take their turns in a round: that of the round before, turned round.

    Example:
        >>> order_of(3, 0), order_of(3, 1)
        ([0, 1, 2], [2, 1, 0])
    """
    return list(range(count))[:: -1 if round % 2 else 1]


def _measure_workload(
    workers: Sequence[Worker],
    workload: Workload,
    settings: Benchmark,
    on_progress: OnProgress,
) -> list[Throughput]:
    requests = [
        worker.facts.streams if settings.requests == "auto" else settings.requests
        for worker in workers
    ]
    rows = np.array([len(feeds["input_ids"]) for feeds in workload.rounds])
    tokens = np.array([int(feeds["attention_mask"].sum()) for feeds in workload.rounds])
    turns: list[list[Saturated]] = [[] for _ in workers]
    total, seconds = settings.turns()
    for worker, in_flight in zip(workers, requests, strict=True):
        worker.ask("warm", (workload.rounds, len(workload.rounds), in_flight, seconds))
        if settings.warmup:
            worker.ask("warm", (workload.rounds, settings.warmup, in_flight, math.inf))
    for number in range(total):
        for index in order_of(len(workers), number):
            batches = (workload.rounds, math.inf, requests[index], seconds)
            turns[index].append(workers[index].ask("saturate", batches))
        on_progress(f"throughput {workload.batch} × {workload.sequence}", number + 1, total)
    return [
        Throughput(
            candidate=worker.candidate.title,
            batch=workload.batch,
            sequence=workload.sequence,
            streams=worker.facts.streams,
            requests=in_flight,
            threads=worker.facts.threads,
            turns=tuple(
                Turn(
                    seconds=turn.seconds, rows=int(rows @ turn.runs), tokens=int(tokens @ turn.runs)
                )
                for turn in worker_turns
            ),
            samples_ms=tuple(ms for turn in worker_turns for ms in turn.samples_ms),
        )
        for worker, in_flight, worker_turns in zip(workers, requests, turns, strict=True)
    ]
