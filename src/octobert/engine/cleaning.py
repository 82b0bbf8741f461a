"""Show and remove what the store of an output directory holds. Packages and reports are copies, and stay."""

from __future__ import annotations

from contextlib import nullcontext, suppress
from pathlib import Path

from octobert.core.errors import StorageError
from octobert.core.files import is_folder, storage_errors
from octobert.core.lock import locked
from octobert.engine import events
from octobert.engine.publishing import HIDDEN, discard
from octobert.engine.store import FOLDER, Store, store_folder


def stored(folder: Path, *, keep_last: bool = False) -> dict[str, int]:
    """Stored results of an output directory, or all in a cache: name → size in bytes.

    Of a cache that several output directories use, those that runs of this one have made or reused.

    Args:
        folder: the output directory, or a cache.
        keep_last: leave out the results that the last finished run used.

    Raises:
        StorageError: the folder is neither an output directory nor a cache.
    """
    hidden = folder / HIDDEN
    with storage_errors(folder):
        if not is_folder(hidden):
            raise StorageError(
                "not an output directory of octobert",
                where=str(folder),
                expected=f"a folder {HIDDEN} in it",
                fix="give the --out or --cache of an earlier run",
            )
    entries, runs = _store(hidden).entries(), _used(folder)
    if _is_shared(hidden):
        used_here = frozenset().union(*runs)
        entries = {name: size for name, size in entries.items() if name in used_here}
    keep = runs[-1] if keep_last and runs else frozenset()
    return {name: size for name, size in entries.items() if name not in keep}


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
    with (
        locked(hidden),
        locked(store_folder(hidden).parent) if _is_shared(hidden) else nullcontext(),
    ):
        with storage_errors(folder):
            discard(folder)
        removed, store = stored(folder, keep_last=keep_last), _store(hidden)
        for name in removed:
            store.remove(name)
        return removed


def _store(hidden: Path) -> Store:
    """The store of a hidden folder; without the cache that it names, if that is gone, its own."""
    return Store(store_folder(hidden) if _is_shared(hidden) else hidden / FOLDER)


def _is_shared(hidden: Path) -> bool:
    """Whether the store is that of a cache, which has to be there."""
    place = store_folder(hidden).parent
    return place != hidden and is_folder(place)


def _used(out: Path) -> list[frozenset[str]]:
    """Names of the results that each finished run of an output directory made or reused, the oldest run first."""
    runs = []
    for event in events.read(out / HIDDEN / events.FILE):
        with suppress(TypeError, KeyError):
            if event["event"] == "done":
                runs.append(frozenset(map(str, event["entries"])))
    return runs
