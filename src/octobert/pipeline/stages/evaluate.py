"""One candidate over all evaluation rows → its raw outputs and its scores with intervals.

Writes `outputs.npz` (rows in input order) and `scores.json`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from octobert.core import plugins
from octobert.core.frozen import FrozenModel
from octobert.core.measurements import Score
from octobert.evaluation import candidates, scoring
from octobert.inference.batching import run_rows
from octobert.pipeline.stages import Context, encoder_of, evaluation, model_of, task_of

VERSION = 2


class Scores(FrozenModel):
    """`scores.json`."""

    scores: tuple[Score, ...]


def run(context: Context) -> dict[str, Any]:
    """Evaluate."""
    task = task_of(context.options)
    name = context.options["candidate"]
    encoder = encoder_of(context)
    asked, gold = evaluation(context, encoder)
    rows = asked.flat
    path = model_path(name, context)
    pickle = bool(context.options["allow_pickle"])
    candidate = candidates.Candidate(name=name, path=str(path), head=task.head, allow_pickle=pickle)
    session = candidates.open_candidate(candidate, 0)
    outputs = run_rows(
        session,
        rows,
        encoder.pad_id,
        lambda done: context.progress(f"evaluating {name}", done, len(rows)),
        per_token=task.per_token,
    )
    np.savez(context.work / "outputs.npz", **outputs)  # type: ignore[arg-type]
    scores = scoring.scores(task, outputs, asked, gold, seed=int(context.options["seed"]))
    context.write("scores.json", Scores(scores=scores))
    truncated = sum(row.truncated for row in rows)
    primary = next((s.value for s in scores if s.metric == task.primary), None)
    facts = {"candidate": name, "precision": session.precision, "truncated": truncated, "primary": primary}
    return {**facts, "texts": len(asked.texts), "rows": len(rows)}


def model_path(name: str, context: Context) -> Path:
    """The file or folder that a candidate opens."""
    if name == "torch-f32":
        return model_of(context)
    if name in candidates.BASELINES:
        return context.inputs["capture"] / "model.onnx"
    return plugins.load("targets", name).model_file(context.inputs[f"export/{name}"])
