"""A benchmark: latencies, and with the goal `throughput` inferences at the same time, of the same candidates and workloads."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping, Sequence

from pydantic import Field

from octobert.config.measuring import Benchmark
from octobert.core import environment
from octobert.core.environment import Environment
from octobert.core.frozen import Row, Tabular
from octobert.core.measurements import Footprint, Latency, Load, Speedup, Throughput
from octobert.evaluation import latency, throughput
from octobert.evaluation.candidates import Candidate
from octobert.evaluation.latency import Workload

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
    on_progress: Callable[[str, int, int], None] | None = None,
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
        measured, meanwhile = throughput.measure(
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
