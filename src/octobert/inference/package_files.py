"""The files of a package: its manifest, whether they are as it says, and tuned settings.

The settings that `octobert tune` chose, by machine and goal, are in `tuned.json` in a package, and in `NAME.tuned.json`
beside a model file.
"""

from __future__ import annotations

import json
import os
import shlex
import tempfile
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from octobert.core import environment, plugins
from octobert.core.closeness import BatchEffect, Closeness
from octobert.core.errors import ModelError, RecipeError
from octobert.core.files import (
    atomic_write,
    canonical_digest,
    content_of,
    file_digest,
    files_in,
    storage_errors,
)
from octobert.core.frozen import Row, Tabular, first_problem
from octobert.core.model_config import READ, TABLE_FILES
from octobert.core.onnx_files import external_files
from octobert.core.origin import check_inside, is_inside, listed
from octobert.core.results import PACKAGE_FILE, TUNED_FILE, PackageManifest
from octobert.core.session import RuntimeOption, Tuned, shorter_files, weights_at
from octobert.targets import runtimes

_TUNED = TypeAdapter(dict[str, dict[str, Any]])
# Files that one message names.
_NAMED = 10
_LINK, _MISSING = "is a link that leaves the package, or no file", "is missing"
_AGAIN = "copy the package again, or run the recipe again"


class Verified(Tabular):
    """Files of a package, all of them as they were packaged.

    Args:
        package: its folder.
        files: relative path → sha256.
        added: files that came later, such as `tuned.json`.
        batches: what other texts of a batch do to an answer; None where it was not measured.
        probe: how near the model is to its float model on texts that nothing was fitted to; None where it was not measured.
    """

    package: str
    files: dict[str, str]
    added: tuple[str, ...]
    batches: BatchEffect | None = None
    probe: Closeness | None = None

    def to_rows(self) -> list[Row]:
        """One row per file."""
        return [
            *(
                {"file": name, "state": "as packaged", "sha256": digest}
                for name, digest in self.files.items()
            ),
            *({"file": name, "state": "added", "sha256": None} for name in self.added),
        ]


def read_manifest(folder: Path) -> PackageManifest:
    """Read `octobert.json` of a package.

    Raises:
        ModelError: the folder has no such file, or the file cannot be read.
    """
    path = folder / PACKAGE_FILE
    if _state(folder, PACKAGE_FILE) == _LINK:
        raise other_files(folder, [f"{PACKAGE_FILE} {_LINK}"])
    if not os.path.lexists(folder):
        raise ModelError(
            "there is no such folder", where=str(folder), expected="a package", fix="check the path"
        )
    if not path.is_file():
        inner = (
            sorted(p.parent.name for p in folder.glob(f"*/{PACKAGE_FILE}"))
            if folder.is_dir()
            else []
        )
        fix = (
            f"give the folder of one target: {', '.join(str(folder / name) for name in inner)}"
            if inner
            else "check the path"
        )
        if zipfile.is_zipfile(folder):
            fix = f"unpack it first: unzip {shlex.quote(str(folder))}"
        raise ModelError("not a package", where=str(folder), expected=PACKAGE_FILE, fix=fix)
    return PackageManifest.of_file(path, ModelError, _AGAIN)


def verify(package: Path) -> Verified:
    """Compare the content of every file of a package with the sha256 in its manifest.

    This finds damage and edits. It does not tell who made a package: whoever changes a file can change the manifest.

    Args:
        package: its folder.

    Raises:
        ModelError: files are missing or have another content, all named; or it is no package.
    """
    manifest = read_manifest(package)
    states = {name: _state(package, name, digest) for name, digest in manifest.files.items()}
    if wrong := [f"{name} {state}" for name, state in states.items() if state]:
        raise other_files(package, wrong)
    graphs = [package / name for name in manifest.files if name.endswith((".onnx", ".xml"))]
    # What is not listed is not opened either, to see which weights it names.
    opened = [each for graph in graphs for each in (graph, *shorter_files(graph).values())]
    wrong = _unlisted(package, manifest, opened)
    wrong = wrong or _unlisted(package, manifest, (f for g in graphs for f in files_of(g)))
    if wrong:
        raise other_files(package, wrong)
    present = {path.relative_to(package).as_posix() for path in files_in(package)}
    added = present - {*manifest.files, PACKAGE_FILE}
    return Verified(package=str(package), files=manifest.files, added=tuple(sorted(added)))


def files_of(path: Path) -> list[Path]:
    """The files of a model, also those for shorter rows: ONNX files with their external data, or IRs with their weights."""
    files = [path, *shorter_files(path).values()]
    weights = [
        [weights_at(each)] if each.suffix == ".xml" else external_files(each) for each in files
    ]
    return list(dict.fromkeys([*files, *(file for held in weights for file in held)]))


def check_sizes(folder: Path, manifest: PackageManifest, model_file: Path) -> None:
    """Check that the files that a runtime opens are listed, are there and have their sizes, without reading them.

    Args:
        model_file: what the target opens. Weights beside it have the same stem.

    Raises:
        ModelError: a file is not listed, is missing or has another size.
    """
    states = {name: _state(folder, name) for name in (*manifest.files, *_named(folder, model_file))}
    wrong = [
        f"{name} {state}"
        for name, state in states.items()
        # Prediction does not open the float model.
        if state and not (state == _MISSING and name.startswith("onnx/model.onnx"))
    ]
    if wrong:
        raise other_files(folder, wrong)
    opened = (model_file, weights_of(model_file), *shorter_files(model_file).values())
    wrong = _unlisted(folder, manifest, opened)
    for name in filter(manifest.sizes.get, _named(folder, *opened)):
        size, there = manifest.sizes[name], (folder / name).stat().st_size
        if size != there:
            wrong.append(f"{name} has {there:,} bytes, not {size:,}")
    if wrong:
        raise other_files(folder, wrong)


def _named(folder: Path, *files: Path) -> dict[str, None]:
    """Names of files of a package, each once."""
    return dict.fromkeys(file.relative_to(folder).as_posix() for file in files)


def weights_of(model_file: Path) -> Path:
    """The file with the weights of a model: an OpenVINO IR has one beside it, and so have large ONNX files."""
    if model_file.suffix == ".xml":
        return weights_at(model_file)
    data = model_file.with_name(f"{model_file.name}.data")
    return data if data.is_file() else model_file


def _unlisted(package: Path, manifest: PackageManifest, files: Iterable[Path]) -> list[str]:
    """What is wrong with files that a runtime or octobert reads: no digest is known of those that are not listed."""
    names = {**_named(package, *files), **listed(package, *READ, *TABLE_FILES)}
    return [
        f"{name} is not listed in {PACKAGE_FILE}" for name in names if name not in manifest.files
    ]


def _state(package: Path, name: str, digest: str | None = None) -> str:
    """Return the problem of a file, empty if there is none; with a digest, also that of its content."""
    path = package / name
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return _MISSING
    if not is_inside(package, name):
        return _LINK
    try:
        is_same = digest is None or file_digest(path) == digest
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    return "" if is_same else "has another content"


def other_files(package: Path, wrong: Iterable[str]) -> ModelError:
    """The error that names files of a package which are not as they were packaged."""
    shown = list(wrong)
    return ModelError(
        "the package is not as octobert wrote it",
        where=str(package),
        got=", ".join(shown[:_NAMED])
        + (f", and {len(shown) - _NAMED} more" if len(shown) > _NAMED else ""),
        fix=_AGAIN,
    )


def tuned_path(model: Path) -> Path:
    """Return where the settings of a model are stored.

    Args:
        model: a package or a model file.

    Example:
        >>> tuned_path(Path("models/bert.onnx")).as_posix()
        'models/bert.onnx.tuned.json'
    """
    return model / TUNED_FILE if model.is_dir() else model.with_name(f"{model.name}.{TUNED_FILE}")


def read_tuned(model: Path, listed: Mapping[str, tuple[RuntimeOption, ...]]) -> dict[str, Tuned]:
    """Read the results of tuning on this machine.

    Args:
        model: a package or a model file.
        listed: `runtime_options` of its target. The file may come from anybody, so other options are refused.

    Returns:
        Results by goal. Empty if the model was not tuned on this machine with these versions of the runtimes.

    Raises:
        ModelError: the file cannot be read, or has a setting that cannot be used here.
    """
    path = tuned_path(model)
    try:
        results = {
            goal: Tuned.model_validate(result)
            for goal, result in _read_tuned(path).get(machine_id(), {}).items()
        }
        for goal, result in results.items():
            result.setting.check(listed, where=goal)
    except (OSError, ValueError, RecipeError) as error:
        raise _unusable(path, error) from error
    return results


def check_writable(model: Path) -> None:
    """Check that results can be stored in a package, or beside a model file.

    Raises:
        StorageError: no file can be written there.
    """
    folder = tuned_path(model).parent
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
    path = tuned_path(model)
    try:
        results = _read_tuned(path)
    except ValueError as error:
        raise _unusable(path, error) from error
    by_goal = results.setdefault(machine_id(), {})
    if result.goal in by_goal and not replace:
        return
    by_goal[result.goal] = result.model_dump(mode="json")
    with storage_errors(path.parent), atomic_write(path) as partial:
        partial.write_text(json.dumps(results, indent=1), encoding="utf-8")


def machine_id() -> str:
    """Return a digest of what measured times depend on: the CPU, the usable cores, the versions of the runtimes.

    A runtime of another package counts by the version of that package: no code of others runs before a prediction.
    """
    others = plugins.installed("runtimes")
    own = [runtimes.load(name) for name in runtimes.names() if name not in others]
    names = dict.fromkeys(package for runtime in own for package in runtime.packages)
    installed = environment.versions(names)
    packages = {plugins.title_of(point.dist) for points in others.values() for point in points}
    here = environment.current(())
    versions = {name: installed.get(name) for name in names} | dict.fromkeys(packages)
    return canonical_digest([here.cpu, here.cores, here.features, versions])[:16]


def _read_tuned(path: Path) -> dict[str, dict[str, Any]]:
    """Machine → goal → result; none where there is no file.

    Raises:
        ModelError: it is a link that leaves its folder.
        ValueError: it has another form.
    """
    if not os.path.lexists(path):
        return {}
    check_inside(path.parent, path.name)
    return _TUNED.validate_json(content_of(path))


def _unusable(path: Path, error: Exception) -> ModelError:
    """The error of a file with results of tuning that cannot be used."""
    return ModelError(
        "the results of tuning cannot be used",
        where=str(path),
        got=first_problem(error) if isinstance(error, ValueError) else str(error),
        fix="remove the file, and tune again",
    )
