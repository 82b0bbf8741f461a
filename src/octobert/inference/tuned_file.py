"""`tuned.json` in a package: the settings that `octobert tune` chose, by machine and goal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from octobert.core import environment
from octobert.core.errors import ModelError
from octobert.core.files import atomic_write, canonical_digest, storage_errors
from octobert.core.settings import Tuned

FILE = "tuned.json"


def read_tuned(folder: Path) -> dict[str, Tuned]:
    """Read the results of tuning on this machine.

    Args:
        folder: a package.

    Returns:
        Results by goal. Empty if the package was not tuned on this machine with these versions of the runtimes.

    Raises:
        ModelError: the file cannot be read.
    """
    path = folder / FILE
    if not path.is_file():
        return {}
    try:
        return {goal: Tuned.model_validate(result) for goal, result in _read(path).get(machine_id(), {}).items()}
    except (ValueError, AttributeError) as error:
        what = "the results of tuning cannot be read"
        raise ModelError(what, where=str(path), got=str(error)[:200], fix="remove the file") from error


def write_tuned(folder: Path, result: Tuned) -> None:
    """Add a result to the file. Results for other goals and other machines stay.

    Args:
        folder: a package.

    Raises:
        StorageError: the file cannot be written.
    """
    path = folder / FILE
    results = _read(path) if path.is_file() else {}
    results.setdefault(machine_id(), {})[result.goal] = result.model_dump(mode="json")
    with storage_errors(folder), atomic_write(path) as partial:
        partial.write_text(json.dumps(results, indent=1), encoding="utf-8")


def machine_id() -> str:
    """Return a digest of what measured times depend on: the CPU, the usable cores, the versions of the runtimes."""
    here = environment.current()
    runtimes = {name: here.versions.get(name) for name in environment.runtime_packages()}
    return canonical_digest([here.cpu, here.cores, here.features, runtimes])[:16]


def _read(path: Path) -> dict[str, Any]:
    results: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return results
