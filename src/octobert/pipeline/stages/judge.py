"""One model over the tuning rows, until it is clear whether it keeps the accuracy limits → `judged.json`.

Without a model, the float model's outputs on these rows → `float.npz`, which every judgement reads, and its figures.
"""

from __future__ import annotations

from octobert.core.estimate import Estimate
from octobert.core.frozen import FrozenModel
from octobert.core.limits import Limit
from octobert.core.session import SessionEntries
from octobert.engine.contract import Context, StepResult, Summary, stage
from octobert.evaluation import candidates
from octobert.evaluation.judging import AccuracyJudge, MetricChange
from octobert.pipeline.artifacts import CapturedModel, Rows, TargetFiles
from octobert.pipeline.task import ScoredTask

JUDGED, FLOAT = "judged.json", "float.npz"


class Judged(FrozenModel):
    """`judged.json`.

    Args:
        rows: tuning rows that were judged.
        of: all tuning rows.
        metrics: metric → how it changed on the judged rows.
    """

    rows: int
    of: int
    metrics: dict[str, MetricChange]


@stage(StepResult, anywhere=True)
def run(
    context: Context,
    capture: CapturedModel,
    data: Rows,
    reference: StepResult | None = None,
    export: TargetFiles | None = None,
    *,
    target: str,
    entries: SessionEntries,
    limits: tuple[Limit, ...],
    machine: str,
    scored: ScoredTask,
    seed: int,
) -> Summary:
    """Judge.

    Args:
        reference: the float model's outputs.
        export: the files of the model that is judged; None for the float model.
        target: that the model was exported for; of the float model, the one that opens it.
        entries: what the recipe sets for the target's sessions.
        limits: on metrics, that the model must keep.
        machine: digest of the machine and its runtimes, which figures belong to.
    """
    task, graph = scored.build(), capture.file
    context.progress("reading the tuning rows", 0, 1)
    judge = AccuracyJudge(
        limits,
        task,
        data.tuning(),
        capture.tokenizer(task),
        open_float=lambda: candidates.open_float(target, graph, task.head, entries),
        cache=context.work / FLOAT if reference is None else reference.path(FLOAT),
        seed=seed,
        main=True,
    )
    if export is None:
        rows, met = judge.rows, judge.met(judge.float_values)
        metrics = {
            n: MetricChange(value=value, drop=Estimate.exactly(0.0))
            for n, value in judge.float_values.items()
        }
    else:
        context.progress(f"judging {target}", 0, judge.rows)
        candidate = candidates.Candidate(
            name=target, path=str(export.file), head=task.head, entries=entries
        )
        rows, metrics, met = judge.judge(candidates.open_candidate(candidate, 0))
    context.write(JUDGED, Judged(rows=rows, of=judge.rows, metrics=metrics))
    return {
        "rows": rows,
        "of": judge.rows,
        "met": met,
        "drops": {name: change.drop.value for name, change in metrics.items()},
    }
