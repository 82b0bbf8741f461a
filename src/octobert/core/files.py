"""Files: digests, atomic writes, links, and errors of the disk."""

from __future__ import annotations

import ctypes
import errno
import hashlib
import io
import json
import os
import shutil
import stat
import sys
from collections.abc import Container, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, NoReturn

from octobert.core.errors import StorageError

# In place of a digest, for what has no content of its own.
NO_FILE = "not a file"
# Of a file of unknown origin that is read at once. The largest are reports with evidence, and vocabularies.
MOST_BYTES = 256 << 20
# Opening does not wait for the other end of a pipe, nor take a terminal. Windows has neither.
_AT_ONCE = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)
# How a file begins that `git clone` made without Git LFS.
_POINTER = b"version https://git-lfs.github.com/spec/"
# From Linux' headers: renameat2 in the working directory, and its flag.
_HERE, _RENAME_EXCHANGE = -100, 2
# The last line of a page.
_PAGE_SEAL = "<!-- octobert sha256 {} -->\n"
_DISK_ERRORS = {
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EFBIG,
    errno.EROFS,
    errno.EACCES,
    errno.EPERM,
    errno.EIO,
    errno.ENOTDIR,
    errno.EEXIST,
    errno.EISDIR,
    errno.ENAMETOOLONG,
    errno.EMFILE,
    errno.ENFILE,
    errno.ELOOP,
}


def canonical_digest(data: Any) -> str:
    """Return the sha256 of data as canonical JSON; the order of keys does not count."""
    return hashlib.sha256(
        json.dumps(data, sort_keys=True, separators=(",", ":")).encode()
    ).hexdigest()


def opened(path: Path) -> io.BufferedReader:
    """Open a file of unknown origin to read it; a link is followed. It never waits, as opening a named pipe would.

    Raises:
        OSError: it is missing, cannot be read, is no regular file but a device, a pipe or a folder, or was not downloaded.
    """
    stream = open(path, "rb", opener=lambda name, flags: os.open(name, flags | _AT_ONCE))  # noqa: SIM115  # the caller closes it
    if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
        stream.close()
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    if stream.peek(len(_POINTER)).startswith(_POINTER):
        stream.close()
        raise OSError(
            errno.EINVAL, "a pointer of Git LFS in place of the file; git lfs pull", str(path)
        )
    return stream


def content_of(path: Path, most: int = MOST_BYTES) -> bytes:
    """Return the content of a file of unknown origin.

    Args:
        path: the file.
        most: bytes that it may have.

    Raises:
        OSError: as `opened`, or it has more bytes.
    """
    with opened(path) as stream:
        # As much as the file has, at once. It may grow meanwhile, and files of the system state no size.
        content = stream.read(min(os.fstat(stream.fileno()).st_size, most))
        while len(content) <= most and (block := stream.read(1 << 20)):
            content += block
    if len(content) > most:
        raise OSError(errno.EINVAL, f"more than {most:,} bytes", str(path))
    return content


def file_digest(path: Path) -> str:
    """Return the sha256 of the content of a file.

    Raises:
        OSError: as `opened`.
    """
    total = hashlib.sha256()
    with opened(path) as stream:
        while block := stream.read(1 << 20):
            total.update(block)
    return total.hexdigest()


def files_in(folder: Path) -> list[Path]:
    """Return everything below a folder that is not a folder: files, and links, which are not followed. Sorted."""
    paths = []
    for place, folders, names in os.walk(folder, onerror=_raise):
        links = (name for name in folders if os.path.islink(os.path.join(place, name)))
        paths += [Path(place, name) for name in (*names, *links)]
    return sorted(paths)


def _raise(error: OSError) -> NoReturn:
    raise error


def file_stamp(path: Path) -> str:
    """Return what changes whenever a file is written or replaced: its size, times and place on the disk."""
    status = path.stat()
    return f"{status.st_size} {status.st_mtime_ns} {status.st_ctime_ns} {status.st_dev} {status.st_ino}"


def text_digest(text: str) -> str:
    """Return the sha256 of a text in UTF-8, which is that of a file with it."""
    return hashlib.sha256(text.encode()).hexdigest()


def digest_or_none(path: Path) -> str | None:
    """Return the sha256 of a file, or None for what is missing, not a file itself, or cannot be read."""
    try:
        return file_digest(path) if is_file(path) else None
    except OSError:
        return None


def digests_of(folder: Path) -> dict[str, str]:
    """Return relative path → sha256, for every file below a folder; `NO_FILE` for a link or a device."""
    return {
        path.relative_to(folder).as_posix(): file_digest(path) if is_file(path) else NO_FILE
        for path in files_in(folder)
    }


def is_file(path: Path) -> bool:
    """Return whether a path is a file itself, not a link to one."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False


def is_folder(path: Path) -> bool:
    """Return whether a path is a folder itself, not a link to one."""
    return path.is_dir() and not path.is_symlink()


def check_no_link(path: Path) -> None:
    """Make sure that a folder of octobert's own is not a link: what it does there would happen to the files of somebody else.

    Raises:
        StorageError: it is one.
    """
    if os.path.islink(path):
        raise StorageError(
            "a symbolic link stands in place of a folder of octobert's own",
            where=str(path),
            fix="remove the link; --cache keeps stored results in another folder",
        )


def stays_inside(name: str) -> bool:
    """Return whether a name of unknown origin stays in the folder that it is relative to, on every system.

    Example:
        >>> [stays_inside(name) for name in ("a/b.txt", "../b", "/b", "C:b", "a\\\\..\\\\b", "")]
        [True, False, False, False, False, False]
    """
    paths = (PurePosixPath(name), PureWindowsPath(name))
    return (
        bool(name)
        and "\0" not in name
        and not any(path.anchor or ".." in path.parts for path in paths)
    )


def remove(path: Path) -> None:
    """Remove a file, a link or a whole folder, where there is one."""
    if is_folder(path):
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def remove_unless_file(path: Path) -> None:
    """Remove a link or a folder that stands where a file of octobert's own belongs. A link would be written through."""
    if not is_file(path):
        remove(path)


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Write a file atomically: it replaces `path` when the block ends, and is removed if the block raises.

    Yields:
        The temporary path to write to.
    """
    partial = path.with_name(f"partial-{path.name}")
    # A link or a pipe would be written into.
    if not is_file(partial):
        partial.unlink(missing_ok=True)
    try:
        yield partial
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Make a folder atomically: it is at `path` when the block ends, where nothing may be, and removed if the block raises.

    Yields:
        A new folder to write into.
    """
    partial = path.with_name(f"partial-{path.name}")
    remove(partial)
    partial.mkdir(parents=True)
    try:
        yield partial
        partial.rename(path)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def sealed(content: bytes) -> bytes:
    """Return content with its digest in front, for files that are kept between runs."""
    return hashlib.sha256(content).hexdigest().encode() + b" " + content


def unsealed(content: bytes) -> bytes | None:
    """The inverse of `sealed`; None where any byte has changed or is missing.

    Example:
        >>> unsealed(sealed(b"text")), unsealed(sealed(b"text")[:-1])
        (b'text', None)
    """
    inner = content[65:]
    return inner if sealed(inner) == content else None


def write_sealed(path: Path, content: bytes) -> None:
    """Write a file that `read_sealed` reads, atomically."""
    with atomic_write(path) as partial:
        partial.write_bytes(sealed(content))


def read_sealed(path: Path) -> bytes | None:
    """Read a file of `write_sealed`; None where there is none, or it is not as it was written."""
    return unsealed(path.read_bytes()) if is_file(path) else None


def page_seal(content: bytes) -> str:
    """The end of a page: the digest of what is before, so that one that somebody has edited is not taken for octobert's own."""
    return _PAGE_SEAL.format(hashlib.sha256(content).hexdigest())


def is_page(content: bytes) -> bool:
    """Return whether a file is a page of a report as octobert made it, and nobody has edited it."""
    start = content.rfind(_PAGE_SEAL.partition("{}")[0].encode())
    return start >= 0 and content[start:] == page_seal(content[:start]).encode()


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
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        what = "the disk is full"
        fix = "free some space and run the same command again"
    elif error.errno in (errno.EMFILE, errno.ENFILE):
        what = "too many files are open"
        fix = "raise the limit (ulimit -n) and run the same command again"
    elif error.errno == errno.ENAMETOOLONG:
        what = "the name is too long"
        fix = "choose a shorter one"
    else:
        what = "the directory cannot be written"
        fix = "check its permissions, or choose another --out"
    return StorageError(
        what, where=str(error.filename or where), got=error.strerror or str(error), fix=fix
    )


def check_space(folder: Path, needed: int) -> None:
    """Check that a folder's disk has room for so many bytes.

    Raises:
        StorageError: it has not.
    """
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise StorageError(
            "the disk is full",
            where=str(folder),
            got=f"{free:,} bytes",
            expected=f"{needed:,} bytes",
            fix="free some space, or set OCTOBERT_CACHE to a folder on another disk",
        )


def file_error(error: OSError) -> StorageError:
    """Return the `StorageError` for an error of any file, which a program that is about to end has met."""
    if is_disk_error(error) and error.errno not in (
        errno.EACCES,
        errno.EPERM,
        errno.EEXIST,
        errno.EISDIR,
        errno.ENOTDIR,
    ):
        return disk_error(error, Path())
    return StorageError(
        "a file cannot be read or written",
        where=None if error.filename is None else str(error.filename),
        got=error.strerror or str(error),
    )


def is_disk_error(error: BaseException) -> bool:
    """Return whether an exception is an error of the disk, such as a full disk."""
    return isinstance(error, OSError) and error.errno in _DISK_ERRORS


def link_or_copy(source: Path, target: Path) -> None:
    """Hard-link a file, or copy it where that is not possible. Only for files that nobody edits: both names are one file."""
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    try:
        os.link(source, target, follow_symlinks=False)
    except (OSError, NotImplementedError):
        shutil.copy2(source, target, follow_symlinks=False)


def rename_to_new(source: Path, target: Path) -> None:
    """Rename a file to a name that nothing has. `source` may keep its name too.

    Raises:
        StorageError: something has it by now.
    """
    try:
        # Unlike a link, renaming would replace what is there.
        os.link(source, target)
    except OSError as error:
        if os.path.lexists(target):
            raise StorageError(
                "something else was put there while the run was at work",
                where=str(target),
                fix="move it away and run the same command again",
            ) from error
        # This file system has no links.
        source.rename(target)


def exchange(one: Path, other: Path) -> bool:
    """Exchange two paths in one step; False where the system cannot."""
    if sys.platform != "linux":
        return False
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if renameat2 is None:
        return False
    # As `os.rename` does; calls through ctypes are not audited.
    sys.audit("os.rename", str(one), str(other), -1, -1)
    if renameat2(_HERE, os.fsencode(one), _HERE, os.fsencode(other), _RENAME_EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP):
        return False
    raise OSError(code, os.strerror(code), str(one), None, str(other))


def sync(path: Path) -> None:
    """Have a file, or the names in a folder, on the disk before anything else happens."""
    if sys.platform == "win32" and path.is_dir():
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_all(folder: Path) -> None:
    """`sync` of everything below a folder that is new."""
    for place, _, names in os.walk(folder, topdown=False):
        for path in (*(Path(place, name) for name in names), Path(place)):
            if is_file(path) or path.is_dir():
                sync(path)


def looks_local(name: str, suffixes: Container[str]) -> bool:
    """Return whether a name that does not exist as a file is a mistyped path rather than a Hub id.

    Example:
        >>> looks_local("./model", ()), looks_local("google-bert/bert-base-uncased", ())
        (True, False)
    """
    return (
        name.startswith((".", "/", "~"))
        or name.count("/") > 1
        or Path(name).suffix.lower() in suffixes
    )
