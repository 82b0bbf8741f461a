"""One run at a time in an output directory.

A run locks the file `lock` in the hidden folder and, where the file system can, the hidden folder itself. So a second run waits
even if somebody has removed the lock file. Both locks belong to the process and end with it, however it ends.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from octobert.core.errors import BusyError, StorageError
from octobert.core.files import check_no_link, disk_error, remove_unless_file, storage_errors

LOCK, _HOLDER = "lock", "process"


class FolderLock:
    """What a process holds while it is at work in a folder.

    Args:
        folder: the hidden folder.
        descriptor: of the folder, locked if the file system can lock folders.
        paths: what must stay what it is: the folder, and the lock file where that alone keeps others out.
    """

    def __init__(self, folder: Path, descriptor: int | None, *paths: Path) -> None:
        self._folder, self._descriptor = folder, descriptor
        self._held = {path: _identity(path) for path in paths}

    def check(self) -> None:
        """Make sure that the folder is still the one that is held, to be called before other runs' files could be touched.

        Raises:
            StorageError: somebody removed or replaced the folder or its lock.
        """
        for path, identity in self._held.items():
            if _identity(path) != identity:
                raise StorageError(
                    "the output directory was removed or replaced while a run was at work in it",
                    where=str(path),
                    fix="make sure that no other run uses it, then run the same command again",
                )

    def release(self) -> None:
        """Give the folder free."""
        if self._descriptor is not None:
            os.close(self._descriptor)


@contextmanager
def locked(folder: Path) -> Iterator[FolderLock]:
    """Hold a folder against other runs.

    Raises:
        BusyError: another process holds it.
        StorageError: it cannot be created or locked, or is a link.
    """
    file_lock = FileLock(folder / LOCK)
    check_no_link(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if (folder / LOCK).is_symlink():
            (folder / LOCK).unlink()
        file_lock.acquire(blocking=False)
    except Timeout:
        raise _busy(folder) from None
    except OSError as error:
        raise disk_error(error, folder) from error
    try:
        lock = _hold(folder)
        try:
            with storage_errors(folder):
                remove_unless_file(folder / _HOLDER)
                (folder / _HOLDER).write_text(str(os.getpid()), encoding="ascii")
            yield lock
        finally:
            lock.release()
    finally:
        file_lock.release()


def _hold(folder: Path) -> FolderLock:
    """Hold a folder whose lock file is held already.

    Raises:
        BusyError: another process holds it: its lock file has been removed.
    """
    if sys.platform == "win32":  # a file that is locked cannot be removed there
        return FolderLock(folder, None, folder)
    import fcntl

    with storage_errors(folder):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            os.close(descriptor)
            raise _busy(folder) from None
        # Network file systems lock only files.
        return FolderLock(folder, descriptor, folder, folder / LOCK)
    return FolderLock(folder, descriptor, folder)


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _busy(folder: Path) -> BusyError:
    try:
        holder = (folder / _HOLDER).read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        holder = "unknown"
    return BusyError(
        "another octobert run is at work in this directory",
        where=str(folder.parent),
        got=f"process {holder}",
        fix="wait for it, or choose another --out or --cache",
    )
