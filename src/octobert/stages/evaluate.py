"""One candidate over all evaluation rows → its raw outputs and its scores with intervals.

Writes `outputs.npz` (rows in input order) and `scores.json`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from octobert import candidates, judging, plugins, texts
from octobert.batching import run_rows
from octobert.measure import Score
from octobert.plan import Noun
from octobert.stages import Context, task_of

VERSION = 1


class Scores(Noun):
    """`scores.json`."""

    scores: tuple[Score, ...]


def run(context: Context) -> dict[str, Any]:
    """Evaluate."""
    task = task_of(context.options)
    name = context.options["candidate"]
    encoder = texts.TextEncoder(context.inputs["capture"], task.max_length)
    evaluation = context.read_json("data", "evaluation.json")
    inputs, gold = [tuple(t) for t in evaluation["inputs"]], np.array(evaluation["gold"])
    rows = encoder.encode(inputs)
    path = model_path(name, context.inputs, context.locations)
    pickle = bool(context.options["allow_pickle"])
    candidate = candidates.Candidate(name=name, path=str(path), head=task.head, allow_pickle=pickle)
    session = candidates.open_candidate(candidate, 0)
    outputs = run_rows(session, rows, encoder.pad_id, lambda done: context.progress(f"evaluating {name}", done, len(rows)))
    np.savez(context.work / "outputs.npz", **outputs)  # type: ignore[arg-type]
    scores = judging.scores(task, outputs, inputs, gold, seed=int(context.options["seed"]))
    context.write("scores.json", Scores(scores=scores))
    truncated = sum(row.truncated for row in rows)
    primary = next((s.value for s in scores if s.metric == task.primary), None)
    return {"candidate": name, "precision": session.precision, "rows": len(rows), "truncated": truncated, "primary": primary}


def model_path(name: str, inputs: Mapping[str, Path], locations: Mapping[str, str]) -> Path:
    """The file or folder that a candidate opens."""
    if name == "torch-f32":
        return Path(locations["model"])
    if name in candidates.BASELINES:
        return inputs["capture"] / "model.onnx"
    return plugins.load("targets", name).model_file(inputs[f"export/{name}"])
