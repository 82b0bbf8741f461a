"""Steps become artifacts, artifacts become the output directory.

Each step of `steps.steps_of` has a key; a step whose artifact is in the store is reused, so running again is how a run resumes.
A failure ends the run and is written to `events.jsonl`, never to the store.
"""

from __future__ import annotations

import importlib
import json
import shutil
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from octobert.config.recipe import Choice, Recipe, as_yaml
from octobert.core import environment
from octobert.core.errors import OctobertError, StorageError
from octobert.core.files import canonical_digest, digests_of, link_or_copy, storage_errors
from octobert.core.results import PACKAGE_FILE, TRAINED, DataFacts, Finetuned, Report, Sweep
from octobert.pipeline.executors import local
from octobert.pipeline.planner import Step, finetune_steps, steps_of, sweep_steps
from octobert.pipeline.stages import CHECKPOINT
from octobert.pipeline.stages.evaluate import Scores
from octobert.pipeline.store import MANIFEST, Artifact, Store, locked

HIDDEN = ".octobert"
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


@dataclass(frozen=True)
class Verdict:
    """Whether a step would be reused or run, and why."""

    step: str
    action: str
    reason: str


def dry_run(recipe: Recipe, out: Path) -> list[Verdict]:
    """What a run would reuse and what it would do, without doing it."""
    store = Store(out / HIDDEN / "store")
    known: dict[str, Artifact | None] = {}
    verdicts = []
    for step in steps_of(recipe):
        waiting = [name for name in step.inputs.values() if known.get(name) is None]
        if waiting:
            known[step.name] = None
            verdicts.append(Verdict(step.name, "run", f"{waiting[0]} has to run first"))
            continue
        artifact = store.find(step.stage, key_of(_completed(step, known), known))
        known[step.name] = artifact
        reason = f"stored as {store.path(step.stage, artifact.key).name}" if artifact else "not in the store"
        verdicts.append(Verdict(step.name, "reuse" if artifact else "run", reason))
    return verdicts


def run(recipe: Recipe, out: Path, listener: Listener | None = None) -> Report:
    """Carry out a recipe.

    Args:
        out: the output directory: report, one package a target, and the store.

    Raises:
        OctobertError: whatever went wrong; the same command resumes once it is mended.
    """
    steps = steps_of(recipe)
    _check_output(recipe.targets, out)

    def finish(folders: dict[str, Path]) -> Report:
        report = Report.model_validate_json((folders["report"] / "report.json").read_text(encoding="utf-8"))
        with storage_errors(out):
            _publish(recipe, out, folders, report)
        return report

    return _run_steps(steps, recipe, out, listener or Silent(), finish)


def finetune(recipe: Recipe, out: Path, listener: Listener | None = None) -> Finetuned:
    """Train a float model and judge it in PyTorch.

    Args:
        out: the output directory: `checkpoint`, and the store.

    Raises:
        OctobertError: whatever went wrong; the same command resumes once it is mended.
    """
    steps = finetune_steps(recipe)
    _check_output((), out)

    def finish(folders: dict[str, Path]) -> Finetuned:
        with storage_errors(out):
            _replace(out, {CHECKPOINT: folders["finetune"] / CHECKPOINT})
        trained = json.loads((out / CHECKPOINT / TRAINED).read_text(encoding="utf-8"))
        scores = Scores.model_validate_json((folders["evaluate/torch-f32"] / "scores.json").read_text(encoding="utf-8")).scores
        manifest = Artifact.model_validate_json((folders["data"] / MANIFEST).read_text(encoding="utf-8"))
        return Finetuned(trained=trained, data=DataFacts.model_validate(manifest.summary), scores=scores)

    return _run_steps(steps, recipe, out, listener or Silent(), finish)


def sweep(recipe: Recipe, calibrators: Sequence[Choice], out: Path, listener: Listener | None = None) -> Sweep:
    """Compare calibrators on one pass over the calibration rows, for the recipe's first target.

    Raises:
        OctobertError: whatever went wrong.
    """

    def finish(folders: dict[str, Path]) -> Sweep:
        folder = folders[f"sweep/{recipe.targets[0]}"]
        return Sweep.model_validate_json((folder / "sweep.json").read_text(encoding="utf-8"))

    return _run_steps(sweep_steps(recipe, calibrators), recipe, out, listener or Silent(), finish)


def _run_steps(
    steps: Sequence[Step], recipe: Recipe, out: Path, listener: Listener, finish: Callable[[dict[str, Path]], R]
) -> R:
    """Make or reuse every step under the lock, then `finish` with their folders."""
    with locked(out / HIDDEN):
        store = Store(out / HIDDEN / "store")
        events = _Events(out / HIDDEN / "events.jsonl")
        interrupted = store.sweep()
        events.write("run", recipe=as_yaml(recipe), interrupted=interrupted)
        made: dict[str, Artifact | None] = {}
        try:
            for step in steps:
                made[step.name] = _carry_out(_completed(step, made), made, store, events, listener)
            result = finish({name: store.path(a.stage, a.key) for name, a in made.items() if a is not None})
        except Exception as error:
            details = (
                error.to_json() if isinstance(error, OctobertError) else {"type": type(error).__name__, "what": str(error)}
            )
            events.write("failure", error=details, traceback=getattr(error, "traceback", traceback.format_exc()))
            raise
        events.write("done")
    return result


def key_of(step: Step, made: dict[str, Artifact | None]) -> str:
    """The key of a step whose inputs are all made."""
    version = importlib.import_module(f"octobert.pipeline.stages.{step.stage}").VERSION
    inputs = {name: made[source].digest for name, source in step.inputs.items()}  # type: ignore[union-attr]
    return canonical_digest({"stage": step.stage, "version": version, "options": step.options, "inputs": inputs})


def _completed(step: Step, made: dict[str, Artifact | None]) -> Step:
    """The report also shows how every step before it went; that is known only when they are done."""
    if step.stage != "report":
        return step
    stages = {
        name: {"summary": a.summary, "seconds": a.seconds, "peak_memory_bytes": a.peak_memory_bytes, "key": a.key}
        for name, a in made.items()
        if a is not None
    }
    rows = made["data"]
    summary = rows.summary if rows is not None else {}
    return Step(step.name, step.stage, step.inputs, {**step.options, "stages": stages, "data_summary": summary}, step.locations)


def _carry_out(step: Step, made: dict[str, Artifact | None], store: Store, events: _Events, listener: Listener) -> Artifact:
    key = key_of(step, made)
    stored = store.find(step.stage, key)
    if stored is not None:
        events.write("reused", step=step.name, key=key)
        listener.finished(step, stored, True)
        return stored
    listener.started(step)
    events.write("started", step=step.name, key=key)
    work = store.begin(step.stage, key)
    try:
        with storage_errors(work):
            inputs = {n: str(store.path(made[s].stage, made[s].key)) for n, s in step.inputs.items()}  # type: ignore[union-attr]
            scratch = str(store.scratch(step.stage, key))
            request = {
                "stage": step.stage,
                "inputs": inputs,
                "options": step.options,
                "locations": step.locations,
                "scratch": scratch,
            }
            told = lambda what, done, total: listener.progressed(step, what, done, total)  # noqa: E731
            response = local.run(request, work, told, step.launch)
        artifact = Artifact(
            stage=step.stage,
            key=key,
            files=digests_of(work),
            inputs={n: made[s].digest for n, s in step.inputs.items()},  # type: ignore[union-attr]
            options=step.options,
            versions=environment.versions(environment.PACKAGES),
            **response,
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


def _publish(recipe: Recipe, out: Path, folders: dict[str, Path], report: Report) -> None:
    """Put the packages and the report where the user looks, each at once and whole.

    Everything that can fail is made first, in the hidden folder; what follows are renames.
    """
    from octobert.report import html

    hidden = out / HIDDEN
    published = {target: folders[f"package/{target}"] for target in recipe.targets}
    trained = next((name for name in ("qat", "finetune") if name in folders), None)
    if trained is not None:
        published[CHECKPOINT] = folders[trained] / CHECKPOINT
    pages = {"report.json": report.model_dump_json(indent=1), "report.html": html.page(report)}
    for name, text in pages.items():
        (hidden / f"{name}.partial").write_text(text, encoding="utf-8")
    _replace(out, published)
    for name in pages:
        (hidden / f"{name}.partial").rename(out / name)


def _replace(out: Path, published: dict[str, Path]) -> None:
    """Put copies of folders where the user looks, in place of what an earlier run put there."""
    hidden = out / HIDDEN
    for name, folder in published.items():
        shutil.rmtree(hidden / f"publish-{name}", ignore_errors=True)
        for file in sorted(p for p in folder.rglob("*") if p.is_file() and p.name != MANIFEST):
            link_or_copy(file, hidden / f"publish-{name}" / file.relative_to(folder))
    for name in published:
        old = hidden / f"replaced-{name}"
        shutil.rmtree(old, ignore_errors=True)
        if (out / name).exists():
            (out / name).rename(old)
        (hidden / f"publish-{name}").rename(out / name)
        shutil.rmtree(old, ignore_errors=True)


def _check_output(targets: Sequence[str], out: Path) -> None:
    """Refuse an output directory that is something else."""
    if out.exists() and not out.is_dir():
        raise StorageError("the output directory is a file", where=str(out), fix="choose another --out")
    for name, mark in {**dict.fromkeys(targets, PACKAGE_FILE), CHECKPOINT: TRAINED}.items():
        foreign = (out / name).exists() and not (out / name / mark).is_file()
        if foreign:
            raise StorageError(
                "something that is not octobert's lies where a package or a checkpoint will be written",
                where=str(out / name),
                fix="move it away, or choose another --out",
            )
