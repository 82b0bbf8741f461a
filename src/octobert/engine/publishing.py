"""Publishing: packages, checkpoint and report are put into the output directory, each by one rename.

    OUT/.octobert/published.json              what was published last: name → relative path → sha256
    OUT/.octobert/publishing/new/<name>       what is published next, while it is being made

All that takes time or space happens in `publishing`, and is synced to the disk. Then each name takes its place, the report
last; where something is there, both are exchanged in one step. A run that is killed in between is finished by the same command:
what is in its place already is left alone.

OUT belongs to the user. A name whose files were published already is not touched, whatever the user did to them. What is
replaced and is not as it was published stays whole, as `NAME.old`. Nothing in OUT shares its content on disk with the store, so
it may be edited.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from pydantic import Field, field_validator

from octobert.core.errors import StorageError
from octobert.core.evidence import EVIDENCE
from octobert.core.files import (
    atomic_write,
    content_of,
    digest_or_none,
    exchange,
    files_in,
    is_file,
    is_folder,
    is_page,
    remove,
    remove_unless_file,
    storage_errors,
    sync,
    sync_all,
    text_digest,
)
from octobert.core.frozen import FrozenModel
from octobert.core.lock import FolderLock
from octobert.core.origin import copy_file
from octobert.core.plain import parsed_json
from octobert.core.results import CHECKPOINT, PACKAGE_FILE, TRAINED, TUNED_FILE
from octobert.engine.contract import Step

HIDDEN = ".octobert"
PAGES = ("report.json", EVIDENCE, "report.html")
# The relative path of a file that is published by itself.
ITSELF = ""
_STAGE, _RECORD, _NEW, _OLD = "publishing", "published.json", "new", "old"


@dataclass(frozen=True)
class Folder:
    """A folder to publish, or a file.

    Args:
        path: where it is in the store.
        files: those to publish: relative path → sha256. A file has one relative path, which is empty.
        step: whose result it is.
    """

    path: Path
    files: Mapping[str, str]
    step: str


class Publication(FrozenModel):
    """What was published.

    Args:
        files: name in OUT → relative path → sha256. A file has one relative path, which is empty.
    """

    files: Mapping[str, dict[str, str]] = Field(default_factory=dict)

    @field_validator("files")
    @classmethod
    def _are_names(cls, files: Mapping[str, dict[str, str]]) -> Mapping[str, dict[str, str]]:
        if any(name in ("", ".", "..", HIDDEN) or Path(name).name != name for name in files):
            raise ValueError("not the name of a file or folder in the output directory")
        return files


def check_output(steps: Sequence[Step], out: Path, *, package: str | None = None) -> None:
    """Refuse an output directory that holds something else, or what a run reads in a place where the run writes.

    Args:
        package: name of the package in the output directory, where that is not the target's.

    Raises:
        StorageError: the output directory is a file, something that octobert did not write is in the way, it cannot be read,
            or the run would change its own inputs.
    """

    def place(step: Step) -> str:
        return package or step.name.partition("/")[2]

    marks = {place(step): PACKAGE_FILE for step in steps if step.stage == "package"}
    if any(step.stage in ("finetune", "qat") for step in steps):
        marks[CHECKPOINT] = TRAINED
    with storage_errors(out):
        if os.path.lexists(out) and not out.is_dir():
            raise StorageError(
                "the output directory is a file", where=str(out), fix="choose another --out"
            )
        last = _read(out / HIDDEN / _RECORD) or Publication()
        for name, mark in marks.items():
            if (
                os.path.lexists(out / name)
                and name not in last.files
                and not (out / name / mark).is_file()
            ):
                raise StorageError(
                    "a package or a checkpoint would replace a folder that octobert did not write",
                    where=str(out / name),
                    fix="move it away, or choose another --out",
                )
            if (out / name).is_dir():
                files_in(out / name)
        for page in PAGES:
            if (out / page).is_dir():
                raise StorageError(
                    "a file would replace a folder",
                    where=str(out / page),
                    fix="move it away, or choose another --out",
                )
        for name in read_in(out, steps) & {".", HIDDEN, *marks}:
            raise StorageError(
                "the run would change the files that it reads",
                where=str(out / name),
                fix="choose another --out",
            )


def read_in(out: Path, steps: Sequence[Step]) -> set[str]:
    """What a run reads in its output directory: names in it, or `.` for the directory itself."""
    places = {place.resolve() for step in steps for files in step.reads for place in files.places}
    inside = [
        place.relative_to(out.resolve()) for place in places if place.is_relative_to(out.resolve())
    ]
    return {path.parts[0] if path.parts else "." for path in inside}


def publish(
    out: Path,
    folders: Mapping[str, Folder],
    pages: Mapping[str, str],
    lock: FolderLock,
    *,
    fetch: Callable[[str], None],
    needed: Collection[str] | None = None,
) -> list[str]:
    """Publish the results of a run.

    Args:
        folders: name in OUT → folder, or file.
        pages: name in OUT → text of a file.
        lock: of OUT.
        fetch: called with the name of a step before files of its result are copied.
        needed: packages of other targets, which an earlier run published, are removed unless the user changed them or they are
            named here; None to remove nothing.

    Returns:
        What the user should know of files that were kept, left alone or removed, as sentences.
    """
    last = dict((_read(out / HIDDEN / _RECORD) or Publication()).files)
    fresh = {name: dict(folder.files) for name, folder in folders.items()}
    fresh |= {name: {ITSELF: text_digest(text)} for name, text in pages.items()}
    replaced = [
        name for name, files in fresh.items() if _differs(out / name, files, last.get(name))
    ]
    notes = [
        note
        for name, files in fresh.items()
        if name not in replaced
        for note in _edits(out / name, files)
    ]
    for folder in (folders[name] for name in replaced if name not in pages):
        fetch(folder.step)
    stage = out / HIDDEN / _STAGE
    if replaced:
        _prepare(stage, replaced, folders, pages)
    lock.check()
    for name in fresh:
        if name in replaced:
            notes += _place(stage, out / name, fresh[name], last.get(name))
        if last.get(name) != fresh[name]:
            last[name] = fresh[name]
            _write(out, last)
    stale = set() if needed is None else last.keys() - fresh.keys() - set(needed)
    for name in sorted(stale):
        if PACKAGE_FILE not in last[name]:
            continue
        if is_untouched(out / name, last[name]):
            os.rename(out / name, _within(stage / _OLD) / name)
            notes.append(
                f"{out / name} was removed: it belonged to an earlier run with other targets"
            )
        elif os.path.lexists(out / name):
            notes.append(
                f"{out / name} belongs to an earlier run with other targets; it was left there, because files in it are yours"
            )
            continue
        del last[name]
        _write(out, last)
    remove(stage)
    return notes


def is_as_published(file: Path) -> bool:
    """Whether a file in an output directory is as a run published it there."""
    last = _read(file.parent / HIDDEN / _RECORD)
    return (
        last is not None and file.name in last.files and is_untouched(file, last.files[file.name])
    )


def is_untouched(place: Path, recorded: Mapping[str, str]) -> bool:
    """Whether a folder holds nothing but files that are as they were published, and settings that octobert has tuned; or
    whether a file is as it was."""
    if ITSELF in recorded:
        return is_file(place) and digest_or_none(place) == recorded[ITSELF]
    if not is_folder(place):
        return False
    try:
        names = {file.relative_to(place).as_posix() for file in files_in(place)}
    except OSError:
        return False
    return all(
        digest_or_none(place / name) == recorded.get(name, "") for name in names - {TUNED_FILE}
    )


def digests_below(path: Path, names: Iterable[str]) -> dict[str, str | None]:
    """The digests of files below a path; None for what is missing, a link, or cannot be read."""
    return {name: digest_or_none(path / name) for name in names}


def discard(out: Path) -> None:
    """Remove what an interrupted publication has prepared, to be called under the lock."""
    remove(out / HIDDEN / _STAGE)


def _read(path: Path) -> Publication | None:
    """A record; None where there is none, or none that can be read."""
    try:
        return Publication.of_json(content_of(path))
    except (OSError, ValueError):
        return None


def _write(out: Path, files: Mapping[str, dict[str, str]]) -> None:
    """Have the names of all files in OUT on the disk, and the record of them."""
    sync(out)
    remove_unless_file(out / HIDDEN / _RECORD)
    with atomic_write(out / HIDDEN / _RECORD) as partial:
        partial.write_text(Publication(files=files).model_dump_json(indent=1), encoding="utf-8")
        sync(partial)
    sync(out / HIDDEN)


def _differs(path: Path, fresh: Mapping[str, str], recorded: Mapping[str, str] | None) -> bool:
    """Whether something has to be done to have these files published; not where all that differs are edits of the user."""
    if recorded == fresh:
        return not all(os.path.lexists(path / name) for name in fresh)
    return digests_below(path, fresh) != fresh or any(
        os.path.lexists(path / name) for name in set(recorded or ()) - set(fresh)
    )


def _edits(path: Path, published: Mapping[str, str]) -> list[str]:
    """Sentences about files that were edited, and are left as they are."""
    return [
        f"{path / name} was changed after octobert wrote it, and was left as it is; remove it and run again to have it back"
        for name, digest in digests_below(path, published).items()
        if digest != published[name]
    ]


def _prepare(
    stage: Path, names: Sequence[str], folders: Mapping[str, Folder], pages: Mapping[str, str]
) -> None:
    """Write what is new, and have it on the disk."""
    remove(stage)
    (stage / _NEW).mkdir(parents=True)
    for name in names:
        new = stage / _NEW / name
        if name in pages:
            new.write_text(pages[name], encoding="utf-8")
            continue
        for file in folders[name].files:
            copy_file(folders[name].path / file, new / file)
    sync_all(stage)


def _place(
    stage: Path, place: Path, fresh: Mapping[str, str], recorded: Mapping[str, str] | None
) -> list[str]:
    """Put one prepared file or folder into its place; what is there stays as `NAME.old` unless it is as it was published.

    Args:
        stage: where it is prepared.
        place: where it belongs.
        fresh, recorded: relative path → sha256 of what is published now, and of what was.
    """
    new, notes = stage / _NEW / place.name, list[str]()
    if not os.path.lexists(place):
        os.rename(new, place)
        return notes
    recorded = _listed(place) if recorded is None else recorded
    if not (is_untouched(place, recorded) or is_untouched(place, fresh) or _is_own_page(place)):
        spare = next(path for path in _numbered(place) if not os.path.lexists(path))
        os.rename(place, spare)
        os.rename(new, place)
        return [f"{place} was not as octobert wrote it, and was replaced; yours is now {spare}"]
    if is_file(place / TUNED_FILE):
        if _models(fresh) == _models(recorded):
            copy_file(place / TUNED_FILE, new / TUNED_FILE)
        else:
            notes.append(
                f"{place / TUNED_FILE} was measured with the model before this one, and is gone; octobert tune measures anew"
            )
    if is_file(place):
        os.replace(new, place)
    elif not exchange(new, place):
        os.rename(place, _within(stage / _OLD) / place.name)
        os.rename(new, place)
    return notes


def _is_own_page(place: Path) -> bool:
    """Whether a file is a page that `octobert report` made, or a run in another folder, and nobody has edited."""
    return place.suffix == ".html" and is_file(place) and is_page(content_of(place))


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


def _numbered(path: Path) -> Iterable[Path]:
    """`ort-cpu.old`, `ort-cpu.old-2`, …"""
    for number in count(1):
        yield path.with_name(f"{path.name}.old" + (f"-{number}" if number > 1 else ""))


def _within(folder: Path) -> Path:
    """A folder, made if it is missing."""
    folder.mkdir(parents=True, exist_ok=True)
    return folder
