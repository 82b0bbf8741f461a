"""A target's files → the settings with which they are fastest on this machine, on rows of the user's lengths → `tuned.json`."""

from __future__ import annotations

from octobert import targets
from octobert.core.frozen import FrozenModel
from octobert.core.session import SessionEntries
from octobert.core.settings import Goal, Tried, Tuned
from octobert.evaluation import tuning
from octobert.evaluation.candidates import Candidate
from octobert.pipeline.contract import Context, StepResult, Summary, TaskSpec
from octobert.pipeline.stages import _rows

TUNED = "tuned.json"
# Limits of the search for each goal; those of a quick run after them.
TRIALS, MINUTES = (20, 8), (5.0, 1.0)


class Results(FrozenModel):
    """`tuned.json`, one result per goal."""

    results: tuple[Tuned, ...]


class Inputs(FrozenModel):
    """The captured model with its tokenizer, the rows, and the target's files."""

    capture: StepResult
    data: StepResult
    export: StepResult


class Options(FrozenModel):
    """What is tuned.

    Args:
        entries: what the recipe sets for the target's sessions; every setting is opened with it.
        quick: try fewer settings.
        machine: digest of the machine and its runtimes, which times belong to.
    """

    target: str
    goals: tuple[Goal, ...]
    entries: SessionEntries
    quick: bool
    machine: str
    task: TaskSpec
    seed: int


def run(context: Context[Inputs, Options]) -> Summary:
    """Tune."""
    inputs, options = context.inputs, context.options
    task = options.task.build()
    tokenizer = _rows.tokenizer_of(inputs.capture, task)
    rows = _rows.evaluation_rows(inputs.data, task, tokenizer)[0].flat
    path = str(targets.load(options.target).model_file(inputs.export.path("")))
    candidate = Candidate(name=options.target, path=path, head=task.head, entries=options.entries)
    trials, minutes = TRIALS[options.quick], MINUTES[options.quick]
    results = []
    for goal in options.goals:

        def on_trial(number: int, _: Tried, what: str = f"tuning {options.target} for {goal}") -> None:
            context.progress(what, number, trials)

        found = tuning.tune(
            candidate,
            rows,
            tokenizer.pad_id,
            goal=goal,
            longest=tokenizer.max_length,
            trials=trials,
            minutes=minutes,
            seed=options.seed,
            on_trial=on_trial,
        )
        results.append(found)
    context.write(TUNED, Results(results=tuple(results)))
    return {result.goal: result.ratio for result in results}
