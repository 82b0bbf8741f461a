"""The files of a package: its manifest, and whether the files are the ones that the manifest names."""

from __future__ import annotations

import shlex
import zipfile
from collections.abc import Iterable
from pathlib import Path

from octobert.core.errors import ModelError
from octobert.core.files import file_digest, files_in
from octobert.core.frozen import first_problem
from octobert.core.results import PACKAGE_FILE, PackageManifest
from octobert.core.tabular import Row, Tabular

# Files that one message names.
_NAMED = 10
_AGAIN = "copy the package again, or package the model again"


class Verified(Tabular):
    """Files of a package, all of them as they were packaged.

    Args:
        package: its folder.
        files: relative path → sha256.
        added: files that came later, such as `tuned.json`.
    """

    package: str
    files: dict[str, str]
    added: tuple[str, ...]

    def to_rows(self) -> list[Row]:
        """One row per file."""
        return [
            *({"file": name, "state": "as packaged", "sha256": digest} for name, digest in self.files.items()),
            *({"file": name, "state": "added", "sha256": None} for name in self.added),
        ]


def read_manifest(folder: Path) -> PackageManifest:
    """Read `octobert.json` of a package.

    Raises:
        ModelError: the folder has no such file, or the file cannot be read.
    """
    path = folder / PACKAGE_FILE
    if not path.is_file():
        inner = sorted(p.parent.name for p in folder.glob(f"*/{PACKAGE_FILE}")) if folder.is_dir() else []
        fix = f"give the folder of one target: {', '.join(str(folder / name) for name in inner)}" if inner else "check the path"
        if zipfile.is_zipfile(folder):
            fix = f"unpack it first: unzip {shlex.quote(str(folder))}"
        raise ModelError("not a package", where=str(folder), expected=PACKAGE_FILE, fix=fix)
    try:
        return manifest_of(path.read_bytes(), path)
    except OSError as error:
        raise ModelError(f"{PACKAGE_FILE} cannot be read", where=str(path), got=error.strerror, fix=_AGAIN) from error


def manifest_of(content: bytes, path: Path) -> PackageManifest:
    """The manifest that these bytes are.

    Args:
        path: of the file, for the error message.

    Raises:
        ModelError: they are none.
    """
    try:
        return PackageManifest.model_validate_json(content)
    except ValueError as error:
        got = first_problem(error)
        raise ModelError(f"{PACKAGE_FILE} cannot be read", where=str(path), got=got, fix=_AGAIN) from error


def verify(folder: Path) -> Verified:
    """Compare the content of every file of a package with the sha256 in its manifest.

    This finds damage and edits. It does not tell who made a package: whoever changes a file can change the manifest.

    Raises:
        ModelError: files are missing or have another content, all named; or the folder is not a package.
    """
    manifest = read_manifest(folder)
    present = {path.relative_to(folder).as_posix() for path in files_in(folder)}
    states = {name: _state(folder / name, digest) for name, digest in manifest.files.items()}
    if wrong := [f"{name} {state}" for name, state in states.items() if state]:
        raise other_files(folder, wrong)
    added = sorted(present - {*manifest.files, PACKAGE_FILE})
    return Verified(package=str(folder), files=manifest.files, added=tuple(added))


def check_sizes(folder: Path, manifest: PackageManifest, model_file: Path) -> None:
    """Check that the files that a runtime opens are there and have their sizes, without reading them.

    Args:
        model_file: what the target opens. Weights beside it have the same stem.

    Raises:
        ModelError: a file is missing or has another size.
    """
    wrong = []
    for name, size in manifest.sizes.items():
        path = folder / name
        if path.parent == model_file.parent and path.name.startswith(model_file.stem):
            if not path.is_file():
                wrong.append(f"{name} is missing")
            elif path.stat().st_size != size:
                wrong.append(f"{name} has {path.stat().st_size:,} bytes, not {size:,}")
    if not model_file.is_file() and not wrong:
        wrong.append(f"{model_file.relative_to(folder).as_posix()} is missing")
    if wrong:
        raise other_files(folder, wrong)


def _state(path: Path, digest: str) -> str:
    """What is wrong with a file; empty if nothing is."""
    if not path.is_file():
        return "is missing"
    try:
        return "" if file_digest(path) == digest else "has another content"
    except OSError as error:
        return f"cannot be read ({error.strerror})"


def other_files(package: Path, wrong: Iterable[str]) -> ModelError:
    """The error that names files of a package which are not as they were packaged."""
    shown = list(wrong)
    got = ", ".join(shown[:_NAMED]) + (f", and {len(shown) - _NAMED} more" if len(shown) > _NAMED else "")
    return ModelError("the package is not as octobert wrote it", where=str(package), got=got, fix=_AGAIN)
