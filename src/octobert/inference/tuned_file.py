"""`tuned.json` in a package: the settings that `octobert tune` chose, by machine and goal."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from octobert.core import environment
from octobert.core.errors import ModelError, RecipeError
from octobert.core.files import atomic_write, canonical_digest, storage_errors
from octobert.core.frozen import first_problem
from octobert.core.session import RuntimeOption
from octobert.core.settings import Tuned

FILE = "tuned.json"
_FORM = TypeAdapter(dict[str, dict[str, Any]])


def read_tuned(folder: Path, listed: Mapping[str, tuple[RuntimeOption, ...]]) -> dict[str, Tuned]:
    """Read the results of tuning on this machine.

    Args:
        folder: a package.
        listed: `RUNTIME_OPTIONS` of its target. The file may come from anybody, so other options are refused.

    Returns:
        Results by goal. Empty if the package was not tuned on this machine with these versions of the runtimes.

    Raises:
        ModelError: the file cannot be read, or has a setting that cannot be used here.
    """
    path = folder / FILE
    if not path.is_file():
        return {}
    try:
        results = {goal: Tuned.model_validate(result) for goal, result in _read(path).get(machine_id(), {}).items()}
        for goal, result in results.items():
            result.setting.check(listed, where=goal)
    except (OSError, ValueError, RecipeError) as error:
        got = first_problem(error) if isinstance(error, ValueError) else str(error)
        what = "the results of tuning cannot be used"
        raise ModelError(what, where=str(path), got=got, fix="remove the file, and tune again") from error
    return results


def check_writable(folder: Path) -> None:
    """Check that results can be stored in a package.

    Raises:
        StorageError: no file can be written there.
    """
    with storage_errors(folder):
        try:
            tempfile.NamedTemporaryFile(prefix="partial-", dir=folder).close()
        except OSError as error:
            error.filename = str(folder)
            raise


def write_tuned(folder: Path, result: Tuned, *, replace: bool = True) -> None:
    """Add a result to the file. Results for other goals and other machines stay.

    Args:
        folder: a package.
        replace: a result for the same goal and machine; otherwise it stays too.

    Raises:
        StorageError: the file cannot be written.
        ModelError: the file that is there cannot be read.
    """
    path = folder / FILE
    try:
        results = _read(path) if path.is_file() else {}
    except ValueError as error:
        what, fix = "the results of tuning cannot be used", "remove the file, and tune again"
        raise ModelError(what, where=str(path), got=first_problem(error), fix=fix) from error
    own = results.setdefault(machine_id(), {})
    if result.goal in own and not replace:
        return
    own[result.goal] = result.model_dump(mode="json")
    with storage_errors(folder), atomic_write(path) as partial:
        partial.write_text(json.dumps(results, indent=1), encoding="utf-8")


def machine_id() -> str:
    """Return a digest of what measured times depend on: the CPU, the usable cores, the versions of the runtimes."""
    here = environment.current()
    runtimes = {name: here.versions.get(name) for name in environment.runtime_packages()}
    return canonical_digest([here.cpu, here.cores, here.features, runtimes])[:16]


def _read(path: Path) -> dict[str, dict[str, Any]]:
    """Machine → goal → result; `ValueError` where the file has another form."""
    return _FORM.validate_json(path.read_bytes())
