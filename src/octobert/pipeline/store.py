"""The store: results under keys made of everything they depend on, visible only when whole.

    STORE/<stage>-<key>/artifact.json     manifest, written last: digests of the files, inputs, options, versions
    STORE/scratch-<stage>-<key>/          what a long stage has found so far; gone once its result is stored
    STORE/work-<stage>-<key>-<pid>/       a result in the making; whatever is left of one was interrupted and is removed

A key is the sha256 of {stage, version of the stage's code, the options it reads, digests of its inputs}. Names and paths of
models and data are never part of it; their content is. A failure is never stored.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from octobert.core.errors import BusyError
from octobert.core.files import canonical_digest, disk_error, file_digest, storage_errors
from octobert.core.frozen import FrozenModel

MANIFEST = "artifact.json"
_LOCK, _HOLDER = "lock", "process"


class Artifact(FrozenModel):
    """The manifest of one stored result.

    Args:
        stage: which stage made it.
        key: what it was made from.
        files: relative path → sha256.
        inputs: name → digest of the input artifact.
        options: what the stage read of the recipe.
        summary: a few figures for people and for the report.
        versions: of the packages that did the work.
        seconds: how long it took.
        peak_memory_bytes: of the process that made it.
    """

    stage: str
    key: str
    files: dict[str, str]
    inputs: dict[str, str]
    options: dict[str, Any]
    summary: dict[str, Any]
    versions: dict[str, str]
    seconds: float
    peak_memory_bytes: int

    @property
    def digest(self) -> str:
        """What later stages depend on: the content, not how it came about."""
        return canonical_digest(self.files)


class Store:
    """Stored results below one folder."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def path(self, stage: str, key: str) -> Path:
        """Where a result is, or will be."""
        return self.root / f"{stage}-{key[:16]}"

    def find(self, stage: str, key: str) -> Artifact | None:
        """A whole result whose files still have their digests, or None."""
        folder = self.path(stage, key)
        try:
            artifact = Artifact.model_validate_json((folder / MANIFEST).read_text())
        except (OSError, ValueError):
            return None
        intact = all((folder / f).is_file() and file_digest(folder / f) == d for f, d in artifact.files.items())
        return artifact if intact and artifact.key == key else None

    def begin(self, stage: str, key: str) -> Path:
        """An empty work folder for a result; what an interrupted run left of it is removed."""
        # The process id keeps apart this run and the last breath of a child whose parent was killed.
        work = self.root / f"work-{stage}-{key[:16]}-{os.getpid()}"
        with storage_errors(work):
            shutil.rmtree(work, ignore_errors=True)
            work.mkdir(parents=True)
        return work

    def commit(self, work: Path, artifact: Artifact) -> Path:
        """Make a finished result visible, at once and whole."""
        final = self.path(artifact.stage, artifact.key)
        with storage_errors(work):
            partial = work / f"{MANIFEST}.partial"
            partial.write_text(artifact.model_dump_json(indent=1))
            partial.rename(work / MANIFEST)
            shutil.rmtree(final, ignore_errors=True)
            work.rename(final)
            shutil.rmtree(self.scratch(artifact.stage, artifact.key), ignore_errors=True)
        return final

    def scratch(self, stage: str, key: str) -> Path:
        """Where a long stage may keep what it has found so far; it makes the folder, which outlives interruptions."""
        return self.root / f"scratch-{stage}-{key[:16]}"

    def sweep(self) -> list[str]:
        """Remove every work folder; called under the lock, so all of them are remains. Their names."""
        names = [folder.name for folder in self.root.glob("work-*")]
        for name in names:
            shutil.rmtree(self.root / name, ignore_errors=True)
        return names


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a folder against other runs. The lock belongs to the process and ends with it, however it ends.

    Raises:
        BusyError: another process holds it.
    """
    lock, holder = FileLock(folder / _LOCK), folder / _HOLDER
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire(blocking=False)
    except Timeout:
        got = holder.read_text().strip() if holder.is_file() else "unknown"
        raise BusyError(
            "another octobert run is at work in this directory",
            where=str(folder.parent),
            got=f"process {got}",
            fix="wait for it, or choose another --out",
        ) from None
    except OSError as error:
        raise disk_error(error, folder) from error
    try:
        with storage_errors(folder):
            holder.write_text(str(os.getpid()))
        yield
    finally:
        lock.release()
