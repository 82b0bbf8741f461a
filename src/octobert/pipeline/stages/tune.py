"""A target's files → the settings with which they are fastest on this machine, on rows of the user's lengths → `tuned.json`."""

from __future__ import annotations

from octobert.core.session import Goal, SessionEntries, Tried
from octobert.engine.contract import Context, Summary, stage
from octobert.evaluation import candidates, tuning
from octobert.pipeline import artifacts
from octobert.pipeline.artifacts import CapturedModel, Rows, TargetFiles, TunedTarget
from octobert.pipeline.task import TaskSpec

# Limits of the search for each goal; those of a quick run after them.
TRIALS, MINUTES = (20, 8), (5.0, 1.0)


@stage(TunedTarget)
def run(
    context: Context,
    capture: CapturedModel,
    data: Rows,
    export: TargetFiles,
    *,
    target: str,
    goals: tuple[Goal, ...],
    entries: SessionEntries,
    quick: bool,
    machine: str,
    spec: TaskSpec,
    seed: int,
) -> Summary:
    """Tune.

    Args:
        entries: what the recipe sets for the target's sessions; every setting is opened with it.
        quick: try fewer settings.
        machine: digest of the machine and its runtimes, which times belong to.
    """
    task = spec.build()
    tokenizer, encoded, _ = capture.evaluation(data, task)
    candidate = candidates.Candidate(
        name=target, path=str(export.file), head=task.head, entries=entries
    )
    trials, minutes = TRIALS[quick], MINUTES[quick]
    results = []
    for goal in goals:

        def on_trial(number: int, _: Tried, what: str = f"tuning {target} for {goal}") -> None:
            context.progress(what, number, trials)

        result = tuning.tune(
            candidate,
            encoded.flat,
            tokenizer.pad_id,
            goal=goal,
            longest=tokenizer.max_length,
            trials=trials,
            minutes=minutes,
            seed=seed,
            on_trial=on_trial,
        )
        results.append(result)
    context.write(artifacts.TUNED, artifacts.TunedResults(results=tuple(results)))
    return {result.goal: result.ratio.value for result in results}
