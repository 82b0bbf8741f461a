"""What runs of a finished model cost on this machine: measured once, then read from a file in the user's cache."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from octobert.core.files import canonical_digest, whole
from octobert.core.results import PackageManifest
from octobert.core.session import Session
from octobert.inference.batching import Cost, measure_cost
from octobert.inference.settings import machine


def known(manifest: PackageManifest, session: Session) -> Cost | None:
    """The cost of a model's runs, where it has been measured with these streams and threads."""
    return _read(_place(manifest, session))


def measured(manifest: PackageManifest, session: Session, longest: int) -> Cost:
    """The cost of a model's runs; measured, which takes about a second, where it is not known.

    Args:
        longest: row that the model takes.
    """
    path = _place(manifest, session)
    found = _read(path)
    if found is None:
        found = measure_cost(session, longest)
        # Whoever cannot write there measures again the next time.
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            with whole(path) as unfinished:
                unfinished.write_text(found.model_dump_json(), encoding="utf-8")
    return found


def _read(path: Path) -> Cost | None:
    try:
        return Cost.model_validate_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _place(manifest: PackageManifest, session: Session) -> Path:
    what = [manifest.files, manifest.target, machine(), session.streams, session.threads]
    return cache_folder() / f"cost-{canonical_digest(what)[:16]}.json"


def cache_folder() -> Path:
    """Where figures about this machine are kept: `$OCTOBERT_CACHE`, else the user's own cache."""
    own = os.environ.get("OCTOBERT_CACHE")
    return Path(own) if own else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "octobert"
