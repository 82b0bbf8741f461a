"""Show and remove what the store of an output directory holds. Packages and reports are copies, and stay."""

from __future__ import annotations

import warnings
from contextlib import suppress
from pathlib import Path

from octobert.core.errors import PublishedFileWarning, StorageError
from octobert.core.files import storage_errors
from octobert.pipeline import events
from octobert.pipeline.lock import locked
from octobert.pipeline.publishing import HIDDEN, recover
from octobert.pipeline.store import Store


def stored(out: Path) -> dict[str, int]:
    """Stored results of an output directory: name → size in bytes.

    Raises:
        StorageError: the folder is not an output directory.
    """
    with storage_errors(out):
        if not (out / HIDDEN).is_dir():
            what, fix = "not an output directory of octobert", "give the --out of an earlier run"
            raise StorageError(what, where=str(out), expected=f"a folder {HIDDEN} in it", fix=fix)
    return Store(out / HIDDEN / "store").entries()


def clean(out: Path, *, keep_last: bool = False) -> dict[str, int]:
    """Remove stored results.

    Args:
        out: the output directory.
        keep_last: keep the results that the last finished run used.

    Returns:
        What was removed: name → size in bytes.

    Raises:
        BusyError: a run is using the directory.
        StorageError: the folder is not an output directory, or something cannot be removed.
    """
    stored(out)
    with locked(out / HIDDEN):
        with storage_errors(out):
            notes = recover(out)
        for note in notes:
            warnings.warn(note, PublishedFileWarning, stacklevel=2)
        store = Store(out / HIDDEN / "store")
        keep = _used_by_last_run(out) if keep_last else frozenset()
        sizes = {name: size for name, size in store.entries().items() if name not in keep}
        for name in sizes:
            store.remove(name)
    return sizes


def _used_by_last_run(out: Path) -> frozenset[str]:
    """Names of the results that the last finished run made or reused; empty where no run has finished."""
    for event in reversed(events.read(out / HIDDEN / events.FILE)):
        with suppress(TypeError, KeyError):
            if event["event"] == "done":
                return frozenset(map(str, event["entries"]))
    return frozenset()
