"""A cache of graphs that ONNX Runtime has optimized, so that a model opens faster the next time.

The name of a file has the digest of what it was made from, and that of its own content. Files get their names when they are
complete, so any number of processes may open a model for the first time, and a damaged file is made again.
"""

from __future__ import annotations

import contextlib
import platform
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from octobert.core import environment
from octobert.core.files import canonical_digest, file_digest, remove, sync

_PARTIAL = "partial-"
# Folders of processes that were killed are removed after a day.
_STALE_S = 24 * 3600


def optimized(path: Path, folder: Path, depends_on: Any, write: Callable[[Path], object]) -> Path:
    """Return the optimized form of a model, written now or read from the cache.

    Args:
        path: the ONNX file.
        folder: of the cache.
        depends_on: versions and settings that the optimized graph depends on, as plain data.
        write: writes the optimized graph to a path.

    Raises:
        OSError: the cache cannot be written.
    """
    content = {file.name: file_digest(file) for file in sorted(path.parent.glob(f"{path.name}*"))}
    machine = [platform.machine(), environment.current().features]
    stem = f"{path.stem}-{canonical_digest([content, machine, depends_on])[:16]}"
    folder.mkdir(parents=True, exist_ok=True)
    for known in sorted(folder.glob(f"{stem}-*.onnx")):
        if known.name == _name(stem, known):
            return known
        with contextlib.suppress(OSError):
            remove(known)
    _remove_stale(folder)
    work = Path(tempfile.mkdtemp(prefix=_PARTIAL, dir=folder))
    try:
        written = work / f"{stem}.onnx"
        write(written)
        sync(written)
        done = folder / _name(stem, written)
        written.replace(done)
        sync(folder)
        return done
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _name(stem: str, file: Path) -> str:
    return f"{stem}-{file_digest(file)[:32]}.onnx" if file.is_file() else ""


def _remove_stale(folder: Path) -> None:
    for left in folder.glob(f"{_PARTIAL}*"):
        with contextlib.suppress(OSError):
            if time.time() - left.stat().st_mtime > _STALE_S:
                remove(left)
