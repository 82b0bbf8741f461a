"""What belongs to the user in a published folder: files that octobert did not publish, and published files that were edited."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from itertools import count
from pathlib import Path, PurePosixPath

from octobert.core.files import (
    content_of,
    digest_or_none,
    files_in,
    is_file,
    is_folder,
    is_page,
    link_or_copy,
    remove,
)
from octobert.core.plain import parsed_json
from octobert.core.results import PACKAGE_FILE
from octobert.inference import package_files

# In a new folder until it is in its place: tells whether an interrupted exchange took place.
MARK = ".publishing"
# The relative path of a file that is published by itself.
ITSELF = ""
_KEPT = ".kept"


def digests_below(path: Path, names: Iterable[str]) -> dict[str, str | None]:
    """The digests of files below a path; None for what is missing, a link, or cannot be read."""
    return {name: digest_or_none(path / name) for name in names}


def is_untouched(folder: Path, recorded: Mapping[str, str]) -> bool:
    """Whether a folder holds nothing but files that are as they were published; or whether a file is."""
    if ITSELF in recorded:
        return is_file(folder) and digest_or_none(folder) == recorded[ITSELF]
    if not is_folder(folder):
        return False
    try:
        names = list(_names(folder))
    except OSError:
        return False
    return all(
        name in recorded and digest_or_none(folder / name) == recorded[name] for name in names
    )


def edits(path: Path, published: Mapping[str, str]) -> list[str]:
    """Sentences about files that were edited, and are left as they are."""
    return [
        f"{path / name} was changed after octobert wrote it, and was left as it is; remove it and run again to have it back"
        for name, digest in digests_below(path, published).items()
        if digest != published[name]
    ]


def carry_over(
    old: Path, new: Path, place: Path, fresh: Mapping[str, str], recorded: Mapping[str, str] | None
) -> list[str]:
    """Take the user's files from a published folder into the one that replaces it.

    Files of the user keep their names. A published file that the user edited gets another name.
    The files are hard links where that is possible: the old folder is removed afterwards.

    Args:
        old: the present folder, or what is in its place; it is not changed.
        new: the folder that replaces it.
        place: where it is published, for the sentences.
        fresh: what is published in `new`: relative path → sha256.
        recorded: what was published in `old`; None where there is no record of it.

    Returns:
        What was kept under which name, and what may not fit the new files, as sentences.
    """
    if not is_folder(old) and not (old.is_symlink() and old.is_dir()):
        return keep_edits(old, fresh, recorded) if old == place else []
    recorded = _listed(old) if recorded is None else recorded
    for file in files_in(new):
        # An interrupted publication has carried files already; they may have changed since.
        if (name := file.relative_to(new).as_posix()) not in fresh and name != MARK:
            remove(file)
    notes = []
    for name in _names(old):
        digests = {recorded.get(name), fresh.get(name)} - {None}
        if name == MARK or (digests and digest_or_none(old / name) in digests):
            continue
        spare = _free(name, old, new, fresh, edited=name in recorded or name in fresh)
        (new / spare).parent.mkdir(parents=True, exist_ok=True)
        link_or_copy(old / name, new / spare)
        if spare != name:
            notes.append(_replaced(place / name, place / spare))
    tuned = package_files.TUNED_FILE
    if os.path.lexists(new / tuned) and _models(fresh) != _models(recorded):
        notes.append(
            f"{place / tuned} was measured with the model that was there before; octobert tune measures the new one"
        )
    return notes


def keep_edits(
    place: Path, fresh: Mapping[str, str], recorded: Mapping[str, str] | None
) -> list[str]:
    """Keep a file that is about to be replaced, if it is not as it was published, and no page that octobert made since then.

    Returns:
        Under which name, as a sentence.
    """
    if not os.path.lexists(place) or digest_or_none(place) in {
        (recorded or {}).get(ITSELF),
        fresh.get(ITSELF),
    } - {None}:
        return []
    # A page that `octobert report` made, or a run in another folder, and nobody has edited.
    if place.suffix == ".html" and is_file(place) and is_page(content_of(place)):
        return []
    spare = next(
        path for path in _numbered(place) if not os.path.lexists(path) or path.samefile(place)
    )
    if not os.path.lexists(spare):
        link_or_copy(place, spare)
    return [_replaced(place, spare)]


def _replaced(path: Path, new_place: Path) -> str:
    return f"{path} was not as octobert wrote it, and was replaced; yours is now {new_place}"


def _listed(package: Path) -> dict[str, str]:
    """What a package says of its own files, where there is no record of what was published."""
    try:
        files = parsed_json(content_of(package / PACKAGE_FILE))["files"]
        return {**files, PACKAGE_FILE: str(digest_or_none(package / PACKAGE_FILE))}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _models(files: Mapping[str, str]) -> dict[str, str]:
    """The files that decide what a package computes."""
    return {
        name: digest
        for name, digest in files.items()
        if name != PACKAGE_FILE and not name.endswith((".md", ".html"))
    }


def _names(folder: Path) -> Iterator[str]:
    return (file.relative_to(folder).as_posix() for file in files_in(folder))


def _free(name: str, old: Path, new: Path, fresh: Mapping[str, str], *, edited: bool) -> str:
    """The name that a file of the user gets: its own, unless the new folder has something else there."""
    folders = {parent.as_posix() for file in fresh for parent in PurePosixPath(file).parents}
    parts = PurePosixPath(name).parts
    for end in range(1, len(parts) + 1):
        first, rest = PurePosixPath(*parts[:end]), parts[end:]
        if first.as_posix() in fresh or (not rest and (edited or first.as_posix() in folders)):
            paths = (first.with_name(path.name) for path in _numbered(Path(first)))
            free = next(
                path
                for path in paths
                if not any(os.path.lexists(where / path) for where in (old, new))
            )
            return free.joinpath(*rest).as_posix()
    return name


def _numbered(path: Path) -> Iterator[Path]:
    """`config.json.kept`, `config.json.kept-2`, …"""
    for number in count(1):
        yield path.with_name(f"{path.name}{_KEPT}" + (f"-{number}" if number > 1 else ""))
