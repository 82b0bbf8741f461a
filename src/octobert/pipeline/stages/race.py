"""Several models, timed in turn on rows of the user's own lengths → `race.json`.

A model that cannot be opened is left out, with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Annotated

import numpy as np

from octobert.config.measuring import Benchmark
from octobert.core.errors import OctobertError
from octobert.core.frozen import FrozenModel
from octobert.core.measurements import Footprint, Load
from octobert.core.session import Goal, SessionEntries
from octobert.engine.contract import NOT_IN_KEY, Context, StepResult, Summary, stage
from octobert.evaluation import benchmarking, latency
from octobert.evaluation.benchmarking import BenchmarkResult
from octobert.evaluation.candidates import Candidate
from octobert.evaluation.interleaving import unless_hopeless
from octobert.evaluation.worker import Worker
from octobert.pipeline.artifacts import CapturedModel, Rows, TargetFiles
from octobert.pipeline.task import TaskSpec

TIMES = "race.json"
# A model that is so many times slower than the fastest one is timed in a few rounds only.
_HOPELESS = 4.0
# Limit of a race in a search without a time limit.
MOST_SECONDS = 600.0
# Rows of a batch in which throughput is measured.
_BATCH = 8


class Entrant(FrozenModel):
    """A model of a race.

    Args:
        target: that it was exported for.
        entries: what its recipe sets for the target's sessions.
    """

    target: str
    entries: SessionEntries


class RaceTimes(FrozenModel):
    """The times of one model.

    Args:
        samples_ms: time of each round, in milliseconds; of a hopelessly slow model, of the first rounds only. Throughput is
            measured in rounds as well: time of one row.
        footprint: size, memory and load time.
    """

    samples_ms: tuple[float, ...]
    footprint: Footprint


class Race(FrozenModel):
    """`race.json`.

    Args:
        times: name → times; round by round, all models did the same work.
        problems: name → why it could not be timed.
        load: what else the machine did meanwhile.
    """

    times: dict[str, RaceTimes]
    problems: dict[str, str]
    load: Load


@stage(StepResult)
def run(
    context: Context,
    capture: CapturedModel,
    data: Rows,
    exports: dict[str, TargetFiles],
    *,
    entrants: dict[str, Entrant],
    goal: Goal,
    rounds: int,
    seconds: float,
    number: int,
    machine: str,
    spec: TaskSpec,
    seed: int,
    most_seconds: Annotated[float, NOT_IN_KEY] = MOST_SECONDS,
) -> Summary:
    """Race.

    Args:
        exports: name → exported files.
        entrants: name → model, in order.
        rounds: of latency; each times another row of the user.
        seconds: of throughput, for each model.
        number: of the race, so that two races draw other rows.
        machine: digest of the machine and its runtimes, which times belong to.
        most_seconds: with fewer rounds, but at least five, where they would take longer.
    """
    task = spec.build()
    tokenizer = capture.tokenizer(task)
    texts = list(dict.fromkeys(data.tuning()[-1].texts))
    rows = task.encode(tokenizer, texts).flat
    order = np.random.default_rng((seed, number)).permutation(len(rows))
    settings = Benchmark(
        batch=(1 if goal == "latency" else _BATCH,),
        sequence=("data",),
        goal=goal,
        within=0,
        # Throughput needs a few runs of each model as well, for its memory.
        repeats=rounds if goal == "latency" else 5,
        seconds=seconds if goal == "throughput" else None,
    )
    workload = latency.workloads_of(settings, [rows[i] for i in order], tokenizer.pad_id, 1, seed)
    racing = {
        name: Candidate(
            name=entrant.target,
            path=str(exports[name].file),
            head=task.head,
            label=name,
            entries=entrant.entries,
        )
        for name, entrant in entrants.items()
    }
    problems: dict[str, str] = {}
    race = partial(
        benchmarking.benchmark,
        workloads=workload,
        settings=settings,
        rivals={},
        seconds_per_shape=most_seconds,
        stays=unless_hopeless(_HOPELESS),
        on_progress=context.progress,
    )
    try:
        timed = race(list(racing.values()))
    except OctobertError:
        problems = _problems(racing)
        if not problems or len(problems) == len(racing):
            raise
        fit = [candidate for name, candidate in racing.items() if name not in problems]
        timed = race(fit)
    times = _times(timed)
    context.write(TIMES, Race(times=times, problems=problems, load=timed.load))
    return {
        "medians_ms": {name: float(np.median(own.samples_ms)) for name, own in times.items()},
        "problems": problems,
    }


def _times(timed: BenchmarkResult) -> dict[str, RaceTimes]:
    """Name → times."""
    samples = {latency_of.candidate: latency_of.samples_ms for latency_of in timed.latencies}
    samples |= {
        rate.candidate: tuple(1000 * turn.seconds / turn.rows for turn in rate.turns)
        for rate in timed.throughputs
    }
    return {
        footprint.candidate: RaceTimes(samples_ms=samples[footprint.candidate], footprint=footprint)
        for footprint in timed.footprints
    }


def _problems(racing: Mapping[str, Candidate]) -> dict[str, str]:
    """Which models cannot be opened, and why."""
    problems = {}
    for name, candidate in racing.items():
        worker = Worker(candidate)
        try:
            worker.opened()
        except OctobertError as error:
            problems[name] = str(error)
        finally:
            worker.stop()
    return problems
