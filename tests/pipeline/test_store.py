"""The store: a result is what was stored, to the byte, or it is made again; one run at a time."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from octobert.core.errors import BusyError, StorageError
from octobert.core.files import digests_of, remove
from octobert.core.lock import locked
from octobert.engine.executors import inline
from octobert.engine.store import MANIFEST, SEAL, Artifact, Store
from octobert.pipeline import runner

KEY = "0123456789abcdef" * 4
CONTENTS = {"model.onnx": b"weights", "inner/plan.json": b"{}", "empty": b""}


def stored(root: Path) -> tuple[Store, Path]:
    """A store with one result, and the folder of the result."""
    store = Store(root)
    with store.making("capture", KEY) as (work, _):
        for name, content in CONTENTS.items():
            (work / name).parent.mkdir(exist_ok=True)
            (work / name).write_bytes(content)
        artifact = Artifact(
            stage="capture", key=KEY, files=digests_of(work), inputs={}, options={"a": 1}, summary={"rows": 8}, versions={},
            seconds=1.5, peak_memory_bytes=1,
        )  # fmt: skip
        return store, store.commit(work, artifact)


def flip(path: Path, position: int, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 1 << bit
    path.write_bytes(content)


def test_every_byte_of_a_result_counts(tmp_path) -> None:
    """Also those of the manifest, whose figures come into the report."""
    store, folder = stored(tmp_path / "store")
    assert store.find("capture", KEY) is not None
    whole = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert {path.relative_to(folder).as_posix() for path in whole} == {*CONTENTS, MANIFEST, SEAL}
    for path, content in whole.items():
        for position in range(len(content)):
            flip(path, position, position % 8)
            assert store.find("capture", KEY) is None, f"{path.name}, byte {position}"
            path.write_bytes(content)
        path.write_bytes(content + b"\n")
        assert store.find("capture", KEY) is None, f"{path.name}, one byte more"
        path.write_bytes(content)
    assert store.find("capture", KEY) is not None


def replace_by_link(path: Path) -> None:
    elsewhere = next(parent for parent in path.parents if parent.name == "store").with_name(
        "elsewhere"
    )
    shutil.move(path, elsewhere)
    path.symlink_to(elsewhere)


def replace_by_file(path: Path) -> None:
    shutil.rmtree(path)
    path.write_text("x")


def replace_by_dangling_link(path: Path) -> None:
    remove(path)
    path.symlink_to("nowhere")


DAMAGE: dict[str, Callable[[Path], object]] = {
    "a file is missing": lambda folder: (folder / "model.onnx").unlink(),
    "an empty file is missing": lambda folder: (folder / "empty").unlink(),
    "the seal is missing": lambda folder: (folder / SEAL).unlink(),
    "a file is truncated": lambda folder: (folder / "model.onnx").write_bytes(b"weigh"),
    "a file is added": lambda folder: (folder / "inner" / "model.onnx.data").write_bytes(b"x"),
    "a file is a link to the same content": lambda folder: replace_by_link(folder / "model.onnx"),
    "the manifest is a link": lambda folder: replace_by_link(folder / MANIFEST),
    "the seal is a link": lambda folder: replace_by_link(folder / SEAL),
    "an inner folder is a link": lambda folder: replace_by_link(folder / "inner"),
    "a file is a folder": lambda folder: [
        (folder / "model.onnx").unlink(),
        (folder / "model.onnx").mkdir(),
    ],
    "a file is a pipe": lambda folder: [
        (folder / "model.onnx").unlink(),
        os.mkfifo(folder / "model.onnx"),
    ],
    "a file is a dangling link": lambda folder: replace_by_dangling_link(folder / "model.onnx"),
    "the result is a link to itself elsewhere": replace_by_link,
    "the result is a file": replace_by_file,
    "the result is a dangling link": replace_by_dangling_link,
    "the result is another one": lambda folder: folder.rename(
        folder.with_name("capture-fedcba9876543210")
    ),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_result_is_made_again(damage: str, tmp_path) -> None:
    store, folder = stored(tmp_path / "store")
    DAMAGE[damage](folder)
    assert store.find("capture", KEY) is None
    assert all(size >= 0 for size in store.entries().values()), (
        "it can be listed, for octobert clean"
    )
    again, _ = stored(tmp_path / "store")
    assert again.find("capture", KEY) is not None
    for name in store.entries():
        store.remove(name)
    assert store.entries() == {}


@pytest.mark.parametrize(
    "make", [lambda path: path.write_text("x"), lambda path: path.symlink_to("nowhere")]
)
def test_what_is_in_the_way_of_work_is_removed(make, tmp_path) -> None:
    store = Store(tmp_path / "store")
    store.root.mkdir()
    make(store.scratch("capture", KEY))
    make(store.root / f"work-capture-{KEY[:16]}-{os.getpid()}")
    with store.making("capture", KEY) as folders:
        assert all(folder.is_dir() and not any(folder.iterdir()) for folder in folders)
        store.scratch("capture", KEY).mkdir(parents=True, exist_ok=True)
    left = [f"work-qat-{KEY[:16]}-7", "work-remote-0123abcd", "work-temporary-7-8"]
    for name in (*left, "work-important", "mine"):
        make(store.root / name)
    assert store.sweep() == left
    assert {path.name for path in store.root.iterdir()} == {
        store.scratch("capture", KEY).name,
        "work-important",
        "mine",
    }
    assert list(store.entries()) == [store.scratch("capture", KEY).name]


@pytest.mark.parametrize("moment", range(1, 5))
def test_whenever_it_is_interrupted_nothing_is_left(moment: int, tmp_path, monkeypatch) -> None:
    """Ctrl-C may come right after a folder was made, before anybody works in it."""
    made, mkdir = [], Path.mkdir

    def interrupted(path: Path, *arguments, **named) -> None:
        mkdir(path, *arguments, **named)
        made.append(path)
        if len(made) == moment:
            raise KeyboardInterrupt

    def work_in(store: Store) -> None:
        with store.making("capture", KEY) as (work, temporary):
            (work / "half.onnx").write_bytes(b"half")
            (temporary / "inner").mkdir()
            (work / "inner").mkdir()

    monkeypatch.setattr(Path, "mkdir", interrupted)
    with pytest.raises(KeyboardInterrupt):
        work_in(Store(tmp_path))
    assert len(made) == moment
    assert not any(tmp_path.iterdir())


def held_elsewhere(folder: Path) -> bool:
    """Whether another process is told that the folder is held."""
    code = "import sys, pathlib; from octobert.core.lock import locked\nwith locked(pathlib.Path(sys.argv[1])): pass"
    done = subprocess.run([sys.executable, "-c", code, str(folder)], capture_output=True, text=True)
    assert done.returncode == 0 or "BusyError" in done.stderr, done.stderr
    return done.returncode != 0


def test_a_lock_file_that_is_removed_does_not_let_a_second_run_in(tmp_path) -> None:
    """A second run would remove the work folders of the first."""
    folder = tmp_path / "out" / ".octobert"
    with locked(folder) as lock:
        (folder / "lock").unlink()
        assert held_elsewhere(folder)
        with pytest.raises(BusyError, match=f"process {os.getpid()}"), locked(folder):
            pass
        lock.check()
    assert not held_elsewhere(folder)


def test_where_folders_cannot_be_locked_a_missing_lock_file_ends_the_run(
    tmp_path, monkeypatch
) -> None:
    """As on network file systems."""
    import fcntl

    real, folder = fcntl.flock, tmp_path / "out" / ".octobert"

    def files_only(descriptor: int, operation: int) -> None:
        if os.path.isdir(f"/proc/self/fd/{descriptor}"):
            raise OSError(9, "Bad file descriptor")
        real(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", files_only)
    with locked(folder) as lock:
        lock.check()
        (folder / "lock").unlink()
        with pytest.raises(StorageError, match="removed or replaced while a run was at work"):
            lock.check()


def test_a_directory_that_is_replaced_ends_the_run(tmp_path) -> None:
    folder = tmp_path / "out" / ".octobert"
    with locked(folder) as lock:
        folder.rename(tmp_path / "gone")
        with pytest.raises(StorageError, match="removed or replaced while a run was at work"):
            lock.check()
        folder.mkdir()
        with pytest.raises(StorageError, match="removed or replaced while a run was at work"):
            lock.check()


def test_a_lock_that_cannot_be_made_is_a_sentence(tmp_path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "with" / "lock").mkdir(parents=True)
    for folder in (tmp_path / "file", tmp_path / "with", tmp_path / ("x" * 300)):
        with (
            pytest.raises(StorageError, match=r"cannot be written|name is too long"),
            locked(folder),
        ):
            pass


def test_nothing_is_written_through_links_beside_the_store(finished, tmp_path) -> None:
    recipe, made, _ = finished
    out, outside = shutil.copytree(made, tmp_path / "out"), tmp_path / "outside"
    outside.write_text("mine")
    for name in ("events.jsonl", "process"):
        (out / ".octobert" / name).unlink()
        (out / ".octobert" / name).symlink_to(outside)
    (out / ".octobert" / "published.json").unlink()
    (out / ".octobert" / "published.json").mkdir()
    runner.run(recipe, out, executor=inline.run)
    assert outside.read_text() == "mine"
    assert all(
        (out / ".octobert" / name).is_file()
        for name in ("events.jsonl", "process", "published.json")
    )


def test_what_a_killed_run_left_of_a_stored_result_is_swept(tmp_path) -> None:
    store, folder = stored(tmp_path)
    needed = store.scratch("qat", KEY)
    for scratch in (store.scratch("capture", KEY), needed):
        scratch.mkdir()
    assert store.sweep() == [f"scratch-{folder.name}"]
    assert needed.is_dir()
    assert store.find("capture", KEY) is not None
