"""All candidates, timed in turn, on fixed shapes and on the lengths of the user's rows → `timings.json`.

Raw samples are kept, with the environment that they were taken in.
"""

from __future__ import annotations

import numpy as np

from octobert.config.measuring import Benchmark
from octobert.core.session import SessionEntries
from octobert.engine.contract import Context, Summary, stage
from octobert.evaluation import benchmarking, latency
from octobert.evaluation.candidates import Candidate, rivals_of
from octobert.models.source import ModelSource
from octobert.pipeline import artifacts
from octobert.pipeline.artifacts import CapturedModel, Checkpoint, Rows, TargetFiles, Timings
from octobert.pipeline.stages.evaluate import file_of
from octobert.pipeline.task import TaskSpec

# Rows of the user's data that are timed; more would only repeat the same lengths.
DATA_ROWS = 256


@stage(Timings)
def run(
    context: Context,
    capture: CapturedModel,
    data: Rows,
    trained: Checkpoint | None,
    exports: dict[str, TargetFiles],
    *,
    candidates: tuple[str, ...],
    session: dict[str, SessionEntries],
    benchmark: Benchmark,
    model: ModelSource,
    allow_pickle: bool,
    machine: str,
    spec: TaskSpec,
    seed: int,
) -> Summary:
    """Time the candidates.

    Args:
        exports: target → its exported files.
        session: candidate → what the recipe sets for its target.
        machine: digest of the machine and its runtimes, which timings belong to.
    """
    task = spec.build()
    timed = [
        Candidate(
            name=name,
            path=str(file_of(name, model, capture, trained, exports.get(name))),
            head=task.head,
            allow_pickle=allow_pickle,
            entries=session.get(name, SessionEntries()),
        )
        for name in candidates
    ]
    tokenizer, encoded, _ = capture.evaluation(data, task)
    chosen = np.random.default_rng(seed).permutation(len(encoded.flat))[:DATA_ROWS]
    rows = [encoded.flat[i] for i in chosen]
    shapes = latency.workloads_of(benchmark, rows, tokenizer.pad_id, capture.vocabulary, seed)
    rivals = {name: rivals_of(name, candidates) for name in candidates if name in exports}
    timings = benchmarking.benchmark(timed, shapes, benchmark, rivals, on_progress=context.progress)
    context.write(artifacts.TIMINGS, timings)
    return {
        "candidates": list(candidates),
        "shapes": [[shape.batch, shape.sequence] for shape in shapes],
    }
