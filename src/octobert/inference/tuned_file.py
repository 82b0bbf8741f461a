"""`tuned.json` in a package, `NAME.tuned.json` beside a file: the settings that `octobert tune` chose, by machine and goal."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from octobert.core import environment
from octobert.core.errors import ModelError, RecipeError
from octobert.core.files import atomic_write, canonical_digest, content_of, storage_errors
from octobert.core.frozen import first_problem
from octobert.core.session import RuntimeOption, Tuned

FILE = "tuned.json"
_FORM = TypeAdapter(dict[str, dict[str, Any]])


def path_of(model: Path) -> Path:
    """Return where the settings of a model are stored.

    Args:
        model: a package or a model file.

    Example:
        >>> path_of(Path("models/bert.onnx")).as_posix()
        'models/bert.onnx.tuned.json'
    """
    return model / FILE if model.is_dir() else model.with_name(f"{model.name}.{FILE}")


def read_tuned(model: Path, listed: Mapping[str, tuple[RuntimeOption, ...]]) -> dict[str, Tuned]:
    """Read the results of tuning on this machine.

    Args:
        model: a package or a model file.
        listed: `RUNTIME_OPTIONS` of its target. The file may come from anybody, so other options are refused.

    Returns:
        Results by goal. Empty if the model was not tuned on this machine with these versions of the runtimes.

    Raises:
        ModelError: the file cannot be read, or has a setting that cannot be used here.
    """
    path = path_of(model)
    if not path.is_file():
        return {}
    try:
        results = {
            goal: Tuned.model_validate(result)
            for goal, result in _read(path).get(machine_id(), {}).items()
        }
        for goal, result in results.items():
            result.setting.check(listed, where=goal)
    except (OSError, ValueError, RecipeError) as error:
        got = first_problem(error) if isinstance(error, ValueError) else str(error)
        what = "the results of tuning cannot be used"
        raise ModelError(
            what, where=str(path), got=got, fix="remove the file, and tune again"
        ) from error
    return results


def check_writable(model: Path) -> None:
    """Check that results can be stored in a package, or beside a model file.

    Raises:
        StorageError: no file can be written there.
    """
    folder = path_of(model).parent
    with storage_errors(folder):
        try:
            # It has no name where the system can do without, so that nothing is left if the process is killed now.
            tempfile.TemporaryFile(dir=folder).close()
        except OSError as error:
            error.filename = str(folder)
            raise


def write_tuned(model: Path, result: Tuned, *, replace: bool = True) -> None:
    """Add a result to the file. Results for other goals and other machines stay.

    Args:
        model: a package or a model file.
        replace: a result for the same goal and machine; otherwise it stays too.

    Raises:
        StorageError: the file cannot be written.
        ModelError: the file that is there cannot be read.
    """
    path = path_of(model)
    try:
        results = _read(path) if path.is_file() else {}
    except ValueError as error:
        what, fix = "the results of tuning cannot be used", "remove the file, and tune again"
        raise ModelError(what, where=str(path), got=first_problem(error), fix=fix) from error
    own = results.setdefault(machine_id(), {})
    if result.goal in own and not replace:
        return
    own[result.goal] = result.model_dump(mode="json")
    with storage_errors(path.parent), atomic_write(path) as partial:
        partial.write_text(json.dumps(results, indent=1), encoding="utf-8")


def machine_id() -> str:
    """Return a digest of what measured times depend on: the CPU, the usable cores, the versions of the runtimes."""
    here = environment.current()
    runtimes = {name: here.versions.get(name) for name in environment.runtime_packages()}
    return canonical_digest([here.cpu, here.cores, here.features, runtimes])[:16]


def _read(path: Path) -> dict[str, dict[str, Any]]:
    """Machine → goal → result; `ValueError` where the file has another form."""
    return _FORM.validate_json(content_of(path))
