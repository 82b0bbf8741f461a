"""Zip files of unknown origin: unpacked once, with limits on what comes out, and nothing outside of the folder."""

from __future__ import annotations

import lzma
import shutil
import stat
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from octobert.core.environment import place_in_cache
from octobert.core.errors import ModelError, reason, unreadable
from octobert.core.files import (
    atomic_folder,
    check_space,
    file_digest,
    is_file,
    remove,
    stays_inside,
)
from octobert.core.plain import preview

SUFFIX = ".zip"
# What a package holds that `octobert tune` replaces.
_TUNED = "tuned.json"
# More than any model has. A zip file can state petabytes in a few kilobytes; weights shrink by less than half.
MOST_FILES, MOST_BYTES, MOST_RATIO = 10_000, 64 << 30, 100
# Below this a ratio harms nobody.
_HARMLESS = 64 << 20
# What the archivers of some systems add.
_ADDED = ("__MACOSX", ".DS_Store")
# Bytes of a name and of its parts, which every file system takes below the cache folder.
_LONGEST_NAME, _LONGEST_PART = 1_000, 255
# What reading a damaged file raises. RuntimeError: an encrypted one. NotImplementedError: a method of compression that Python
# does not have.
DAMAGED = (
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    NotImplementedError,
    RuntimeError,
    EOFError,
    ValueError,
)


def unpacked(path: Path) -> Path:
    """The content of a zip file as a folder, unpacked into octobert's cache folder unless it is there as it was unpacked.

    Returns:
        the folder in the zip file that is not alone in another one.

    Raises:
        ModelError: it is no zip file, is damaged, or holds what none of a model does: links, names outside of it, too much.
        StorageError: the cache folder cannot be written, or has no room.
    """
    try:
        digest = file_digest(path)
    except OSError as error:
        raise unreadable(ModelError, error, path) from error
    with place_in_cache("unpacked", digest) as folder:
        if not _is_whole(path, folder):
            with atomic_folder(folder) as partial:
                unpack(path, partial)
                remove(folder)
    while (
        len(inner := [entry for entry in folder.iterdir() if entry.name not in _ADDED]) == 1
        and inner[0].is_dir()
    ):
        folder = inner[0]
    return folder


def files_of(archive: zipfile.ZipFile) -> list[zipfile.ZipInfo]:
    """The entries that are no folders. `ZipInfo.is_dir` fails for one without a name."""
    return [entry for entry in archive.infolist() if entry.filename[-1:] != "/"]


def _is_whole(path: Path, folder: Path) -> bool:
    """Check that every file of a zip file is in a folder, with its content; `octobert tune` may have rewritten its results."""
    if not folder.is_dir():
        return False
    with zipfile.ZipFile(path) as archive:
        entries = [
            entry for entry in files_of(archive) if entry.filename.rpartition("/")[2] != _TUNED
        ]
    return all(
        is_file(folder / entry.filename) and _checksum(folder / entry.filename) == entry.CRC
        for entry in entries
    )


def _checksum(path: Path) -> int:
    total = 0
    with path.open("rb") as stream:
        while block := stream.read(1 << 20):
            total = zlib.crc32(block, total)
    return total


def unpack(path: Path, folder: Path) -> None:
    """Unpack a zip file into an empty folder. What is refused is found before anything is written.

    Raises:
        ModelError: as `unpacked`.
        StorageError: there is no room.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            entries = files_of(archive)
            check(path, entries)
            check_space(folder, sum(entry.file_size for entry in entries))
            for entry in entries:
                target = folder / entry.filename
                target.parent.mkdir(parents=True, exist_ok=True)
                with archive.open(entry) as source, target.open("xb") as written:
                    shutil.copyfileobj(source, written, 1 << 20)
    except DAMAGED as error:
        raise ModelError(
            "the zip file cannot be unpacked",
            where=str(path),
            got=reason(error),
            fix="download or copy it again",
        ) from error


def check(path: Path, entries: Sequence[zipfile.ZipInfo]) -> None:
    """Refuse what would leave the folder, or fill the disk.

    Args:
        path: the zip file.
        entries: its files, without folders.

    Raises:
        ModelError: with the first entry that is wrong.
    """
    seen: set[PurePosixPath] = set()
    folders: set[PurePosixPath] = set()
    for entry in entries:
        name, kind = entry.filename, stat.S_IFMT(entry.external_attr >> 16)
        # Names as systems read them: without `//` and `/.`.
        place = PurePosixPath(name.casefold())
        sizes = [len(part.encode(errors="replace")) for part in PurePosixPath(name).parts]
        if not stays_inside(name) or not sizes:
            what = "a file of the zip file lies outside of its folder"
        elif kind not in (0, stat.S_IFREG):
            what = "the zip file holds a link or a device"
        elif max(sizes) > _LONGEST_PART or sum(sizes) > _LONGEST_NAME:
            what = "the zip file holds a name that is longer than any of a model"
        elif place in seen:
            what = "the zip file holds two files of one name"
        elif place in folders or seen.intersection(place.parents):
            what = "the zip file holds a file and a folder of one name"
        else:
            seen.add(place)
            folders.update(place.parents)
            continue
        raise ModelError(what, where=str(path), got=preview(name), fix="do not trust it")
    total, size = sum(entry.file_size for entry in entries), path.stat().st_size
    for count, most, noun in ((len(entries), MOST_FILES, "files"), (total, MOST_BYTES, "bytes")):
        if count > most:
            raise ModelError(
                "the zip file holds more than any model",
                where=str(path),
                got=f"{count:,} {noun}",
                expected=f"at most {most:,}",
            )
    if total > max(_HARMLESS, MOST_RATIO * size):
        raise ModelError(
            "the zip file unpacks to more than any model does",
            where=str(path),
            got=f"{total:,} bytes from {size:,}",
            expected=f"at most {MOST_RATIO} times as much",
        )
