"""Show and remove what the store of an output directory holds. Packages and reports are copies, and stay."""

from __future__ import annotations

import warnings
from contextlib import nullcontext, suppress
from pathlib import Path

from octobert.core.errors import PublishedFileWarning, StorageError
from octobert.core.files import storage_errors
from octobert.pipeline import events
from octobert.pipeline.lock import LOCK, locked
from octobert.pipeline.publishing import HIDDEN, recover
from octobert.pipeline.store import FOLDER, Store, store_folder


def stored(folder: Path) -> dict[str, int]:
    """Stored results of an output directory, or all in a cache: name → size in bytes.

    Of a cache that several output directories use, those that runs of this one have made or reused.

    Raises:
        StorageError: the folder is neither an output directory nor a cache.
    """
    hidden = folder / HIDDEN
    with storage_errors(folder):
        if not hidden.is_dir():
            if (folder / FOLDER).is_dir() and (folder / LOCK).is_file():
                return Store(folder / FOLDER).entries()
            what, fix = "not an output directory of octobert", "give the --out of an earlier run"
            raise StorageError(what, where=str(folder), expected=f"a folder {HIDDEN} in it", fix=fix)
    entries, place = Store(store_folder(hidden)).entries(), store_folder(hidden)
    if place == hidden / FOLDER:
        return entries
    own = frozenset().union(*_used(folder))
    return {name: size for name, size in entries.items() if name in own}


def clean(folder: Path, *, keep_last: bool = False) -> dict[str, int]:
    """Remove stored results.

    Args:
        folder: the output directory, or a cache.
        keep_last: keep the results that the last finished run used.

    Returns:
        What was removed: name → size in bytes.

    Raises:
        BusyError: a run is using the directory or the cache.
        StorageError: the folder is neither, or something cannot be removed.
    """
    stored(folder)
    hidden = folder / HIDDEN
    if not hidden.is_dir():
        with locked(folder):
            return _removed(Store(folder / FOLDER), stored(folder))
    place = store_folder(hidden)
    with locked(hidden), locked(place.parent) if place.parent != hidden else nullcontext():
        with storage_errors(folder):
            notes = recover(folder)
        for note in notes:
            warnings.warn(note, PublishedFileWarning, stacklevel=2)
        runs = _used(folder)
        keep = runs[-1] if keep_last and runs else frozenset()
        return _removed(Store(place), {name: size for name, size in stored(folder).items() if name not in keep})


def _removed(store: Store, sizes: dict[str, int]) -> dict[str, int]:
    for name in sizes:
        store.remove(name)
    return sizes


def _used(out: Path) -> list[frozenset[str]]:
    """Names of the results that each finished run of an output directory made or reused, the oldest run first."""
    runs = []
    for event in events.read(out / HIDDEN / events.FILE):
        with suppress(TypeError, KeyError):
            if event["event"] == "done":
                runs.append(frozenset(map(str, event["entries"])))
    return runs
