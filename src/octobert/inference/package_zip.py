"""A package as one zip file: written so that equal packages give equal bytes, and compared with its own manifest.

    ort-cpu.zip
    └── ort-cpu/octobert.json, ort-cpu/onnx/model_quantized.onnx, …

Files are stored, not compressed: 8-bit weights hardly get smaller, and every zlib compresses differently.
"""

from __future__ import annotations

import hashlib
import shutil
import zipfile
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from octobert.core import archives
from octobert.core.errors import ModelError, reason
from octobert.core.results import PACKAGE_FILE, PackageManifest
from octobert.inference.package_files import Verified, manifest_of, other_files

# The first date that a zip file can hold, and a plain file that everybody may read.
_DATE, _MODE = (1980, 1, 1, 0, 0, 0), 0o100644 << 16
_CHUNK = 1 << 20
# A manifest has a plan and ranges: a few megabytes for the largest encoders.
_LARGEST_MANIFEST = 256 << 20


def write(package: Path, names: Iterable[str], path: Path, top: str) -> None:
    """Write files of a package into a zip file.

    Args:
        package: its folder.
        names: relative paths of the files.
        path: the zip file.
        top: the folder in the zip file that holds them.
    """
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name in sorted(names):
            entry = zipfile.ZipInfo(f"{top}/{name}", _DATE)
            entry.create_system, entry.external_attr, entry.file_size = 3, _MODE, (package / name).stat().st_size
            with (package / name).open("rb") as source, archive.open(entry, "w") as target:
                shutil.copyfileobj(source, target, _CHUNK)


def folder_of(package: Path) -> Path:
    """The folder of a package; a zip file is unpacked into the cache folder first, unless it is there.

    Raises:
        ModelError: the zip file is damaged, holds what no package does, or no package.
    """
    if package.suffix != archives.SUFFIX or not package.is_file():
        return package
    folder = archives.unpacked(package)
    if not (folder / PACKAGE_FILE).is_file():
        raise ModelError("not a zip file of a package", where=str(package), expected=PACKAGE_FILE, fix="check the path")
    return folder


def verify(path: Path) -> Verified:
    """Compare the content of every file in a zip file with the sha256 in its manifest, without unpacking it.

    Raises:
        ModelError: the file is no zip file of a package, could not be unpacked, or files in it are missing or have another
            content, all named.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            return _verified(path, archive)
    except (OSError, *archives.DAMAGED) as error:
        fix = "copy it again, or package the model again"
        raise ModelError("the zip file cannot be read", where=str(path), got=reason(error), fix=fix) from error


def _verified(path: Path, archive: zipfile.ZipFile) -> Verified:
    files = [info for info in archive.infolist() if not info.is_dir()]
    archives.check(path, files)
    entries = {info.filename: info for info in files}
    top, manifest = _manifest(path, archive, entries)
    inside = {PurePosixPath(name).relative_to(top).as_posix(): info for name, info in entries.items() if name.startswith(top)}
    states = {name: _state(archive, inside.get(name), digest) for name, digest in manifest.files.items()}
    if wrong := [f"{name} {state}" for name, state in states.items() if state]:
        raise other_files(path, wrong)
    known = {top + name for name in (*manifest.files, PACKAGE_FILE)}
    return Verified(package=str(path), files=manifest.files, added=tuple(sorted(set(entries) - known)))


def _manifest(path: Path, archive: zipfile.ZipFile, entries: dict[str, zipfile.ZipInfo]) -> tuple[str, PackageManifest]:
    """The folder of a package in a zip file, and its manifest."""
    found = [name for name in entries if PurePosixPath(name).name == PACKAGE_FILE and name.count("/") <= 1]
    if len(found) != 1 or entries[found[0]].file_size > _LARGEST_MANIFEST:
        got = f"{len(found)} files of that name" if len(found) != 1 else f"{entries[found[0]].file_size:,} bytes"
        raise ModelError("not a zip file of a package", where=str(path), got=got, expected=PACKAGE_FILE, fix="check the path")
    return found[0].removesuffix(PACKAGE_FILE), manifest_of(archive.read(found[0]), path)


def _state(archive: zipfile.ZipFile, entry: zipfile.ZipInfo | None, digest: str) -> str:
    """What is wrong with a file; empty if nothing is."""
    if entry is None:
        return "is missing"
    found = hashlib.sha256()
    with archive.open(entry) as stream:
        while chunk := stream.read(_CHUNK):
            found.update(chunk)
    return "" if found.hexdigest() == digest else "has another content"
