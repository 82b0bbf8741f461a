"""Files: digests, atomic writes, links, and errors of the disk."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from octobert.core.errors import StorageError

_DISK_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO, errno.ENOTDIR}
_DISK_ERRORS |= {errno.EEXIST, errno.EISDIR, errno.ENAMETOOLONG}


def canonical_digest(data: Any) -> str:
    """Return the sha256 of data as canonical JSON; the order of keys does not count."""
    return hashlib.sha256(json.dumps(data, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def file_digest(path: Path) -> str:
    """Return the sha256 of the content of a file."""
    total = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(1 << 20):
            total.update(block)
    return total.hexdigest()


def digests_of(folder: Path) -> dict[str, str]:
    """Return relative path → sha256, for every file below a folder."""
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    return {str(p.relative_to(folder)): file_digest(p) for p in files}


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Write a file atomically: it replaces `path` when the block ends, and is removed if the block raises.

    Yields:
        The temporary path to write to.
    """
    partial = path.with_name(f"partial-{path.name}")
    try:
        yield partial
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


@contextmanager
def storage_errors(where: Path) -> Iterator[None]:
    """Turn errors of the disk into `StorageError`.

    Args:
        where: the folder, for errors that name no file.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in _DISK_ERRORS:
            raise
        raise disk_error(error, where) from error


def disk_error(error: OSError, where: Path) -> StorageError:
    """Return the `StorageError` for an error of the disk."""
    full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    what = "the disk is full" if full else "the directory cannot be written"
    fix = "free some space and run the same command again" if full else "check its permissions, or choose another --out"
    return StorageError(what, where=str(error.filename or where), got=error.strerror or str(error), fix=fix)


def is_disk_error(error: BaseException) -> bool:
    """Whether an exception is an error of the disk, such as a full disk."""
    return isinstance(error, OSError) and error.errno in _DISK_ERRORS


def link_or_copy(source: Path, target: Path) -> None:
    """Hard-link a file, or copy it where the file system has no hard links."""
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
