"""All candidates, interleaved, on fixed shapes and on the user's own lengths → `latencies.json`, `footprints.json`.

Raw samples are kept, with the environment they were taken in.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from octobert import candidates, environment, texts, timing
from octobert.errors import ModelError
from octobert.recipe import Benchmark
from octobert.stages import Context
from octobert.stages.evaluate import model_path, task_of

VERSION = 1
# Rows of the user's data that are timed; more would only repeat the same lengths.
DATA_ROWS = 256


def run(context: Context) -> dict[str, Any]:
    """Benchmark."""
    task = task_of(context.options)
    settings = Benchmark.model_validate(context.options["benchmark"])
    named = [
        candidates.Candidate(name=n, path=str(model_path(n, context.inputs, context.locations)), head=task.head)
        for n in context.options["candidates"]
    ]
    encoder = texts.TextEncoder(context.inputs["capture"], task.max_length)
    evaluation = context.read_json("data", "evaluation.json")["inputs"]
    vocabulary = int(context.read_json("capture", "config.json").get("vocab_size", 1000))
    check_lengths(settings, texts.longest(context.inputs["capture"]))
    seed = int(context.options["seed"])
    chosen = np.random.default_rng(seed).permutation(len(evaluation))[:DATA_ROWS]
    rows = encoder.encode([tuple(evaluation[i]) for i in chosen])
    shapes = shapes_of(settings, rows, encoder.pad_id, vocabulary, seed)
    latencies, footprints = timing.measure(
        named, shapes, repeats=settings.repeats, threads=settings.threads, seed=seed, on_progress=context.progress
    )
    context.write_json("latencies.json", [json.loads(one.model_dump_json()) for one in latencies])
    context.write_json("footprints.json", [json.loads(one.model_dump_json()) for one in footprints])
    context.write_json("environment.json", json.loads(environment.current().model_dump_json()))
    return {"candidates": [c.name for c in named], "shapes": [[s.batch, s.sequence] for s in shapes]}


def shapes_of(settings: Benchmark, rows: list[texts.Encoded], pad_id: int, vocabulary: int, seed: int) -> list[timing.Shape]:
    """The shapes that the settings ask for; `data` takes rows of the user's own, each round others."""
    found: list[timing.Shape] = []
    for batch in settings.batch:
        for sequence in settings.sequence:
            if sequence != "data":
                found.append(timing.fixed_shape(batch, int(sequence), vocabulary, seed))
                continue
            groups = [rows[i : i + batch] for i in range(0, len(rows) - batch + 1, batch)] or [rows]
            found.append(timing.Shape(batch, "data", tuple(texts.feeds_of(g, pad_id) for g in groups)))
    return found


def check_lengths(settings: Benchmark, longest: int) -> None:
    """Refuse sequences that the model has no positions for.

    Raises:
        ModelError: with the limit.
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
