"""The store: results under keys made of everything they depend on (`keys`), visible only when whole.

It is `.octobert/store` of an output directory, or of the folder of `cache`.

    STORE/<stage>-<key>/artifact.json     manifest, written last: digests of the files, inputs, options, versions
    STORE/<stage>-<key>/artifact.sha256   digest of the manifest
    STORE/<stage>-<key>/artifact.without  names of large files that were removed after the run
    STORE/scratch-<stage>-<key>/          what a long stage keeps while it works; removed once its result is stored
    STORE/work-<stage>-<key>-<pid>/       a result that is being made; what an interrupted run left of it is removed
    STORE/work-temporary-<pid>-<thread>/  temporary files of the processes that make it
    STORE/work-remote-<token>/            what machines of a cluster make (`executors/ray.py`)

After a run its store has a limited size: of results that were made fast for their size, the large files are removed. Such a
result is still known by its manifest, and is made again when something reads it.

Only entries with these names are ever removed, and nothing through a link. A failure is never stored. Nothing in the store is
trusted: a result of which any byte is missing, changed, added or replaced by a link is not found, and is made again.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from octobert.core.files import (
    NO_FILE,
    canonical_digest,
    check_no_link,
    content_of,
    digests_of,
    file_digest,
    files_in,
    is_file,
    is_folder,
    remove,
    storage_errors,
)
from octobert.core.frozen import FrozenModel
from octobert.core.plain import parsed_json
from octobert.engine.contract import StepResult

MANIFEST, SEAL, WITHOUT = "artifact.json", "artifact.sha256", "artifact.without"
# Files that are worth removing: bytes, and ends of names. Others are also read where nobody makes them again.
_LARGE = 1 << 20
_WEIGHTS = (".onnx", ".data", ".npz", ".bin", ".safetensors")


# File in the hidden folder of an output directory: the folder of `cache`, whose own hidden folder has the store.
POINTER = "cache"
FOLDER = "store"
_RESULT = r"[a-z][a-z0-9_]*-[0-9a-f]{16}"
_WORK = re.compile(rf"work-({_RESULT}|temporary-\d+)-\d+|work-remote-[0-9a-f]{{8}}")
_ENTRY = re.compile(rf"(scratch-)?{_RESULT}|{_WORK.pattern}")
_LONGEST_PATH = 4096


def store_folder(hidden: Path) -> Path:
    """Where the store of an output directory is.

    Args:
        hidden: its hidden folder.
    """
    place = ""
    with suppress(OSError, UnicodeDecodeError):
        place = content_of(hidden / POINTER, _LONGEST_PATH).decode()
    return (Path(place) / hidden.name if Path(place).is_absolute() else hidden) / FOLDER


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
    """Stored results below one folder.

    Raises:
        StorageError: the folder is a link.
    """

    def __init__(self, root: Path) -> None:
        check_no_link(root)
        self.root = root

    def path(self, stage: str, key: str) -> Path:
        """Where a result is, or will be."""
        return self.root / f"{stage}-{key[:16]}"

    def find(self, stage: str, key: str) -> Artifact | None:
        """A result that is exactly as it was stored, or without its large files; or None."""
        folder = self.path(stage, key)
        try:
            if not is_folder(folder):
                return None
            digests, without = digests_of(folder), _without(folder)
            digests.pop(WITHOUT, None)
            seal = content_of(folder / SEAL).decode("ascii")
            artifact = Artifact.of_json(content_of(folder / MANIFEST))
        except (OSError, ValueError):
            return None
        files = {name: digest for name, digest in artifact.files.items() if name not in without}
        intact = (
            digests == {**files, MANIFEST: seal, SEAL: digests.get(SEAL)}
            and NO_FILE not in digests.values()
        )
        return artifact if intact and artifact.key == key else None

    def is_whole(self, artifact: Artifact) -> bool:
        """Whether a result has its large files."""
        return not _without(self.path(artifact.stage, artifact.key))

    def shrink(self, most: int) -> None:
        """Remove large files of results until those that are left take at most so many bytes, to be called under the lock.

        What took the longest to make for its size stays. Files that are links to one content count once.
        """
        results = []
        for folder in (path for path in self.root.glob("*") if re.fullmatch(_RESULT, path.name)):
            with suppress(OSError, ValueError):
                seconds = Artifact.of_json(content_of(folder / MANIFEST)).seconds
                large = {
                    path: status
                    for path in files_in(folder)
                    if path.name.endswith(_WEIGHTS) and (status := path.lstat()).st_size >= _LARGE
                }
                size = sum(status.st_size for status in large.values())
                results.append((seconds / max(size, 1), folder, large))
        kept: set[int] = set()
        for _, folder, large in sorted(results, key=lambda result: (-result[0], result[1])):
            new = {s.st_ino: s.st_size for s in large.values() if s.st_ino not in kept}
            if sum(new.values()) <= most:
                most -= sum(new.values())
                kept |= new.keys()
                continue
            names = [*_without(folder), *(path.relative_to(folder).as_posix() for path in large)]
            with suppress(OSError):
                # First the names: files that are removed without them would be damage.
                (folder / WITHOUT).write_text(json.dumps(names), encoding="utf-8")
                for path in large:
                    path.unlink()

    @contextmanager
    def making(self, stage: str, key: str) -> Iterator[tuple[Path, Path]]:
        """Make a result, on one thread: an empty work folder for it and one for temporary files, both of which go in the end.

        What an interrupted run left in their places is removed.
        """
        # The process id keeps apart this run and the last breath of a child whose parent was killed.
        work = self.root / f"work-{stage}-{key[:16]}-{os.getpid()}"
        scratch = self.scratch(stage, key)
        # A short name: programs put sockets there, whose paths have at most 107 characters.
        temporary = self.root / f"work-temporary-{os.getpid()}-{threading.get_native_id()}"
        try:
            for folder in (work, temporary):
                with storage_errors(folder):
                    remove(folder)
                    folder.mkdir(parents=True)
            with storage_errors(scratch):
                if not is_folder(scratch):
                    remove(scratch)
            yield work, temporary
        finally:
            for folder in (work, temporary):
                shutil.rmtree(folder, ignore_errors=True)

    def commit(self, work: Path, artifact: Artifact) -> Path:
        """Make a finished result visible, at once and whole."""
        final = self.path(artifact.stage, artifact.key)
        with storage_errors(work):
            (work / MANIFEST).write_text(artifact.model_dump_json(indent=1), encoding="utf-8")
            (work / SEAL).write_text(file_digest(work / MANIFEST), encoding="ascii")
            remove(final)
            work.rename(final)
            remove(self.scratch(artifact.stage, artifact.key))
        return final

    def scratch(self, stage: str, key: str) -> Path:
        """Where a long stage may keep what it has found so far; it makes the folder, which outlives interruptions."""
        return self.root / f"scratch-{stage}-{key[:16]}"

    def entries(self) -> dict[str, int]:
        """Everything in the store that has a name of its own, results and what interrupted runs left: name → size in bytes."""
        with storage_errors(self.root):
            return {
                path.name: _size(path)
                for path in sorted(self.root.glob("*"))
                if _ENTRY.fullmatch(path.name)
            }

    def remove(self, name: str) -> None:
        """Remove one of the `entries`, to be called under the lock."""
        with storage_errors(self.root / name):
            remove(self.root / name)

    def sweep(self) -> list[str]:
        """Remove what interrupted runs left and no run needs, to be called under the lock. The names."""
        entries = [path.name for path in self.root.glob("*") if _ENTRY.fullmatch(path.name)]
        names = sorted(name for name in entries if _WORK.fullmatch(name))
        # A run that was killed just after it stored a result has left what the stage kept while it worked.
        scratch = [name for name in entries if name.startswith("scratch-")]
        names += sorted(
            name for name in scratch if is_folder(self.root / name.removeprefix("scratch-"))
        )
        for name in names:
            with suppress(OSError):
                remove(self.root / name)
        return names


def _without(folder: Path) -> list[str]:
    """Names of the large files that were removed from a result."""
    path = folder / WITHOUT
    names = parsed_json(content_of(path)) if is_file(path) else []
    return (
        [name for name in names if str(name).endswith(_WEIGHTS)] if isinstance(names, list) else []
    )


def _size(path: Path) -> int:
    return sum(file.lstat().st_size for file in (files_in(path) if is_folder(path) else [path]))
