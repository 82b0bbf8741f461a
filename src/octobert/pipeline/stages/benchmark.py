"""All candidates, timed in turn, on fixed shapes and on the lengths of the user's rows → `timings.json`.

Raw samples are kept, with the environment that they were taken in.
"""

from __future__ import annotations

import numpy as np

from octobert.config.measuring import Benchmark
from octobert.core.frozen import FrozenModel
from octobert.core.session import SessionEntries
from octobert.evaluation import benchmarking, candidates, latency
from octobert.models.source import ModelSource
from octobert.pipeline.contract import Context, StepResult, Summary, TaskSpec
from octobert.pipeline.stages import _rows
from octobert.pipeline.stages.evaluate import file_of

TIMINGS = "timings.json"
# Rows of the user's data that are timed; more would only repeat the same lengths.
DATA_ROWS = 256


class Inputs(FrozenModel):
    """The captured graph, the rows, the trained checkpoint where there is one, and target → its exported files."""

    capture: StepResult
    data: StepResult
    trained: StepResult | None = None
    exports: dict[str, StepResult]


class Options(FrozenModel):
    """The candidates, and what is timed.

    Args:
        session: candidate → what the recipe sets for its target.
        machine: digest of the machine and its runtimes, which timings belong to.
    """

    candidates: tuple[str, ...]
    session: dict[str, SessionEntries]
    benchmark: Benchmark
    model: ModelSource
    allow_pickle: bool
    machine: str
    task: TaskSpec
    seed: int


def run(context: Context[Inputs, Options]) -> Summary:
    """Benchmark."""
    inputs, options = context.inputs, context.options
    task, settings = options.task.build(), options.benchmark
    timed = [
        candidates.Candidate(
            name=name,
            path=str(file_of(name, options.model, inputs.capture, inputs.trained, inputs.exports.get(name))),
            head=task.head,
            allow_pickle=options.allow_pickle,
            entries=options.session.get(name, SessionEntries()),
        )
        for name in options.candidates
    ]
    tokenizer = _rows.tokenizer_of(inputs.capture, task)
    encoded, _ = _rows.evaluation_rows(inputs.data, task, tokenizer)
    vocabulary = int(inputs.capture.read_json("config.json").get("vocab_size", 1000))
    chosen = np.random.default_rng(options.seed).permutation(len(encoded.flat))[:DATA_ROWS]
    rows = [encoded.flat[i] for i in chosen]
    shapes = latency.workloads_of(settings, rows, tokenizer.pad_id, vocabulary, options.seed)
    quantized = [name for name in options.candidates if name in inputs.exports]
    rivals = {name: candidates.rivals_of(name, options.candidates) for name in quantized}
    timings = benchmarking.benchmark(timed, shapes, settings, rivals, seed=options.seed, on_progress=context.progress)
    context.write(TIMINGS, timings)
    return {"candidates": [c.name for c in timed], "shapes": [[shape.batch, shape.sequence] for shape in shapes]}
