"""One candidate over all evaluation rows → its raw outputs and its scores with intervals.

Writes `outputs.npz` (rows in input order) and `scores.json`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from octobert import candidates, measure, plugins, texts
from octobert.batching import run_rows
from octobert.stages import Context
from octobert.task import Task

VERSION = 1


def run(context: Context) -> dict[str, Any]:
    """Evaluate."""
    task = task_of(context.options)
    name = context.options["candidate"]
    encoder = texts.TextEncoder(context.inputs["capture"], task.max_length)
    evaluation = context.read_json("data", "evaluation.json")
    rows = encoder.encode([tuple(t) for t in evaluation["inputs"]])
    path = model_path(name, context.inputs, context.locations)
    session = candidates.open_candidate(candidates.Candidate(name=name, path=str(path), head=task.head), 0)
    outputs = run_rows(session, rows, encoder.pad_id, lambda done: context.progress(f"evaluating {name}", done, len(rows)))
    np.savez(context.work / "outputs.npz", **outputs)  # type: ignore[arg-type]
    gold = np.array(evaluation["gold"])
    items = task.items(outputs)
    seed = int(context.options["seed"])
    scores = [measure.score(n, m, items, gold, seed=seed) for n, m in task.metrics.items() if len(gold)]
    context.write_json("scores.json", [json.loads(s.model_dump_json()) for s in scores])
    truncated = sum(row.truncated for row in rows)
    primary = next((s.value for s in scores if s.metric == task.primary), None)
    return {"candidate": name, "precision": session.precision, "rows": len(rows), "truncated": truncated, "primary": primary}


def task_of(options: Mapping[str, Any]) -> Task:
    """The task with its options and labels, from what a stage was keyed by."""
    module = plugins.load("tasks", options["task"]["name"])
    return module.build(module.Options.model_validate(options["task"]["options"]), tuple(options["labels"]))


def model_path(name: str, inputs: Mapping[str, Path], locations: Mapping[str, str]) -> Path:
    """The file or folder that a candidate opens."""
    if name == "torch-f32":
        return Path(locations["model"])
    if name in candidates.BASELINES:
        return inputs["capture"] / "model.onnx"
    return plugins.load("targets", name).model_file(inputs[f"export/{name}"])
