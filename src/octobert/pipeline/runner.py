"""Steps become artifacts, artifacts become the output directory.

A step whose artifact is in the store is reused, so running again resumes. A failure ends the run and is written to
`events.jsonl`, never to the store.
"""

from __future__ import annotations

import json
import shutil
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

from octobert.config.loading import as_yaml
from octobert.config.recipe import Choice, Recipe
from octobert.core import environment
from octobert.core.errors import OctobertError
from octobert.core.files import canonical_digest, digests_of, storage_errors
from octobert.core.results import TRAINED, DataFacts, Finetuned, Report, Verdict
from octobert.core.sweep import Sweep
from octobert.evaluation import candidates
from octobert.pipeline import keys
from octobert.pipeline.contract import Request, Step, StepResult, resolved
from octobert.pipeline.executors import Executor, local
from octobert.pipeline.planner import finetune_steps, steps_of, sweep_steps
from octobert.pipeline.publishing import HIDDEN, check_output, publish, replace
from octobert.pipeline.stages import evaluate as evaluate_stage
from octobert.pipeline.stages import report as report_stage
from octobert.pipeline.stages import sweep as sweep_stage
from octobert.pipeline.stages._artifacts import CHECKPOINT
from octobert.pipeline.store import Artifact, Store, locked, manifest_of

R = TypeVar("R")


class Listener(Protocol):
    """Told what a run does; the command line draws it."""

    def started(self, step: Step) -> None: ...
    def progressed(self, step: Step, what: str, done: int, total: int) -> None: ...
    def finished(self, step: Step, artifact: Artifact, reused: bool) -> None: ...


class Silent:
    """A listener that says nothing."""

    def started(self, step: Step) -> None: ...
    def progressed(self, step: Step, what: str, done: int, total: int) -> None: ...
    def finished(self, step: Step, artifact: Artifact, reused: bool) -> None: ...


def dry_run(recipe: Recipe, out: Path, steps_of: Callable[[Recipe], Sequence[Step]] = steps_of) -> list[Verdict]:
    """What a run would reuse and what it would do, without doing it.

    Args:
        steps_of: makes the steps; those of `run` by default.
    """
    store = Store(out / HIDDEN / "store")
    made: dict[str, Artifact] = {}
    verdicts = []
    for step in steps_of(recipe):
        missing = [name for name in step.needs.values() if name not in made]
        if missing:
            verdicts.append(Verdict(step=step.name, action="run", reason=f"{missing[0]} has to run first"))
            continue
        artifact = store.find(step.stage, key_of(step, made))
        if artifact is None:
            verdicts.append(Verdict(step=step.name, action="run", reason="not in the store"))
        else:
            made[step.name] = artifact
            verdicts.append(
                Verdict(step=step.name, action="reuse", reason=f"stored as {store.path(step.stage, artifact.key).name}")
            )
    return verdicts


def run(recipe: Recipe, out: Path, listener: Listener | None = None, executor: Executor = local.run) -> Report:
    """Carry out a recipe.

    Args:
        out: the output directory: report, one package for each target, and the store.
        executor: where stages run.

    Raises:
        OctobertError: whatever went wrong; the same command resumes once it is mended.
    """
    steps = steps_of(recipe)
    check_output(recipe.targets, out)

    def finish(results: Mapping[str, StepResult]) -> Report:
        report = results["report"].read(report_stage.REPORT, Report)
        with storage_errors(out):
            publish(recipe, out, results, report)
        return report

    return _run_steps(steps, recipe, out, listener or Silent(), executor, finish)


def finetune(recipe: Recipe, out: Path, listener: Listener | None = None, executor: Executor = local.run) -> Finetuned:
    """Train a float model and evaluate it in PyTorch.

    Args:
        out: the output directory: `checkpoint`, and the store.
        executor: where stages run.

    Raises:
        OctobertError: whatever went wrong; the same command resumes once it is mended.
    """
    steps = finetune_steps(recipe)
    check_output((), out)

    def finish(results: Mapping[str, StepResult]) -> Finetuned:
        with storage_errors(out):
            replace(out, {CHECKPOINT: results["finetune"].path(CHECKPOINT)})
        evaluated = results[f"evaluate/{candidates.CHECKPOINT.name}"]
        return Finetuned(
            trained=json.loads((out / CHECKPOINT / TRAINED).read_text(encoding="utf-8")),
            data=DataFacts.model_validate(manifest_of(results["data"]).summary),
            scores=evaluated.read(evaluate_stage.SCORES, evaluate_stage.Scores).scores,
        )

    return _run_steps(steps, recipe, out, listener or Silent(), executor, finish)


def sweep(
    recipe: Recipe,
    calibrators: Sequence[Choice],
    out: Path,
    listener: Listener | None = None,
    executor: Executor = local.run,
) -> Sweep:
    """Compare calibrators on one pass over the calibration rows, for the recipe's first target.

    Raises:
        OctobertError: whatever went wrong.
    """

    def finish(results: Mapping[str, StepResult]) -> Sweep:
        return results[f"sweep/{recipe.targets[0]}"].read(sweep_stage.FACTS, Sweep)

    return _run_steps(sweep_steps(recipe, calibrators), recipe, out, listener or Silent(), executor, finish)


def key_of(step: Step, made: Mapping[str, Artifact]) -> str:
    """The key of a step whose inputs are all made."""
    whole = getattr(type(step.inputs), "READS_MANIFESTS", False)
    return keys.key_of(step, {name: _digest(made[source], whole=whole) for name, source in step.needs.items()})


def _digest(artifact: Artifact, *, whole: bool) -> str:
    return canonical_digest(artifact.model_dump(mode="json")) if whole else artifact.digest


def _run_steps(
    steps: Sequence[Step],
    recipe: Recipe,
    out: Path,
    listener: Listener,
    executor: Executor,
    finish: Callable[[Mapping[str, StepResult]], R],
) -> R:
    """Make or reuse every step under the lock, then `finish` with their results."""
    with locked(out / HIDDEN):
        store = Store(out / HIDDEN / "store")
        events = _Events(out / HIDDEN / "events.jsonl")
        interrupted = store.sweep()
        events.write("run", recipe=as_yaml(recipe), interrupted=interrupted)
        made: dict[str, Artifact] = {}
        try:
            for step in steps:
                made[step.name] = _carry_out(step, made, store, events, listener, executor)
            folders = {name: store.path(artifact.stage, artifact.key) for name, artifact in made.items()}
            result = finish({name: StepResult(step=name, folder=folder) for name, folder in folders.items()})
        except Exception as error:
            if isinstance(error, OctobertError):
                details: dict[str, Any] = error.to_json()
            else:
                details = {"type": type(error).__name__, "what": str(error)}
            events.write("failure", error=details, traceback=getattr(error, "traceback", "") or traceback.format_exc())
            raise
        events.write("done", entries=sorted(folder.name for folder in folders.values()))
    return result


def _carry_out(
    step: Step, made: Mapping[str, Artifact], store: Store, events: _Events, listener: Listener, executor: Executor
) -> Artifact:
    """Reuse a step's artifact, or run its stage and store what it made."""
    key = key_of(step, made)
    stored = store.find(step.stage, key)
    if stored is not None:
        events.write("reused", step=step.name, key=key)
        listener.finished(step, stored, True)
        return stored
    listener.started(step)
    events.write("started", step=step.name, key=key)
    work = store.begin(step.stage, key)
    folders = {name: store.path(made[name].stage, made[name].key) for name in step.needs.values()}
    options = step.options.model_dump(mode="json", by_alias=True)
    try:
        with storage_errors(work):
            request = Request(
                stage=step.stage,
                inputs=resolved(step.inputs, folders).model_dump(mode="json"),
                options=options,
                scratch=store.scratch(step.stage, key),
            )
            response = executor(
                request, work, lambda what, done, total: listener.progressed(step, what, done, total), step.launch
            )
        artifact = Artifact(
            stage=step.stage,
            key=key,
            files=digests_of(work),
            inputs={name: made[source].digest for name, source in step.needs.items()},
            options=options,
            versions=environment.versions((*environment.PACKAGES, *environment.runtime_packages())),
            summary=response.summary,
            seconds=response.seconds,
            peak_memory_bytes=response.peak_memory_bytes,
        )
        store.commit(work, artifact)
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise
    events.write("finished", step=step.name, key=key, summary=artifact.summary, seconds=round(artifact.seconds, 3))
    listener.finished(step, artifact, False)
    return artifact


class _Events:
    """`events.jsonl`: one JSON object a line, appended."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, event: str, **details: Any) -> None:
        line = {"time": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "event": event, **details}
        with storage_errors(self._path), self._path.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(line, ensure_ascii=False) + "\n")
