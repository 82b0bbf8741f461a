"""Folders of unknown origin: what of them is listed and copied.

A folder that somebody has sent may hold links to whatever its reader may read, such as a private key, and pipes, on which a
reader waits for ever. So a file is one of a folder only where it is a regular file in it. A link counts where it leads to such
a file, as those of the Hub's cache do: `models--ORG--NAME/snapshots/REVISION/config.json` → `../../blobs/DIGEST`.
"""

from __future__ import annotations

import functools
import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from octobert.core.errors import ModelError, OctobertError, not_there
from octobert.core.files import is_file, opened, stays_inside


def is_inside(folder: Path, name: str) -> bool:
    """Return whether a name, relative to a folder of unknown origin, is that of a regular file, or a folder, in this folder."""
    root, place = (Path(os.path.realpath(path)) for path in (folder, folder / name))
    blobs = (path.parent / "blobs" for path in root.parents if path.name == "snapshots")
    return (
        stays_inside(name)
        and name.isprintable()
        and (is_file(place) or place.is_dir())
        and (root in place.parents or place.parent in blobs)
    )


def check_inside(folder: Path, name: str, kind: type[OctobertError] = ModelError) -> None:
    """Refuse a name that is not `is_inside`.

    Raises:
        OctobertError: It is a link that leaves the folder or leads to nothing, a pipe, a device or missing; of the type `kind`.
    """
    if not is_inside(folder, name):
        if not os.path.exists(folder / name):
            raise not_there(kind, folder / name)
        raise kind(
            "the file is a link that leaves its folder, or no regular file",
            where=str(folder / name),
            got=os.path.realpath(folder / name),
            fix="copy the file itself there, if you trust the folder",
        )


def listed(
    folder: Path,
    *patterns: str,
    kind: type[OctobertError] = ModelError,
    anywhere: bool = False,
) -> dict[str, Path]:
    """Return name → path of files of a folder of unknown origin. Names that are not there, and folders, are left out.

    Args:
        folder: The folder. It may be a link itself, which its user has named.
        patterns: Of names relative to the folder, as `Path.glob` reads them.
        kind: Of the error.
        anywhere: Links may leave the folder, as those to weights on another disk. What is listed so is read, and never copied.

    Returns:
        Names with slashes, sorted within each pattern.

    Raises:
        OctobertError: As `check_inside`.
    """
    found: dict[str, Path] = {}
    root = Path(os.path.realpath(folder))

    @functools.cache
    def holds(parent: Path) -> bool:
        """Whether a part of the folder lies in it. Data sets have 10,000 files in one: its place is asked for once."""
        place = Path(os.path.realpath(parent))
        return root == place or root in place.parents

    for path in (path for pattern in patterns for path in _matching(folder, pattern)):
        name = path.relative_to(folder).as_posix()
        is_plain = (
            is_file(path) and holds(path.parent) and stays_inside(name) and name.isprintable()
        )
        if is_plain or not path.is_dir():
            if not (is_plain or (anywhere and path.is_file())):
                check_inside(folder, name, kind)
            found[name] = path
    return found


def _matching(folder: Path, pattern: str) -> list[Path]:
    """The paths of a pattern, sorted. `Path.glob` leaves out a link to nothing where the pattern is its name."""
    if "*" in pattern or "?" in pattern:
        return sorted(folder.glob(pattern))
    return [folder / pattern] if os.path.lexists(folder / pattern) else []


def copy_files(source: Path, names: Iterable[str], folder: Path) -> None:
    """Copy files of a folder of unknown origin under their names, and nothing that lies beside them.

    Args:
        source: The folder.
        names: Of files, as in `listed`.
        folder: Where they are written.

    Raises:
        ModelError: As `listed`.
    """
    for name, path in listed(source, *names).items():
        copy_file(path, folder / name)


def copy_file(source: Path, target: Path) -> None:
    """Copy the content of a file that is `listed`; the folder of the copy is made where there is none."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with opened(source) as stream, target.open("wb") as written:
        shutil.copyfileobj(stream, written, 1 << 20)
