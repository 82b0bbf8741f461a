"""One candidate over all evaluation rows → its raw outputs, and its scores with intervals.

Writes `outputs.npz` (rows in input order), `scores.json`, and `probed.npz`: outputs for texts that nothing is fitted to.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from octobert.core.measurements import score_named
from octobert.core.session import Session, SessionEntries
from octobert.engine.contract import Context, Summary, stage
from octobert.evaluation import candidates, probing, scoring
from octobert.inference.batching import run_rows
from octobert.models.source import ModelSource
from octobert.pipeline import artifacts
from octobert.pipeline.artifacts import (
    CapturedModel,
    Checkpoint,
    Evaluated,
    Planned,
    Rows,
    TargetFiles,
)
from octobert.pipeline.task import ScoredTask
from octobert.targets.shared import simulation
from octobert.tasks import Result


@stage(Evaluated, anywhere=True)
def run(
    context: Context,
    capture: CapturedModel,
    data: Rows,
    trained: Checkpoint | None,
    export: TargetFiles | None,
    simulated: Planned | None,
    *,
    candidate: str,
    entries: SessionEntries,
    model: ModelSource,
    allow_pickle: bool,
    machine: str,
    scored: ScoredTask,
    seed: int,
) -> Summary:
    """Evaluate.

    Args:
        trained: the trained checkpoint, where there is one.
        export: the exported files of a target.
        simulated: the plan of a target whose device is not here, and its graph, which is run on the CPU instead.
        candidate: a float baseline or a target.
        entries: what the recipe sets for its target.
        machine: digest of the machine and its runtimes, which scores belong to: on another one they are measured again.
    """
    task = scored.build()
    tokenizer, encoded, gold = capture.evaluation(data, task)
    rows = encoded.flat
    if simulated is not None:
        session: Session = simulation.open_plan(simulated.file, simulated.plan, context.work)
    else:
        path = str(file_of(candidate, model, capture, trained, export))
        opened = candidates.Candidate(
            name=candidate, path=path, head=task.head, allow_pickle=allow_pickle, entries=entries
        )
        heads = capture.facts.sizes.heads
        session = candidates.open_candidate(opened, 0, heads=heads)
    probe = probing.rows_like(encoded.texts[0], task, tokenizer).flat
    probed = run_rows(session, probe, tokenizer.pad_id, per_token=task.per_token)
    np.savez(context.work / artifacts.PROBED, **probed)  # type: ignore[arg-type]
    outputs = run_rows(
        session,
        rows,
        tokenizer.pad_id,
        lambda done: context.progress(
            f"{'simulating' if simulated else 'evaluating'} {candidate}", done, len(rows)
        ),
        per_token=task.per_token,
    )
    np.savez(context.work / artifacts.OUTPUTS, **outputs)  # type: ignore[arg-type]
    scores = scoring.scores(task, Result(outputs, encoded, gold), seed=seed)
    context.write(artifacts.SCORES, artifacts.StoredScores(scores=scores))
    return {
        "candidate": candidate,
        "precision": session.precision,
        "truncated": sum(row.truncated for row in rows),
        "primary": primary.value if (primary := score_named(task.primary, scores)) else None,
        "texts": len(encoded.texts),
        "rows": len(rows),
    }


def file_of(
    candidate: str,
    model: ModelSource,
    capture: CapturedModel,
    trained: Checkpoint | None,
    export: TargetFiles | None,
) -> Path:
    """The file or folder that a candidate opens: the checkpoint, the float graph, or a target's file."""
    if export is not None:
        return export.file
    is_checkpoint = candidates.source_of(candidate) == "checkpoint"
    return artifacts.source_of(model, trained).path if is_checkpoint else capture.file
