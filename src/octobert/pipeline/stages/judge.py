"""One model over the tuning rows, until it is clear whether it keeps the accuracy limits → `judged.json`.

Without a model, the float model's outputs on these rows → `float.npz`, which every judgement reads, and its figures.
"""

from __future__ import annotations

from octobert import targets
from octobert.core.frozen import FrozenModel
from octobert.core.session import SessionEntries
from octobert.evaluation import candidates
from octobert.evaluation.candidates import Candidate
from octobert.evaluation.criterion import AccuracyJudge, Criterion, Difference
from octobert.pipeline.contract import Context, ScoredTask, StepResult, Summary
from octobert.pipeline.stages import _artifacts, _rows

JUDGED, FLOAT = "judged.json", "float.npz"


class Verdict(FrozenModel):
    """`judged.json`.

    Args:
        rows: tuning rows that were judged.
        of: all tuning rows.
        metrics: metric → its figures on the judged rows.
        met: whether all criteria are met on all rows.
        float_values: metric → value of the float model on all rows.
    """

    rows: int
    of: int
    metrics: dict[str, Difference]
    met: bool
    float_values: dict[str, float]


class Inputs(FrozenModel):
    """The captured graph, the rows, and of a model its exported files and the float model's outputs."""

    capture: StepResult
    data: StepResult
    reference: StepResult | None = None
    export: StepResult | None = None


class Options(FrozenModel):
    """What is judged.

    Args:
        target: that the model was exported for; of the float model, the one that opens it.
        entries: what the recipe sets for the target's sessions.
        criteria: what the model must keep.
        machine: digest of the machine and its runtimes, which figures belong to.
    """

    target: str
    entries: SessionEntries
    criteria: tuple[Criterion, ...]
    machine: str
    task: ScoredTask
    seed: int


def run(context: Context[Inputs, Options]) -> Summary:
    """Judge."""
    inputs, options, task = context.inputs, context.options, context.options.task.build()
    graph = inputs.capture.path(_artifacts.FLOAT)
    context.progress("reading the tuning rows", 0, 1)
    judge = AccuracyJudge(
        options.criteria,
        task,
        _rows.tuning_parts(inputs.data),
        _rows.tokenizer_of(inputs.capture, task),
        open_float=lambda: candidates.open_float(options.target, graph, task.head, options.entries),
        cache=context.work / FLOAT if inputs.reference is None else inputs.reference.path(FLOAT),
        seed=options.seed,
    )
    if inputs.export is None:
        same = {name: Difference(value, 0.0, 0.0, 0.0) for name, value in judge.float_values.items()}
        met = all(each.meets(same[each.metric].value, same[each.metric].value) for each in judge.criteria)
        rows, found = judge.rows, same
    else:
        path = targets.load(options.target).model_file(inputs.export.path(""))
        candidate = Candidate(name=options.target, path=str(path), head=task.head, entries=options.entries)
        context.progress(f"judging {options.target}", 0, judge.rows)
        rows, found, met = judge.judge(candidates.open_candidate(candidate, 0))
    verdict = Verdict(rows=rows, of=judge.rows, metrics=found, met=met, float_values=judge.float_values)
    context.write(JUDGED, verdict)
    return {"rows": rows, "of": judge.rows, "met": met, "drops": {name: each.drop for name, each in found.items()}}
