"""The store: results under keys made of everything they depend on (`keys`), visible only when whole.

    STORE/<stage>-<key>/artifact.json     manifest, written last: digests of the files, inputs, options, versions
    STORE/scratch-<stage>-<key>/          what a long stage keeps while it works; removed once its result is stored
    STORE/work-<stage>-<key>-<pid>/       a result that is being made; what an interrupted run left of it is removed

A failure is never stored.
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
from octobert.pipeline.contract import StepResult

MANIFEST = "artifact.json"
_LOCK, _HOLDER = "lock", "process"


class Artifact(FrozenModel):
    """The manifest of one stored result.

    Args:
        stage: which stage made it.
        key: digest of everything that it depends on.
        files: relative path → sha256.
        inputs: name → digest of the input artifact.
        options: of the step.
        summary: a few figures for people and for the report.
        versions: of the installed packages.
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
        """What later steps depend on: the content of the files, not how they were made."""
        return canonical_digest(self.files)


def manifest_of(result: StepResult) -> Artifact:
    """The manifest of an earlier step's result."""
    return result.read(MANIFEST, Artifact)


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

    def entries(self) -> dict[str, int]:
        """Folders of the store, results and what interrupted runs left: name → size in bytes."""
        folders = sorted(path for path in self.root.glob("*") if path.is_dir())
        return {folder.name: sum(f.stat().st_size for f in folder.rglob("*") if f.is_file()) for folder in folders}

    def remove(self, name: str) -> None:
        """Remove one folder of the store, to be called under the lock."""
        with storage_errors(self.root / name):
            shutil.rmtree(self.root / name)

    def sweep(self) -> list[str]:
        """Remove every work folder, to be called under the lock: interrupted runs left them. Their names."""
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
