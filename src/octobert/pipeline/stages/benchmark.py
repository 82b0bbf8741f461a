"""All candidates, interleaved, on fixed shapes and on the user's own lengths → `timings.json`.

Raw samples are kept, with the environment they were taken in.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from octobert.config.recipe import Benchmark
from octobert.core import environment
from octobert.core.frozen import FrozenModel
from octobert.core.measurements import Footprint, Latency
from octobert.evaluation import candidates, latency
from octobert.pipeline.stages import Context, encoder_of, evaluation, task_of
from octobert.pipeline.stages.evaluate import model_path

VERSION = 2
# Rows of the user's data that are timed; more would only repeat the same lengths.
DATA_ROWS = 256


class Timings(FrozenModel):
    """`timings.json`."""

    latencies: tuple[Latency, ...]
    footprints: tuple[Footprint, ...]
    environment: environment.Environment


def run(context: Context) -> dict[str, Any]:
    """Benchmark."""
    task = task_of(context.options)
    settings = Benchmark.model_validate(context.options["benchmark"])
    named = [
        candidates.Candidate(
            name=n,
            path=str(model_path(n, context)),
            head=task.head,
            allow_pickle=bool(context.options["allow_pickle"]),
        )
        for n in context.options["candidates"]
    ]
    encoder = encoder_of(context)
    asked, _ = evaluation(context, encoder)
    vocabulary = int(context.read_json("capture", "config.json").get("vocab_size", 1000))
    seed = int(context.options["seed"])
    chosen = np.random.default_rng(seed).permutation(len(asked.flat))[:DATA_ROWS]
    rows = [asked.flat[i] for i in chosen]
    shapes = latency.shapes_of(settings, rows, encoder.pad_id, vocabulary, seed)
    latencies, footprints = latency.measure(
        named, shapes, repeats=settings.repeats, threads=settings.threads, seed=seed, on_progress=context.progress
    )
    here = environment.current()
    context.write("timings.json", Timings(latencies=tuple(latencies), footprints=tuple(footprints), environment=here))
    return {"candidates": [c.name for c in named], "shapes": [[s.batch, s.sequence] for s in shapes]}
