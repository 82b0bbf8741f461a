"""One candidate over all evaluation rows → its raw outputs, and its scores with intervals.

Writes `outputs.npz` (rows in input order) and `scores.json`.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from octobert import targets
from octobert.core.frozen import FrozenModel
from octobert.core.measurements import Score, score_named
from octobert.core.session import SessionEntries
from octobert.evaluation import candidates, scoring
from octobert.inference.batching import run_rows
from octobert.models.source import ModelSource
from octobert.pipeline.contract import Context, ScoredTask, StepResult, Summary
from octobert.pipeline.stages import _artifacts, _rows
from octobert.pipeline.stages._artifacts import trained_source

OUTPUTS, SCORES = "outputs.npz", "scores.json"


class Scores(FrozenModel):
    """`scores.json`."""

    scores: tuple[Score, ...]


class Inputs(FrozenModel):
    """The captured graph, the rows, the trained checkpoint where there is one, and of a target its exported files."""

    capture: StepResult
    data: StepResult
    trained: StepResult | None = None
    export: StepResult | None = None


class Options(FrozenModel):
    """The candidate: a float baseline or a target.

    Args:
        entries: what the recipe sets for its target.
        machine: digest of the machine and its runtimes, which scores belong to.
    """

    candidate: str
    entries: SessionEntries = SessionEntries()
    model: ModelSource
    allow_pickle: bool
    machine: str
    task: ScoredTask
    seed: int


def run(context: Context[Inputs, Options]) -> Summary:
    """Evaluate."""
    inputs, options = context.inputs, context.options
    task = options.task.build()
    tokenizer = _rows.tokenizer_of(inputs.capture, task)
    encoded, gold = _rows.evaluation_rows(inputs.data, task, tokenizer)
    rows = encoded.flat
    path = file_of(options.candidate, options.model, inputs.capture, inputs.trained, inputs.export)
    candidate = candidates.Candidate(
        name=options.candidate,
        path=str(path),
        head=task.head,
        allow_pickle=options.allow_pickle,
        entries=options.entries,
    )
    session = candidates.open_candidate(candidate, 0)
    outputs = run_rows(
        session,
        rows,
        tokenizer.pad_id,
        lambda done: context.progress(f"evaluating {options.candidate}", done, len(rows)),
        per_token=task.per_token,
    )
    np.savez(context.work / OUTPUTS, **outputs)  # type: ignore[arg-type]
    scores = scoring.scores(task, outputs, encoded, gold, seed=options.seed)
    context.write(SCORES, Scores(scores=scores))
    return {
        "candidate": options.candidate,
        "precision": session.precision,
        "truncated": sum(row.truncated for row in rows),
        "primary": primary.value if (primary := score_named(task.primary, scores)) else None,
        "texts": len(encoded.texts),
        "rows": len(rows),
    }


def file_of(
    candidate: str, model: ModelSource, capture: StepResult, trained: StepResult | None, export: StepResult | None
) -> Path:
    """The file or folder that a candidate opens: the checkpoint, the float graph, or a target's file."""
    source = candidates.source_of(candidate)
    if source == "checkpoint":
        return trained_source(model, trained).path
    if source == "graph" or export is None:
        return capture.path(_artifacts.FLOAT)
    return targets.load(candidate).model_file(export.path(""))
