"""Publishing: old or new and never a mixture, whatever interrupts it; and what belongs to the user stays."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from octobert.core import files
from octobert.core.errors import StorageError
from octobert.core.files import digests_of, text_digest
from octobert.core.frozen import FrozenModel
from octobert.core.lock import locked
from octobert.core.user_code import UserCode
from octobert.engine import publishing
from octobert.engine.contract import Step
from octobert.engine.publishing import HIDDEN, Folder, discard, publish

OLD = {
    "octobert.json": "old",
    "onnx/model.onnx": "float",
    "onnx/model_quantized.onnx": "old weights",
    "old.txt": "only old",
}
NEW = {
    "octobert.json": "new",
    "onnx/model.onnx": "float",
    "onnx/model_quantized.onnx": "new weights",
    "new/new.txt": "only new",
}
OTHER = {"octobert.json": "other", "openvino_model.xml": "other"}


def put(folder: Path, contents: Mapping[str, str]) -> Folder:
    """A folder of the store with these files."""
    for name, text in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return Folder(folder, {name: text_digest(text) for name, text in contents.items()}, "export/a")


def put_once(out: Path, contents: Mapping[str, str]) -> Folder:
    """A result in the store of an output directory."""
    folder = out / HIDDEN / "store" / text_digest(repr(contents))[:8]
    return (
        Folder(folder, {n: text_digest(t) for n, t in contents.items()}, "export/a")
        if folder.exists()
        else put(folder, contents)
    )


def there(step: str) -> None:
    """Every result is whole in the store."""


def published(
    out: Path,
    folders: Mapping[str, Mapping[str, str]],
    report: str,
    needed: Collection[str] | None = (),
) -> list[str]:
    """Publish folders with these contents, and a report."""
    stored = {name: put_once(out, contents) for name, contents in folders.items()}
    with locked(out / HIDDEN) as lock:
        discard(out)
        return publish(out, stored, {"report.json": report}, lock, fetch=there, needed=needed)


def contents(out: Path) -> dict[str, str]:
    """What a user sees: relative path → text."""
    return {
        path.relative_to(out).as_posix(): path.read_text()
        for path in files.files_in(out)
        if HIDDEN not in path.parts
    }


def seen(folders: Mapping[str, Mapping[str, str]], report: str, **more: str) -> dict[str, str]:
    """What a user should see."""
    inner = {
        f"{name}/{file}": text
        for name, contents in folders.items()
        for file, text in contents.items()
    }
    return {**inner, "report.json": report, **more}


class Crash(BaseException):
    """The end of the process."""


_CHANGES = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link"}
_left: list[float] = [float("inf")]
_hooked = False


def _hook(event: str, arguments: tuple[object, ...]) -> None:
    if event not in _CHANGES or _left[0] == float("inf"):
        return
    if event == "open" and not arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):  # type: ignore[operator]
        return
    _left[0] -= 1
    if _left[0] < 0:
        raise Crash


@contextmanager
def crash_after(changes: int) -> Iterator[None]:
    """End the process before its next change of the file system, after so many; nothing changes afterwards."""
    global _hooked
    if not _hooked:
        sys.addaudithook(_hook)
        _hooked = True
    _left[0] = changes
    try:
        yield
    finally:
        _left[0] = float("inf")


@pytest.fixture(params=["exchange", "two renames"])
def system(request, monkeypatch) -> None:
    """With and without a system that exchanges two folders in one step. Nothing waits for the disk, which no process sees."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    if request.param == "two renames":
        monkeypatch.setattr(publishing, "exchange", lambda one, other: False)


def crashes(start: Path, act: Callable[[Path], object], tmp_path: Path) -> Iterator[Path]:
    """Copies of a directory in which `act` was interrupted at every change; in the last it came to its end."""
    for number in range(10_000):
        out = tmp_path / f"crash-{number}"
        shutil.copytree(start, out, symlinks=True)
        finished = False
        try:
            with crash_after(number):
                act(out)
                finished = True
        except Crash:
            pass
        yield out
        shutil.rmtree(out)
        if finished:
            return
    raise AssertionError("it never ends")


def test_a_crash_at_any_change_leaves_the_old_or_the_new(system, tmp_path, request) -> None:
    """Every crash leaves each package as it was or as it will be, the user's files somewhere; the same run ends it."""
    start, before, after = (
        tmp_path / "start",
        {"a": OLD, "b": OLD, "stale": OTHER},
        {"a": NEW, "b": OTHER},
    )
    published(start, before, "old")
    put_once(start, NEW)
    mine = {
        "tuned.json": "tuned",
        "notes/mine.txt": "mine",
        "onnx/model_quantized.onnx": "edited",
    }
    put(start / "a", mine)
    edited = OLD | mine
    new = seen({**after, "a.old": edited}, "new")
    whole, states = request.node.callspec.params["system"] == "exchange", set()

    for out in crashes(start, lambda out: published(out, after, "new"), tmp_path):
        now = contents(out)
        kept = {name: files_below(now, name) for name in ("a", "a.old", "b", "stale")}
        assert kept["a"] in (edited, NEW) or (not kept["a"] and kept["a.old"] == edited)
        assert kept["a.old"] in ({}, edited)
        assert kept["b"] in (OLD, OTHER) or (not whole and not kept["b"]), "it is always there"
        assert kept["stale"] in (OTHER, {})
        states.add((kept["a"] == NEW, kept["b"] == OTHER, now["report.json"]))
        # The next run ends where an undisturbed one ends, and every other run begins from there.
        published(out, after, "new")
        assert contents(out) == new
        assert not (out / HIDDEN / "publishing").exists()
    # The report is the last one.
    assert {state for state in states if state[2] == "new"} == {(True, True, "new")}
    assert (False, False, "old") in states


def files_below(seen_files: Mapping[str, str], folder: str) -> dict[str, str]:
    """Of what a user sees, the files of one folder."""
    prefix = f"{folder}/"
    return {n.removeprefix(prefix): t for n, t in seen_files.items() if n.startswith(prefix)}


def test_a_crash_after_a_crash(system, tmp_path) -> None:
    start, before, after = tmp_path / "start", {"a": OLD, "b": OLD}, {"a": NEW, "b": NEW}
    published(start, before, "old")
    put_once(start, NEW)
    (start / "a" / "mine.txt").write_text("mine")
    new = seen({**after, "a.old": OLD | {"mine.txt": "mine"}}, "new")
    pending = next(
        out.rename(tmp_path / "pending")
        for out in crashes(start, lambda out: published(out, after, "new"), tmp_path)
        if (out / "a.old").exists()
    )
    for out in crashes(pending, lambda out: published(out, after, "new"), tmp_path):
        published(out, after, "new")
        assert contents(out) == new


def test_everything_is_on_the_disk_before_it_is_in_its_place(tmp_path, monkeypatch) -> None:
    """The order of what matters: every new file and folder is synced, then it takes its place, then the record says so."""
    out, order = tmp_path / "out", []
    published(out, {"a": OLD}, "old")
    real_sync, real_exchange, real_replace = os.fsync, publishing.exchange, os.replace

    def noted(kind: str, path: object) -> None:
        order.append((kind, str(Path(str(path)).relative_to(out))))

    def fsync(descriptor: int) -> None:
        noted("sync", os.readlink(f"/proc/self/fd/{descriptor}"))
        real_sync(descriptor)

    def exchange(one: Path, other: Path) -> bool:
        noted("place", other)
        return real_exchange(one, other)

    def replace(source: Path, target: Path) -> None:
        noted("place", target)
        real_replace(source, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(publishing, "exchange", exchange)
    monkeypatch.setattr(os, "replace", replace)
    published(out, {"a": NEW}, "new")
    stage, record = f"{HIDDEN}/publishing", f"{HIDDEN}/published.json"
    first = order.index(("place", "a"))
    for name in (
        *(f"new/a/{file}" for file in NEW),
        "new/a/onnx",
        "new/a",
        "new/report.json",
        "new",
    ):
        assert order.index(("sync", f"{stage}/{name}")) < first
    places = [name for kind, name in order if kind == "place"]
    assert places == ["a", record, "report.json", record]
    for name in ("a", "report.json"):
        place = order.index(("place", name))
        assert order.index(("sync", "."), place) < order.index(("place", record), place)


def test_nothing_in_out_is_the_same_file_as_in_the_store(tmp_path) -> None:
    """A program that writes a published file in place must not change what is stored."""
    out = tmp_path / "out"
    published(out, {"a": OLD}, "old")
    before = digests_of(out / HIDDEN / "store")
    for path in files.files_in(out / "a"):
        assert path.stat().st_nlink == 1
        with path.open("r+") as stream:
            stream.write("edited in place")
    assert digests_of(out / HIDDEN / "store") == before


def test_publishing_the_same_again_touches_nothing(tmp_path) -> None:
    out = tmp_path / "out"
    published(out, {"a": OLD}, "old")
    (out / "a" / "tuned.json").write_text("tuned")
    (out / "a" / "octobert.json").write_text("edited")
    (out / "report.json").write_text("edited")
    paths = (out / "a", *files.files_in(out / "a"), out / "report.json")
    # Reading a file changes its time of access.
    before = {path: files.file_stamp(path) for path in paths}
    notes = published(out, {"a": OLD}, "old")
    assert {path: files.file_stamp(path) for path in paths} == before
    assert [note.partition(" was changed")[0] for note in notes] == [
        str(out / "a" / "octobert.json"),
        str(out / "report.json"),
    ]
    assert all("remove it and run again to have it back" in note for note in notes)
    (out / "a" / "onnx" / "model.onnx").unlink()
    published(out, {"a": OLD}, "old")
    assert (out / "a" / "onnx" / "model.onnx").read_text() == "float"
    assert (out / "a.old" / "octobert.json").read_text() == "edited"


def test_what_the_user_changed_stays_under_another_name(tmp_path) -> None:
    out = tmp_path / "out"
    published(out, {"a": OLD, "b": OLD}, "old")
    (out / "a" / "link").symlink_to("octobert.json")
    (out / "a" / "octobert.json").write_text("edited once")
    (out / "report.json").write_text("my report")
    notes = published(out, {"a": NEW, "b": NEW}, "new")
    edited = OLD | {"octobert.json": "edited once", "link": "edited once"}
    expected = seen(
        {"a": NEW, "b": NEW, "a.old": edited}, "new", **{"report.json.old": "my report"}
    )
    assert contents(out) == expected
    assert (out / "a.old" / "link").is_symlink()
    said = "\n".join(notes)
    for name in ("a", "report.json"):
        assert (
            f"{out / name} was not as octobert wrote it, and was replaced; yours is now {out / name}.old"
            in said
        )
    assert len(notes) == 2
    (out / "a" / "octobert.json").write_text("edited twice")
    published(out, {"a": OLD}, "old")
    assert (out / "a.old" / "octobert.json").read_text() == "edited once"
    assert (out / "a.old-2" / "octobert.json").read_text() == "edited twice"


def test_tuned_settings_stay_with_their_model(tmp_path) -> None:
    out = tmp_path / "out"
    published(out, {"a": OLD}, "old")
    (out / "a" / "tuned.json").write_text("tuned")
    assert published(out, {"a": OLD | {"README.md": "a card"}}, "old") == []
    assert (out / "a" / "tuned.json").read_text() == "tuned"
    (note,) = published(out, {"a": NEW}, "new")
    assert note.startswith(
        f"{out / 'a' / 'tuned.json'} was measured with the model before this one, and is gone"
    )
    assert contents(out) == seen({"a": NEW}, "new")


def test_a_package_without_a_record_says_itself_what_was_published(tmp_path) -> None:
    """The hidden folder may be removed to save space; packages list their files."""
    out, listed = (
        tmp_path / "out",
        {"octobert.json": json.dumps({"files": {"a.bin": text_digest("a")}})},
    )
    put(out / "a", {**listed, "a.bin": "a"})
    put(out / "b", {**listed, "a.bin": "edited"})
    published(out, {"a": NEW, "b": NEW}, "new")
    mine = {**listed, "a.bin": "edited"}
    assert contents(out) == seen({"a": NEW, "b": NEW, "b.old": mine}, "new")


@pytest.mark.parametrize("text", ["[" * 100_000, "7", '{"files": 7}', '{"files": [7]}', "{}"])
def test_a_package_that_lists_nothing_that_can_be_read_is_the_users(tmp_path, text: str) -> None:
    out = tmp_path / "out"
    put(out / "a", {"octobert.json": text, "a.bin": "a"})
    published(out, {"a": NEW}, "new")
    assert (out / "a.old" / "octobert.json").read_text() == text


def test_packages_of_targets_that_were_dropped_do_not_stay_beside_another_report(tmp_path) -> None:
    out = tmp_path / "out"
    published(out, {"a": OLD, "b": OLD, "c": OLD, "checkpoint": {"trained.json": "trained"}}, "old")
    (out / "c" / "mine.txt").write_text("mine")
    notes = published(out, {"a": OLD}, "new")
    assert {path.name for path in out.iterdir()} == {HIDDEN, "report.json", "a", "c", "checkpoint"}
    assert any(note.startswith(f"{out / 'b'} was removed") for note in notes)
    assert any(note.startswith(f"{out / 'c'} belongs to an earlier run") for note in notes)
    published(out, {"checkpoint": {"trained.json": "again"}}, "new", needed=None)
    published(out, {"c": OLD}, "new", needed={"a"})
    assert (out / "a").exists(), (
        "training alone says nothing about packages, and a run does not remove its own model"
    )


def test_a_record_cannot_name_anything_outside_of_the_directory(tmp_path) -> None:
    out, mine = tmp_path / "out", {"octobert.json": "mine"}
    put(tmp_path / "x", mine)
    digests = {"octobert.json": text_digest("mine")}
    put(out / HIDDEN, {"published.json": json.dumps({"files": {"../x": digests}})})
    published(out, {"a": OLD}, "old")
    assert (tmp_path / "x" / "octobert.json").read_text() == "mine"
    assert contents(out) == seen({"a": OLD}, "old")


class Options(FrozenModel):
    """Of a stage that reads a file."""

    file: UserCode


class Nothing(FrozenModel):
    """Inputs of a stage that needs no other."""


def step(name: str, path: Path) -> Step:
    """A step that reads a file."""
    options = Options(
        file=UserCode(kind="train", path=path, function="train", where="", digest="", stamp="")
    )
    return Step(name, name.partition("/")[0], Nothing(), options)


def test_what_is_in_the_way_is_refused_before_a_run_starts(tmp_path) -> None:
    out, packaged = tmp_path / "out", step("package/a", tmp_path / "model")
    (out / "report.html").mkdir(parents=True)
    with pytest.raises(StorageError, match="a file would replace a folder"):
        publishing.check_output([packaged], out)
    (out / "report.html").rmdir()
    (out / "a").symlink_to("nowhere")
    with pytest.raises(StorageError, match="would replace a folder that octobert did not write"):
        publishing.check_output([packaged], out)
    with pytest.raises(StorageError, match=r"the name is too long \(got File name too long"):
        publishing.check_output([packaged], tmp_path / ("x" * 300))


@pytest.mark.parametrize(
    "place", [".", "a", "a/onnx/model.onnx", ".octobert/store/capture-0/model.onnx", "checkpoint"]
)
def test_a_run_that_would_change_what_it_reads_is_refused(
    golden, place: str, tmp_path, monkeypatch
) -> None:
    """The run would never come to an end: every repetition finds other inputs."""
    (tmp_path / "out").mkdir()
    monkeypatch.chdir(tmp_path)
    for path in (tmp_path / "out" / place, Path("out") / place):
        with golden.raises(StorageError):
            publishing.check_output([step("finetune", path), step("package/a", path)], Path("out"))
    publishing.check_output(
        [step("data", Path("out/mine.csv")), step("package/a", Path("out/b"))], Path("out")
    )
    assert publishing.read_in(Path("out"), [step("data", Path("out/b/onnx"))]) == {"b"}
