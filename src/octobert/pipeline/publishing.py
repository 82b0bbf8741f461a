"""Publishing: packages, checkpoint and report are put into the output directory, so that a crash leaves nothing half done.

    OUT/.octobert/published.json              what was published last: name → relative path → sha256
    OUT/.octobert/publishing/new/<name>       what is published next, while it is being made
    OUT/.octobert/publishing/published.json   its record. Once this file is there, the publication is carried through.

All that takes time or space happens in `publishing`, and is synced to the disk. An interruption before the record is there has
changed nothing in OUT. Then every folder is exchanged with the one in OUT in a single step, the report last. If that is
interrupted, the next run in OUT finishes it before anything else (`recover`), from the copies in `publishing`.

OUT belongs to the user. A name whose files were published already is not touched, whatever the user did to them. In a folder
that is replaced, files of the user stay, and a published file that the user edited stays under another name. Nothing in OUT
shares its content on disk with the store, so it may be edited.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field, field_validator

from octobert.core import archives
from octobert.core.errors import StorageError
from octobert.core.evidence import EVIDENCE
from octobert.core.files import (
    atomic_write,
    content_of,
    exchange,
    files_in,
    is_file,
    remove,
    remove_unless_file,
    storage_errors,
    sync,
    sync_all,
    text_digest,
)
from octobert.core.frozen import FrozenModel
from octobert.core.lock import FolderLock
from octobert.core.results import PACKAGE_FILE, TRAINED
from octobert.pipeline import user_files
from octobert.pipeline.contract import Step
from octobert.pipeline.stages._artifacts import CHECKPOINT
from octobert.pipeline.user_files import ITSELF, MARK

HIDDEN = ".octobert"
PAGES = ("report.json", EVIDENCE, "report.html")
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
    """What was published, and for one that is under way, what it changes.

    Args:
        files: name in OUT → relative path → sha256. A file has one relative path, which is empty.
        replaced: names that are new or different, in order.
        dropped: packages and zip files of an earlier run that are not this run's any more.
    """

    files: Mapping[str, dict[str, str]] = Field(default_factory=dict)
    replaced: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()

    @field_validator("replaced", "dropped")
    @classmethod
    def _are_names(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if any(name in ("", ".", "..", HIDDEN) or Path(name).name != name for name in names):
            raise ValueError("not the name of a file or folder in the output directory")
        return names


def check_output(
    steps: Sequence[Step], out: Path, *, names: Mapping[str, str] | None = None
) -> None:
    """Refuse an output directory that holds something else, or what a run reads in a place where the run writes.

    Args:
        names: target → name of its package in the output directory, where that is another one.

    Raises:
        StorageError: the output directory is a file, something that octobert did not write is in the way, it cannot be read,
            or the run would change its own inputs.
    """

    def place(step: Step) -> str:
        target = step.name.partition("/")[2]
        return (names or {}).get(target, target)

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
        zips = [f"{place(step)}{archives.SUFFIX}" for step in steps if step.stage == "archive"]
        for page in (*PAGES, *zips):
            if (out / page).is_dir():
                raise StorageError(
                    "a file would replace a folder",
                    where=str(out / page),
                    fix="move it away, or choose another --out",
                )
        for name in read_in(out, steps) & {".", HIDDEN, *marks, *zips}:
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
    last = _read(out / HIDDEN / _RECORD) or Publication()
    fresh = {name: dict(folder.files) for name, folder in folders.items()}
    fresh |= {name: {ITSELF: text_digest(text)} for name, text in pages.items()}
    packages = [
        name
        for name, files in last.files.items()
        if PACKAGE_FILE in files or name.endswith(archives.SUFFIX)
    ]
    stale = (
        []
        if needed is None
        else [name for name in packages if name not in fresh and name not in needed]
    )
    dropped = [name for name in stale if user_files.is_untouched(out / name, last.files[name])]
    left = [name for name in stale if name not in dropped and os.path.lexists(out / name)]
    remain = {
        name: files for name, files in last.files.items() if name not in stale or name in left
    }
    replaced = [
        name for name, files in fresh.items() if _differs(out / name, files, last.files.get(name))
    ]
    notes = [
        f"{out / name} belongs to an earlier run with other targets; it was left there, because files in it are yours"
        for name in left
    ]
    for name, files in fresh.items():
        notes += [] if name in replaced else user_files.edits(out / name, files)
    publication = Publication(
        files=remain | fresh, replaced=tuple(replaced), dropped=tuple(dropped)
    )
    if replaced or dropped or publication.files != last.files:
        for folder in (folders[name] for name in replaced if name not in pages):
            fetch(folder.step)
        _prepare(out / HIDDEN / _STAGE, publication, folders, pages)
        lock.check()
        _commit(out / HIDDEN / _STAGE, publication)
        notes += _carry_through(out, publication, last)
    return notes


def is_as_published(file: Path) -> bool:
    """Whether a file in an output directory is as a run published it there."""
    last = _read(file.parent / HIDDEN / _RECORD)
    return (
        last is not None
        and file.name in last.files
        and user_files.is_untouched(file, last.files[file.name])
    )


def recover(out: Path) -> list[str]:
    """Finish or discard what an interrupted publication left, to be called under the lock.

    Returns:
        Sentences, as `publish`.
    """
    stage = out / HIDDEN / _STAGE
    publication = _read(stage / _RECORD)
    if publication is None:
        remove(stage)
        return []
    return _carry_through(out, publication, _read(out / HIDDEN / _RECORD) or Publication())


def _read(path: Path) -> Publication | None:
    """A record; None where there is none, or none that can be read."""
    try:
        return Publication.of_json(content_of(path))
    except (OSError, ValueError):
        return None


def _differs(path: Path, fresh: Mapping[str, str], recorded: Mapping[str, str] | None) -> bool:
    """Whether something has to be done to have these files published; not where all that differs are edits of the user."""
    if recorded == fresh:
        return not all(os.path.lexists(path / name) for name in fresh)
    return user_files.digests_below(path, fresh) != fresh or any(
        os.path.lexists(path / name) for name in set(recorded or ()) - set(fresh)
    )


def _prepare(
    stage: Path, publication: Publication, folders: Mapping[str, Folder], pages: Mapping[str, str]
) -> None:
    """Write what is new, and have it on the disk."""
    remove(stage)
    (stage / _NEW).mkdir(parents=True)
    for name in publication.replaced:
        new = stage / _NEW / name
        if name in pages:
            new.write_text(pages[name], encoding="utf-8")
            continue
        for file in folders[name].files:
            (new / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(folders[name].path / file, new / file)
        if ITSELF not in folders[name].files:
            (new / MARK).touch()
    sync_all(stage)


def _commit(stage: Path, publication: Publication) -> None:
    """Write the record; from here on the publication is carried through."""
    with atomic_write(stage / _RECORD) as partial:
        partial.write_text(publication.model_dump_json(indent=1), encoding="utf-8")
        sync(partial)
    sync(stage)
    sync(stage.parent)


def _carry_through(out: Path, publication: Publication, last: Publication) -> list[str]:
    """Put everything into its place. Whatever of it is done already is left alone."""
    stage, notes = out / HIDDEN / _STAGE, list[str]()
    for name in publication.replaced:
        notes += _place(
            stage / _NEW / name,
            out / name,
            stage / _OLD / name,
            publication.files[name],
            last.files.get(name),
        )
    for name in publication.dropped:
        if user_files.is_untouched(out / name, last.files.get(name, {})):
            os.rename(out / name, _within(stage / _OLD) / name)
            notes.append(
                f"{out / name} was removed: it belonged to an earlier run with other targets"
            )
    sync(out)
    remove_unless_file(out / HIDDEN / _RECORD)
    os.replace(stage / _RECORD, out / HIDDEN / _RECORD)
    sync(out / HIDDEN)
    remove(stage)
    return notes


def _place(
    new: Path, place: Path, old: Path, fresh: Mapping[str, str], recorded: Mapping[str, str] | None
) -> list[str]:
    """Put one file or folder into its place, with what the user had there.

    Args:
        new: it, where it is prepared.
        place: where it belongs.
        old: where the present one may be kept for a moment.
    """
    notes: list[str] = []
    if is_file(new):
        notes = user_files.keep_edits(place, fresh, recorded)
        os.replace(new, place)
    elif os.path.lexists(new / MARK):
        # An interrupted pair of renames has left the present folder in `old`.
        notes = user_files.carry_over(
            place if os.path.lexists(place) else old, new, place, fresh, recorded
        )
        sync_all(new)
        if not os.path.lexists(place):
            os.rename(new, place)
        elif not exchange(new, place):
            _within(old.parent)
            os.rename(place, old)
            os.rename(new, place)
    if ITSELF not in fresh:
        (place / MARK).unlink(missing_ok=True)
    return notes


def _within(folder: Path) -> Path:
    """A folder, made if it is missing."""
    folder.mkdir(parents=True, exist_ok=True)
    return folder
