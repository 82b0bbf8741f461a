"""Steps become artifacts, artifacts become the output directory.

A step whose artifact is in the store is reused, so running again resumes. A failure ends the run and is written to
`events.jsonl`, never to the store.
"""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Protocol, TypeVar

from octobert.config.loading import as_yaml
from octobert.config.recipe import Choice, Recipe
from octobert.core import archives, environment, logs
from octobert.core.errors import ModelError, OctobertError, PublishedFileWarning, StorageError
from octobert.core.files import atomic_write, canonical_digest, digest_or_none, digests_of, disk_error, remove, storage_errors
from octobert.core.inputs import unchanged
from octobert.core.results import TRAINED, DataFacts, Finetuned, Report, Verdict
from octobert.core.sweep import Sweep
from octobert.evaluation import candidates
from octobert.inference import tuned_file
from octobert.pipeline import events, keys
from octobert.pipeline.carrying import ITSELF
from octobert.pipeline.contract import Request, Step, StepResult, resolved
from octobert.pipeline.executors import Executor, local
from octobert.pipeline.lock import Hold, locked
from octobert.pipeline.planner import finetune_steps, steps_of, sweep_steps
from octobert.pipeline.publishing import HIDDEN, PAGES, Folder, check_output, publish, read_in, recover
from octobert.pipeline.stages import evaluate as evaluate_stage
from octobert.pipeline.stages import report as report_stage
from octobert.pipeline.stages import sweep as sweep_stage
from octobert.pipeline.stages._artifacts import CHECKPOINT
from octobert.pipeline.store import FOLDER, POINTER, Artifact, Store, manifest_of

R = TypeVar("R")


class Listener(Protocol):
    """Told what a run does; the command line draws it."""

    def planned(self, steps: Sequence[Step]) -> None: ...
    def started(self, step: Step) -> None: ...
    def progressed(self, step: Step, what: str, done: int, total: int) -> None: ...
    def finished(self, step: Step, artifact: Artifact, reused: bool) -> None: ...


class Silent:
    """A listener that says nothing."""

    def planned(self, steps: Sequence[Step]) -> None: ...
    def started(self, step: Step) -> None: ...
    def progressed(self, step: Step, what: str, done: int, total: int) -> None: ...
    def finished(self, step: Step, artifact: Artifact, reused: bool) -> None: ...


def dry_run(recipe: Recipe, out: Path, steps_of: Callable[[Recipe], Sequence[Step]] = steps_of) -> list[Verdict]:
    """What a run would reuse and what it would do, without doing it.

    Args:
        steps_of: makes the steps; those of `run` by default.
    """
    store = Store(_kept_in(recipe, out) / FOLDER)
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
    check_output(steps, out)

    def finish(results: Mapping[str, StepResult], hold: Hold) -> tuple[Report, list[str]]:
        from octobert.report import html

        report = results["report"].read(report_stage.REPORT, Report)
        folders = {target: _folder(results[f"package/{target}"]) for target in recipe.targets}
        if recipe.zip:
            zips = {f"{target}{archives.SUFFIX}": results[f"archive/{target}"] for target in recipe.targets}
            folders |= {name: _file(result, name) for name, result in zips.items()}
        trained = next((name for name in ("qat", "finetune") if name in results), None)
        if trained is not None:
            folders[CHECKPOINT] = _folder(results[trained], CHECKPOINT)
        pages = dict(zip(PAGES, (report.model_dump_json(indent=1), html.page(report)), strict=True))
        # Settings that the user has tuned since then are for the same model: they stay.
        kept = {target: _is_there(out / target, folders[target]) for target in report.tuned}
        notes = publish(out, folders, pages, hold, needed=read_in(out, steps))
        for target, tuned in report.tuned.items():
            try:
                for result in tuned:
                    tuned_file.write_tuned(out / target, result, replace=not kept[target])
            except ModelError as error:
                # The file is the user's, and the packages are complete.
                notes.append(str(error))
        return report, notes

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
    check_output(steps, out)

    def finish(results: Mapping[str, StepResult], hold: Hold) -> tuple[Finetuned, list[str]]:
        trained, evaluated = results["finetune"], results[f"evaluate/{candidates.CHECKPOINT.name}"]
        notes = publish(out, {CHECKPOINT: _folder(trained, CHECKPOINT)}, {}, hold)
        finetuned = Finetuned(
            trained=trained.read_json(f"{CHECKPOINT}/{TRAINED}"),
            data=DataFacts.model_validate(manifest_of(results["data"]).summary),
            scores=evaluated.read(evaluate_stage.SCORES, evaluate_stage.Scores).scores,
        )
        return finetuned, notes

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

    def finish(results: Mapping[str, StepResult], hold: Hold) -> tuple[Sweep, list[str]]:
        return results[f"sweep/{recipe.targets[0]}"].read(sweep_stage.FACTS, Sweep), []

    steps = sweep_steps(recipe, calibrators)
    check_output(steps, out)
    return _run_steps(steps, recipe, out, listener or Silent(), executor, finish)


def _is_there(place: Path, folder: Folder) -> bool:
    """Whether the files of a package are in the output directory already."""
    return all(digest_or_none(place / name) == digest for name, digest in folder.files.items())


def _folder(result: StepResult, inner: str = "") -> Folder:
    """The files of a result, or those in one of its folders, to be published."""
    files = {PurePosixPath(name): digest for name, digest in manifest_of(result).files.items()}
    own = {name.relative_to(inner).as_posix(): digest for name, digest in files.items() if name.is_relative_to(inner)}
    return Folder(result.path(inner), own)


def _file(result: StepResult, name: str) -> Folder:
    """One file of a result, to be published by itself."""
    return Folder(result.path(name), {ITSELF: manifest_of(result).files[name]})


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
    finish: Callable[[Mapping[str, StepResult], Hold], tuple[R, list[str]]],
) -> R:
    """Make or reuse every step under the lock, then `finish` with their results and say what they noted."""
    listener.planned(steps)
    place = _kept_in(recipe, out)
    # A store in another folder has a lock of its own.
    with (
        logs.at_level(recipe.log_level),
        locked(out / HIDDEN) as hold,
        locked(place) if recipe.cache else nullcontext(hold) as kept,
    ):
        _point(out / HIDDEN, place)
        store, log = Store(place / FOLDER), events.Events(out / HIDDEN / events.FILE)
        log.write("run", recipe=as_yaml(recipe), interrupted=store.sweep())
        work, made = _Work(store, kept, log, listener, executor), dict[str, Artifact]()
        try:
            with storage_errors(out):
                notes = recover(out)
            for step in steps:
                made[step.name] = work.carry_out(step, made)
            folders = {name: store.path(artifact.stage, artifact.key) for name, artifact in made.items()}
            results = {name: StepResult(step=name, folder=folder) for name, folder in folders.items()}
            with storage_errors(out):
                result, noted = finish(results, hold)
        except Exception as error:
            # Without its folder a run fails in many ways; the folder is the cause.
            hold.check()
            raised = disk_error(error, out) if isinstance(error, OSError) else error
            log.failed(raised)
            if raised is error:
                raise
            raise raised from error
        log.write("done", entries=sorted(folder.name for folder in folders.values()), notes=[*notes, *noted])
        for note in (*notes, *noted):
            warnings.warn(note, PublishedFileWarning, stacklevel=3)
    return result


@dataclass(frozen=True)
class _Work:
    """Carries out the steps of one run."""

    store: Store
    hold: Hold
    log: events.Events
    listener: Listener
    executor: Executor

    def carry_out(self, step: Step, made: Mapping[str, Artifact]) -> Artifact:
        """Reuse a step's artifact, or run its stage and store what it made."""
        key = key_of(step, made)
        stored = self.store.find(step.stage, key)
        if stored is not None:
            self.log.write("reused", step=step.name, key=key)
            self.listener.finished(step, stored, True)
            return stored
        self.listener.started(step)
        self.log.write("started", step=step.name, key=key)
        artifact = self._make(step, key, made)
        summary, seconds = artifact.summary, round(artifact.seconds, 3)
        self.log.write("finished", step=step.name, key=key, summary=summary, seconds=seconds)
        self.listener.finished(step, artifact, False)
        return artifact

    def _make(self, step: Step, key: str, made: Mapping[str, Artifact]) -> Artifact:
        """Run a step's stage and store what it made."""
        store = self.store
        folders = {name: store.path(made[name].stage, made[name].key) for name in step.needs.values()}
        request = Request(
            stage=step.stage,
            inputs=resolved(step.inputs, folders).model_dump(mode="json"),
            options=step.options.model_dump(mode="json", by_alias=True),
            scratch=store.scratch(step.stage, key),
            temporary=store.temporary(),
        )
        work = store.begin(step.stage, key)
        try:
            try:
                with storage_errors(work):
                    response = self.executor(request, work, partial(self.listener.progressed, step), step.launch)
            except OctobertError as error:
                _check_inputs(step, error)
                raise
            _check_inputs(step)
            artifact = Artifact(
                stage=step.stage,
                key=key,
                files=digests_of(work),
                inputs={name: made[source].digest for name, source in step.needs.items()},
                options=request.options,
                versions=environment.versions((*environment.PACKAGES, *environment.runtime_packages())),
                summary=response.summary,
                seconds=response.seconds,
                peak_memory_bytes=response.peak_memory_bytes,
            )
            self.hold.check()
            store.commit(work, artifact)
        except BaseException:
            shutil.rmtree(work, ignore_errors=True)
            raise
        finally:
            shutil.rmtree(request.temporary, ignore_errors=True)
        return artifact


def _kept_in(recipe: Recipe, out: Path) -> Path:
    """The folder that has the store of a run."""
    return Path(recipe.cache).absolute() if recipe.cache else out / HIDDEN


def _point(hidden: Path, place: Path) -> None:
    """Note in an output directory where its store is."""
    with storage_errors(hidden):
        if place == hidden:
            remove(hidden / POINTER)
        else:
            with atomic_write(hidden / POINTER) as partial:
                partial.write_text(str(place), encoding="utf-8")


def _check_inputs(step: Step, failed: OctobertError | None = None) -> None:
    """Make sure that the files of the user which a stage has read are still those that its key was made from.

    Args:
        failed: why the stage failed, if it did.

    Raises:
        StorageError: they have changed in the meantime, which may also be why the stage failed.
    """
    for files in step.reads:
        if not unchanged(files):
            what, where = "the files were changed while octobert read them", ", ".join(map(str, dict.fromkeys(files.places)))
            raise StorageError(what, where=where, fix="run the same command again") from failed


def earlier_seconds(out: Path) -> dict[str, float]:
    """How long each step took when it last ran for an output directory, as its events say."""
    seconds = {}
    with suppress(StorageError):
        for event in events.read(out / HIDDEN / events.FILE):
            with suppress(ValueError, KeyError, TypeError):
                if event["event"] == "finished":
                    seconds[str(event["step"])] = float(event["seconds"])
    return seconds
