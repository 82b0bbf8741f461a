"""Throughput: inferences at the same time. Each candidate has its own process, and they take turns of some seconds.

The order is turned round in every round (A B, B A, …), so that a machine that becomes faster or slower hits all alike, and
ratios are those of turns of the same round.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from octobert.config.measuring import Benchmark
from octobert.core.measurements import Load, Throughput, Turn
from octobert.evaluation.candidates import Candidate
from octobert.evaluation.latency import CpuTimes, Workload
from octobert.evaluation.worker import Worker, working


def measure(
    candidates: Sequence[Candidate],
    workloads: Sequence[Workload],
    settings: Benchmark,
    *,
    on_progress: Callable[[str, int, int], None] | None = None,
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
    on_progress: Callable[[str, int, int], None] | None,
) -> list[Throughput]:
    requests = [
        worker.facts.streams if settings.requests == "auto" else settings.requests
        for worker in workers
    ]
    rows = np.array([len(feeds["input_ids"]) for feeds in workload.rounds])
    tokens = np.array([int(feeds["attention_mask"].sum()) for feeds in workload.rounds])
    turns: list[list[Turn]] = [[] for _ in workers]
    samples: list[list[float]] = [[] for _ in workers]
    total, seconds = settings.turns()
    for worker, in_flight in zip(workers, requests, strict=True):
        worker.ask("warm", (workload.rounds, len(workload.rounds), in_flight, seconds))
        if settings.warmup:
            worker.ask("warm", (workload.rounds, settings.warmup, in_flight, math.inf))
    for number in range(total):
        for index in order_of(len(workers), number):
            done = workers[index].ask(
                "saturate", (workload.rounds, math.inf, requests[index], seconds)
            )
            ran = Turn(
                seconds=done.seconds, rows=int(rows @ done.runs), tokens=int(tokens @ done.runs)
            )
            turns[index].append(ran)
            samples[index] += done.samples_ms
        if on_progress:
            on_progress(f"throughput {workload.batch} × {workload.sequence}", number + 1, total)
    return [
        Throughput(
            candidate=worker.candidate.title,
            batch=workload.batch,
            sequence=workload.sequence,
            streams=worker.facts.streams,
            requests=in_flight,
            threads=worker.facts.threads,
            turns=tuple(own),
            samples_ms=tuple(times),
        )
        for worker, in_flight, own, times in zip(workers, requests, turns, samples, strict=True)
    ]
