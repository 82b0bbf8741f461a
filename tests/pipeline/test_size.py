"""The size of an output directory after a run: large files that are made fast go, and come back when something reads them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from octobert.core.errors import StorageError
from octobert.core.files import digests_of
from octobert.core.progress import ProgressEvent
from octobert.engine import cleaning, store, work
from octobert.engine.contract import Request, Response
from octobert.engine.executors import inline
from octobert.engine.publishing import HIDDEN
from octobert.engine.store import WITHOUT, Artifact, Store
from octobert.pipeline import runner
from tests.support.runs import brief
from tests.support.stages import changed

MB = 1 << 20


def add(
    there: Store, stage: str, seconds: float, *sizes: int, link: Path | None = None
) -> Artifact:
    """A result with files of so many megabytes; the first may be a link to another one's."""
    key = f"{len(list(there.root.glob('*'))):016x}" * 4
    with there.making(stage, key) as (folder, _):
        for number, size in enumerate(sizes):
            path = folder / f"{number}.onnx"
            if link is not None and not number:
                path.hardlink_to(link)
            else:
                path.write_bytes(bytes([number]) * size * MB)
        (folder / "facts.json").write_text("{}" + " " * 2 * MB)
        artifact = Artifact(
            stage=stage, key=key, files=digests_of(folder), inputs={}, options={}, summary={}, versions={},
            seconds=seconds, peak_memory_bytes=1,
        )  # fmt: skip
        there.commit(folder, artifact)
    return artifact


def test_what_took_longest_for_its_size_stays(tmp_path) -> None:
    there = Store(tmp_path / "store")
    slow, fast, light = (
        add(there, "slow", 60, 4),
        add(there, "fast", 1, 4),
        add(there, "light", 9, 1, 1),
    )
    same = add(there, "linked", 0.1, 4, link=there.path("slow", slow.key) / "0.onnx")
    there.shrink(7 * MB)
    assert [there.is_whole(artifact) for artifact in (slow, light, same, fast)] == [True] * 3 + [
        False
    ]
    assert {a.key for a in (slow, fast, light, same)} == {
        found.key for a in (slow, fast, light, same) if (found := there.find(a.stage, a.key))
    }
    files = there.path("fast", fast.key).iterdir()
    assert {path.name for path in files} == {
        "artifact.json",
        "artifact.sha256",
        WITHOUT,
        "facts.json",
    }
    there.shrink(7 * MB)
    assert json.loads((there.path("fast", fast.key) / WITHOUT).read_text()) == ["0.onnx"]


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: (folder / "facts.json").unlink(),
        lambda folder: (folder / "0.onnx").write_bytes(b"x"),
        lambda folder: (folder / WITHOUT).write_text("["),
        lambda folder: (folder / WITHOUT).write_text("[]"),
        lambda folder: (folder / WITHOUT).write_text("7"),
        lambda folder: (folder / WITHOUT).write_text("[" * 100_000),
        lambda folder: (
            (folder / WITHOUT).write_text('["0.onnx", "facts.json"]'),
            (folder / "facts.json").unlink(),
        ),
    ],
)
def test_a_result_without_its_large_files_may_be_damaged_too(tmp_path, damage) -> None:
    there = Store(tmp_path / "store")
    artifact = add(there, "fast", 1, 4)
    there.shrink(0)
    assert there.find("fast", artifact.key) == artifact
    damage(there.path("fast", artifact.key))
    assert there.find("fast", artifact.key) is None


@pytest.fixture
def small(monkeypatch) -> None:
    """Files of tiny models are large, and next to nothing stays."""
    monkeypatch.setattr(store, "_LARGE", 1 << 10)
    monkeypatch.setattr(work, "KEPT", 1e-3)


class Counted:
    """An executor that notes which stages run."""

    def __init__(self) -> None:
        self.stages: list[str] = []

    def __call__(self, request: Request, folder: Path, *more: Any) -> Response:
        self.stages.append(request.stage)
        return inline.run(request, folder, *more)


def weights_in(out: Path) -> list[str]:
    return [path.name for path in (out / HIDDEN).rglob("*") if path.name.endswith(store._WEIGHTS)]


def test_the_same_command_resumes_and_deleted_files_come_back(small, finished, tmp_path) -> None:
    out, recipe = tmp_path / "out", brief(finished[0])
    runner.run(recipe, out, executor=Counted())
    before = digests_of(out / "ort-cpu")
    assert weights_in(out) == []
    again = Counted()
    runner.run(recipe, out, executor=again)
    assert again.stages == []
    assert weights_in(out) == []
    (out / "ort-cpu" / "onnx" / "model_quantized.onnx").unlink()
    runner.run(recipe, out, executor=again)
    assert digests_of(out / "ort-cpu") == before
    # The first quantize is that of the target before, whose corrected weights are taken. No other result of another target is
    # made, and none that nothing reads.
    assert again.stages == ["capture", "transform", "quantize", "quantize", "export", "package"]
    other = Counted()
    runner.run(changed(recipe, calibrate={"name": "mse", "options": {}}), out, executor=other)
    assert set(other.stages) >= {"calibrate", "capture", "transform", "quantize", "package"}
    assert "data" not in other.stages
    assert weights_in(out) == []
    cleaning.clean(out)
    assert Store(out / HIDDEN / "store").entries() == {}


def test_a_result_that_is_not_what_it_was(small, finished, tmp_path) -> None:
    out, recipe = tmp_path / "out", brief(finished[0])
    runner.run(recipe, out, executor=inline.run)

    def other(request: Request, folder: Path, *more: Any) -> Response:
        response = inline.run(request, folder, *more)
        if request.stage == "capture":
            (folder / "capture.json").write_text("{}")
        return response

    (out / "ort-cpu" / "onnx" / "model_quantized.onnx").unlink()
    with pytest.raises(
        StorageError,
        match=r"not what it was .*octobert clean OUT, and run the same command again\.",
    ):
        runner.run(recipe, out, executor=other)
    runner.run(recipe, out, executor=inline.run)
    assert (out / "ort-cpu" / "onnx" / "model_quantized.onnx").is_file()


def test_a_cache_of_the_user_keeps_its_results(small, finished, tmp_path) -> None:
    recipe = changed(brief(finished[0]), cache=str(tmp_path / "cache"))
    runner.run(recipe, tmp_path / "out", executor=inline.run)
    assert weights_in(tmp_path / "cache")


def test_it_is_said_before_the_run(finished, tmp_path) -> None:
    events: list[ProgressEvent] = []
    runner.run(brief(finished[0]), tmp_path / "out", events.append, executor=inline.run)
    first = events[0]
    assert first.state == "note"
    assert " of it stay in" in str(first.detail)
