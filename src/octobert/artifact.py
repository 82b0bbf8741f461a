"""The store: results under keys made of everything they depend on, visible only when whole.

    STORE/<stage>-<key>/artifact.json     manifest, written last: digests of the files, inputs, options, versions
    STORE/scratch-<stage>-<key>/          what a long stage has found so far; gone once its result is stored
    STORE/work-<stage>-<key>-<pid>/       a result in the making; whatever is left of one was interrupted and is removed

A key is the sha256 of {stage, version of the stage's code, the options it reads, digests of its inputs}. Names and paths of
models and data are never part of it; their content is. A failure is never stored.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from octobert.errors import BusyError, StorageError
from octobert.plan import Noun

MANIFEST = "artifact.json"
_DISK_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO, errno.ENOTDIR}
_DISK_ERRORS |= {errno.EEXIST, errno.EISDIR, errno.ENAMETOOLONG}


class Artifact(Noun):
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


def canonical_digest(data: Any) -> str:
    """sha256 over canonical JSON."""
    return hashlib.sha256(json.dumps(data, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def file_digest(path: Path) -> str:
    """sha256 of a file's content."""
    total = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(1 << 20):
            total.update(block)
    return total.hexdigest()


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


def digests_of(folder: Path) -> dict[str, str]:
    """Relative path → sha256 of every file below a folder."""
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    return {str(p.relative_to(folder)): file_digest(p) for p in files}


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a folder against other runs. The lock belongs to the process and ends with it, however it ends.

    Raises:
        BusyError: another process holds it.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        stream = (folder / "lock").open("a+")
    except OSError as error:
        raise disk_error(error, folder) from error
    with stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            stream.seek(0)
            holder = stream.read().strip() or "unknown"
            raise BusyError(
                "another octobert run is at work in this directory",
                where=str(folder.parent),
                got=f"process {holder}",
                fix="wait for it, or choose another --out",
            ) from None
        stream.truncate(0)
        stream.write(str(os.getpid()))
        stream.flush()
        yield


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """A place beside `path` to write to; what was written takes the place of `path` at once, or leaves nothing behind."""
    partial = path.with_name(f"partial-{path.name}")
    try:
        yield partial
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


@contextmanager
def storage_errors(where: Path) -> Iterator[None]:
    """Turn errors of the disk into errors that say what to do."""
    try:
        yield
    except OSError as error:
        if error.errno not in _DISK_ERRORS:
            raise
        raise disk_error(error, where) from error


def disk_error(error: OSError, where: Path) -> StorageError:
    """The error that says what the disk lacks."""
    full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    what = "the disk is full" if full else "the directory cannot be written"
    fix = "free some space and run the same command again" if full else "check its permissions, or choose another --out"
    return StorageError(what, where=str(error.filename or where), got=error.strerror or str(error), fix=fix)


def is_disk_error(error: BaseException) -> bool:
    """Whether an exception, or what caused it, is the disk's."""
    return isinstance(error, OSError) and error.errno in _DISK_ERRORS


def link_or_copy(source: Path, target: Path) -> None:
    """Put a file at another place, without a second copy of its bytes where the file system can."""
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
