"""The work of a run: steps are carried out under the locks of the output directory and of the store.

A step whose artifact is in the store is reused, so running again resumes. A failure is written to `events.jsonl`, never to the
store. Independent chains of steps are carried out at the same time where the executor has room for several.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from octobert.config.loading import as_yaml
from octobert.config.recipe import Recipe
from octobert.core import environment, logs
from octobert.core.errors import KilledError, OctobertError, PublishedFileWarning, StorageError
from octobert.core.files import (
    atomic_write,
    canonical_digest,
    digests_of,
    disk_error,
    remove,
    storage_errors,
)
from octobert.core.frozen import FrozenModel
from octobert.core.lock import FolderLock, locked
from octobert.core.progress import ProgressCallback
from octobert.engine import events, keys
from octobert.engine.contract import WITH_MANIFESTS, Request, Step, StepResult, resolved, unchanged
from octobert.engine.executors import ConcurrentExecutor, Executor
from octobert.engine.publishing import HIDDEN, discard
from octobert.engine.store import FOLDER, POINTER, Artifact, Store
from octobert.engine.telling import Teller

M = TypeVar("M", bound=FrozenModel)
_DECISION = "decided.json"
# The size of the store after a run, in sizes of the checkpoint.
KEPT = 2


def key_of(step: Step, artifacts: Mapping[str, Artifact]) -> str:
    """The key of a step whose inputs are all made."""
    fields = type(step.inputs).model_fields
    digests = {}
    for name, source in step.needs.items():
        whole = WITH_MANIFESTS in fields[name.partition("/")[0]].metadata
        digests[name] = (
            canonical_digest(artifacts[source].model_dump(mode="json"))
            if whole
            else artifacts[source].digest
        )
    return keys.key_of(step, digests)


@dataclass(frozen=True)
class Work:
    """Carries out the steps of one run.

    Args:
        store: where results are stored.
        lock: of the output directory.
        store_lock: of the store, which may be in another folder.
        log: of the run.
        teller: tells what happens.
        executor: runs stages.
        entries: names of the results in the store that the run has used; it grows.
        known: key → a result that this run has made, or has found and verified; it is not verified again.
        reused: keys of those that were found.
        origins: key of a result without its large files → what makes it again.
        locks: name of a result → held by the thread that makes it.
    """

    store: Store
    lock: FolderLock
    store_lock: FolderLock
    log: events.Events
    teller: Teller
    executor: Executor
    entries: set[str] = field(default_factory=set)
    known: dict[str, Artifact] = field(default_factory=dict)
    reused: set[str] = field(default_factory=set)
    origins: dict[str, tuple[Step, Mapping[str, Artifact]]] = field(default_factory=dict)
    locks: dict[str, threading.Lock] = field(default_factory=dict)

    def carry_out(self, step: Step, artifacts: Mapping[str, Artifact]) -> Artifact:
        """Reuse a step's artifact, or run its stage and store what it made.

        Args:
            artifacts: the artifacts of earlier steps, by the names of the steps.

        Raises:
            OctobertError: the stage failed, or what it reads was changed meanwhile.
        """
        key = key_of(step, artifacts)
        name = self.store.path(step.stage, key).name
        self.entries.add(name)
        # What two chains need is made by one of them; the other one finds it.
        with self.locks.setdefault(name, threading.Lock()):
            if key in self.known:
                return self.known[key]
            stored = self.store.find(step.stage, key)
            if stored is not None:
                self.known[key] = stored
                self.reused.add(key)
                self.origins[key] = step, dict(artifacts)
                self.log.write("reused", step=step.name, key=key)
                self.teller.finished(step, stored, reused=True)
                return stored
            self.teller.started(step)
            self.log.write("started", step=step.name, key=key)
            artifact = self.known[key] = self._make(step, key, artifacts)
        summary, seconds = artifact.summary, round(artifact.seconds, 3)
        self.log.write("finished", step=step.name, key=key, summary=summary, seconds=seconds)
        self.teller.finished(step, artifact, reused=False)
        return artifact

    def carry_out_all(
        self, steps: Iterable[Step], earlier: Mapping[str, Artifact] | None = None
    ) -> dict[str, Artifact]:
        """Carry out steps in order; all artifacts, by the names of their steps.

        Args:
            earlier: the artifacts of earlier steps.

        Raises:
            OctobertError: as `carry_out`.
        """
        artifacts = dict(earlier or {})
        for step in steps:
            artifacts[step.name] = self.carry_out(step, artifacts)
        return artifacts

    def carry_out_chains(
        self, chains: Mapping[str, Sequence[Step]], artifacts: Mapping[str, Artifact]
    ) -> dict[str, dict[str, Artifact] | OctobertError]:
        """Carry out chains of steps that do not depend on each other, as many at a time as the executor has room for.

        Args:
            chains: name → steps, in order. The same step may be in several chains; it is made once.
            artifacts: the artifacts that every chain begins with.

        Returns:
            Name → `artifacts` with those of the chain, by the names of the steps; or the error that ended this chain.

        Raises:
            BaseException: whatever is no error of a stage, such as Ctrl-C. It ends all chains.
        """
        several = self.executor if isinstance(self.executor, ConcurrentExecutor) else None
        if several is None or several.concurrency == 1:
            return {name: self._chain(name, steps, artifacts) for name, steps in chains.items()}
        with ThreadPoolExecutor(several.concurrency, thread_name_prefix="octobert-chain") as pool:
            chained = {
                name: pool.submit(self._chain, name, steps, artifacts)
                for name, steps in chains.items()
            }
            try:
                # The first chain that ends in no ordinary way ends the others.
                for chain in as_completed(chained.values()):
                    chain.result()
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                several.stop()
                raise
        return {name: chain.result() for name, chain in chained.items()}

    def _chain(
        self, name: str, steps: Sequence[Step], earlier: Mapping[str, Artifact]
    ) -> dict[str, Artifact] | OctobertError:
        artifacts = dict(earlier)
        try:
            for step in steps:
                artifacts[step.name] = self._carry_out_twice(step, artifacts)
        except OctobertError as error:
            # Without its folder a chain fails in many ways; the folder is the cause, and of all chains.
            self.lock.check()
            self.log.failed(error, chain=name)
            return error
        return artifacts

    def _carry_out_twice(self, step: Step, artifacts: Mapping[str, Artifact]) -> Artifact:
        """Carry out a step, once more where its process was killed: memory that was short at that moment rules out nothing."""
        try:
            return self.carry_out(step, artifacts)
        except KilledError as error:
            self.lock.check()
            self.log.failed(error, again=step.name)
            return self.carry_out(step, artifacts)

    def remember(self, name: str, key: str, decided: FrozenModel) -> None:
        """Store what a run has decided, so that the same run decides the same when it goes on."""
        with self.store.making(name, key) as (work, _):
            with storage_errors(work):
                (work / _DECISION).write_text(decided.model_dump_json(), encoding="utf-8")
            empty: dict[str, Any] = {"inputs": {}, "options": {}, "summary": {}, "versions": {}}
            artifact = Artifact(
                stage=name,
                key=key,
                files=digests_of(work),
                seconds=0.0,
                peak_memory_bytes=0,
                **empty,
            )
            self.store_lock.check()
            self.entries.add(self.store.commit(work, artifact).name)

    def remembered(self, name: str, key: str, kind: type[M]) -> M | None:
        """What an earlier run has decided; None where there is nothing."""
        if self.store.find(name, key) is None:
            return None
        path = self.store.path(name, key)
        self.entries.add(path.name)
        return StepResult(step=name, folder=path).read(_DECISION, kind)

    def checkpoint_bytes(self) -> int:
        """The size of the weights of the models that were captured; 0 where none was."""
        captured = (a.summary for a in self.known.values() if a.stage == "capture")
        return max((int(summary.get("source_bytes", 0)) for summary in captured), default=0)

    def make_whole(self, artifact: Artifact) -> None:
        """Make a result again whose large files were removed after an earlier run.

        Raises:
            StorageError: it is not what it was.
        """
        with self.locks.setdefault(
            self.store.path(artifact.stage, artifact.key).name, threading.Lock()
        ):
            if self.store.is_whole(artifact):
                return
            step, earlier = self.origins[artifact.key]
            self.teller.started(step)
            self._make(step, artifact.key, earlier, stored=artifact)
            self.teller.finished(step, artifact, reused=False)

    def results(self, artifacts: Mapping[str, Artifact]) -> dict[str, StepResult]:
        """Artifacts as results with their folders, by the names of their steps."""
        folders = {
            name: self.store.path(artifact.stage, artifact.key)
            for name, artifact in artifacts.items()
        }
        return {name: StepResult(step=name, folder=folder) for name, folder in folders.items()}

    def _make(
        self,
        step: Step,
        key: str,
        artifacts: Mapping[str, Artifact],
        stored: Artifact | None = None,
    ) -> Artifact:
        """Run a step's stage and store what it made.

        Args:
            stored: what it made before, and must make again.
        """
        store = self.store
        for name in dict.fromkeys(step.needs.values()):
            self.make_whole(artifacts[name])
        folders = {
            name: store.path(artifacts[name].stage, artifacts[name].key)
            for name in step.needs.values()
        }
        with store.making(step.stage, key) as (work, temporary):
            request = Request(
                stage=step.stage,
                inputs=resolved(step.inputs, folders).model_dump(mode="json"),
                options=step.options_as_json,
                scratch=store.scratch(step.stage, key),
                temporary=temporary,
            )
            try:
                with storage_errors(work):
                    response = self.executor(
                        request,
                        work,
                        partial(self.teller.progressed, step),
                        step.launch,
                    )
            except OctobertError as error:
                _check_inputs(step, error)
                raise
            _check_inputs(step)
            artifact = Artifact(
                stage=step.stage,
                key=key,
                files=digests_of(work),
                inputs={name: artifacts[source].digest for name, source in step.needs.items()},
                options=request.options,
                versions=environment.versions(
                    (*environment.PACKAGES, *environment.runtime_packages())
                ),
                summary=response.summary,
                seconds=response.seconds,
                peak_memory_bytes=response.peak_memory_bytes,
            )
            if stored is not None and artifact.files != stored.files:
                raise StorageError(
                    "a result that was made again is not what it was",
                    where=str(store.path(step.stage, key)),
                    got=step.name,
                    fix="octobert clean OUT, and run the same command again",
                )
            self.store_lock.check()
            store.commit(work, stored or artifact)
        return artifact


@contextmanager
def at_work(
    recipe: Recipe, out: Path, callback: ProgressCallback, executor: Executor
) -> Iterator[tuple[Work, list[str]]]:
    """Hold the output directory and the store of a recipe while its steps are carried out.

    Args:
        callback: called with what happens.

    Yields:
        (What carries out steps, notes for the user, to which more may be added. They become warnings at the end.)

    Raises:
        OctobertError: whatever went wrong, which is also written to the log.
    """
    hidden, place = out / HIDDEN, store_home(recipe, out)
    new = [folder for folder in (hidden, out, *out.parents) if not os.path.lexists(folder)]
    # A store in another folder has a lock of its own.
    with (
        logs.at_level(recipe.log_level),
        locked(hidden) as lock,
        locked(place) if place.absolute() != hidden.absolute() else nullcontext(lock) as store_lock,
    ):
        _point(hidden, place)
        store, log = Store(place / FOLDER), events.Events(hidden / events.FILE)
        log.write("run", recipe=as_yaml(recipe), interrupted=store.sweep())
        work = Work(store, lock, store_lock, log, Teller(callback, out), executor)
        with _nothing_left(work, new):
            try:
                with storage_errors(out):
                    discard(out)
                notes: list[str] = []
                yield work, notes
                if store_lock is lock and (most := work.checkpoint_bytes()):
                    # A cache in another folder belongs to many runs, and is the user's to clean.
                    store.shrink(KEPT * most)
            except Exception as error:
                # Without its folder a run fails in many ways; the folder is the cause.
                lock.check()
                raised = disk_error(error, out) if isinstance(error, OSError) else error
                log.failed(raised)
                if raised is error:
                    raise
                raise raised from error
        log.write("done", entries=sorted(work.entries), notes=notes)
        for note in notes:
            warnings.warn(note, PublishedFileWarning, stacklevel=5)


@contextmanager
def _nothing_left(work: Work, new: Sequence[Path]) -> Iterator[None]:
    """Remove what a run has made, under its locks, where it fails before it has a result.

    Args:
        new: folders that were not there before: the hidden one, the output directory, and those that hold it.
    """
    try:
        yield
    except BaseException:
        if not work.known and new:
            with suppress(OSError):
                remove(new[0])
                for folder in new[1:]:
                    folder.rmdir()
        raise


def store_home(recipe: Recipe, out: Path) -> Path:
    """The hidden folder that has the store of a run."""
    return (
        Path(os.path.expanduser(recipe.cache)).absolute() / HIDDEN if recipe.cache else out / HIDDEN
    )


def _point(hidden: Path, place: Path) -> None:
    """Note in an output directory where its store is."""
    with storage_errors(hidden):
        if place.absolute() == hidden.absolute():
            remove(hidden / POINTER)
        else:
            with atomic_write(hidden / POINTER) as partial:
                partial.write_text(str(place.parent), encoding="utf-8")


def _check_inputs(step: Step, failed: OctobertError | None = None) -> None:
    """Make sure that the files of the user which a stage has read are still those that its key was made from.

    Args:
        failed: why the stage failed, if it did.

    Raises:
        StorageError: they have changed in the meantime, which may also be why the stage failed.
    """
    for files in step.reads:
        if not unchanged(files):
            raise StorageError(
                "the files were changed while octobert read them",
                where=", ".join(map(str, dict.fromkeys(files.places))),
                fix="run the same command again",
            ) from failed
