"""`cache`: results of steps in another folder, shared by output directories, with a lock of its own."""

from __future__ import annotations

import json
import logging
from contextlib import suppress
from pathlib import Path

import pytest

from octobert.config.loading import parse
from octobert.core import logs
from octobert.core.errors import BusyError, RecipeError, StorageError
from octobert.core.lock import locked
from octobert.core.session import SessionOptions
from octobert.engine import cleaning
from octobert.engine.contract import Request, Response
from octobert.pipeline import runner
from octobert.pipeline.planner import steps_of
from octobert.targets.runtimes import openvino, ort


class Enough(Exception):
    """The run has gone far enough."""


def quick(request: Request, work: Path, *_: object) -> Response:
    """Stages that make nothing; the transform ends the run."""
    if request.stage == "transform":
        raise Enough
    (work / "made").write_text(request.stage)
    return Response(summary={}, seconds=0.0, peak_memory_bytes=0)


@pytest.fixture
def recipe(finished, tmp_path: Path):
    plain = finished[0].model_dump(by_alias=True, exclude_unset=True)
    plain |= {
        "task": plain["task"]["name"],
        "targets": ["ort-cpu"],
        "cache": str(tmp_path / "cache"),
    }
    return parse(plain)


def test_two_output_directories_share_what_they_have_in_common(recipe, tmp_path: Path) -> None:
    ran: list[str] = []

    def counted(request: Request, work: Path, *rest: object) -> Response:
        ran.append(request.stage)
        return quick(request, work, *rest)

    for name in ("one", "two"):
        with pytest.raises(Enough):
            runner.run(recipe, tmp_path / name, executor=counted)
    assert ran == ["data", "capture", "transform", "transform"]
    assert sorted(
        path.name.partition("-")[0]
        for path in (tmp_path / "cache" / ".octobert" / "store").iterdir()
    ) == [
        "capture",
        "data",
    ]
    assert not (tmp_path / "one" / ".octobert" / "store").exists()
    assert [v.action for v in runner.dry_run(recipe, tmp_path / "new")][:2] == ["reuse", "reuse"]
    # Without the key the output directory has a store of its own again.
    with pytest.raises(Enough):
        runner.run(recipe.model_copy(update={"cache": None}), tmp_path / "one", executor=counted)
    assert len(cleaning.stored(tmp_path / "one")) == 2


def test_a_cache_is_held_by_one_run(recipe, tmp_path: Path) -> None:
    with (
        locked(tmp_path / "cache" / ".octobert"),
        pytest.raises(BusyError, match="choose another --out or --cache") as caught,
    ):
        runner.run(recipe, tmp_path / "out", executor=quick)
    assert caught.value.where == str(tmp_path / "cache")


def test_clean_removes_what_the_runs_of_a_directory_used_or_everything(
    recipe, tmp_path: Path
) -> None:
    out, cache = tmp_path / "out", tmp_path / "cache"
    with pytest.raises(Enough):
        runner.run(recipe, out, executor=quick)
    assert cleaning.stored(out) == {}
    data = next((cache / ".octobert" / "store").glob("data-*")).name
    with (out / ".octobert" / "events.jsonl").open("a") as stream:
        stream.write(f'{{"event": "done", "entries": ["{data}"]}}\n')
    assert list(cleaning.stored(out)) == [data]
    assert cleaning.clean(out, keep_last=True) == {}
    assert list(cleaning.clean(out)) == [data]
    assert [name.partition("-")[0] for name in cleaning.clean(cache)] == ["capture"]
    assert cleaning.stored(cache) == {}
    with pytest.raises(StorageError, match="not an output directory"):
        cleaning.clean(tmp_path)


def test_nothing_of_the_user_in_the_folder_of_a_cache_is_touched(recipe, tmp_path: Path) -> None:
    """Also not what has names of octobert's own."""
    cache, names = (
        tmp_path / "cache",
        (
            "store/work-important/x",
            "store/work-temporary-1-2/x",
            "store/notes",
            "process/x",
            "lock",
        ),
    )
    for name in names:
        (cache / name).parent.mkdir(parents=True, exist_ok=True)
        (cache / name).write_text("mine")
    with pytest.raises(Enough):
        runner.run(recipe, tmp_path / "out", executor=quick)
    assert len(cleaning.clean(cache)) == 2
    assert [(cache / name).read_text() for name in names] == ["mine"] * len(names)


def test_a_cache_may_be_the_output_directory(recipe, tmp_path: Path) -> None:
    out = tmp_path / "cache"
    with pytest.raises(Enough):
        runner.run(recipe, out, executor=quick)
    assert len(cleaning.clean(out)) == 2


@pytest.mark.parametrize(
    "pointer", ["{folder}/victim", "victim", "../victim", "/", "{folder}/gone"]
)
def test_an_output_directory_of_somebody_else_names_nothing_that_is_removed(
    pointer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    hidden, names = tmp_path / "out" / ".octobert", ["data", "src", "data-0123456789abcdef"]
    for name in names:
        (tmp_path / "victim" / "store" / name).mkdir(parents=True)
    (tmp_path / "victim" / ".octobert" / "store" / "src").mkdir(parents=True)
    hidden.mkdir(parents=True)
    (hidden / "cache").write_text(pointer.format(folder=tmp_path))
    (hidden / "events.jsonl").write_text(json.dumps({"event": "done", "entries": names}) + "\n")
    before = sorted(tmp_path.rglob("victim/**/*"))
    assert cleaning.clean(tmp_path / "out") == {}
    assert [
        path
        for path in sorted(tmp_path.rglob("victim/**/*"))
        if path.name not in ("lock", "process")
    ] == before
    assert not (tmp_path / "gone").exists()


@pytest.mark.parametrize(
    "link", [".octobert", ".octobert/store", ".octobert/lock", ".octobert/partial-cache"]
)
def test_nothing_happens_through_a_link(link: str, recipe, tmp_path: Path) -> None:
    victim, place = tmp_path / "victim", tmp_path / "out" / link
    place.parent.mkdir(parents=True)
    files = [
        "data-0123456789abcdef/x",
        "work-data-0123456789abcdef-1/x",
        "process/x",
        "lock",
        "store/capture-0123456789abcdef/x",
    ]
    for name in files:
        (victim / name).parent.mkdir(parents=True, exist_ok=True)
        (victim / name).write_text("mine")
    place.symlink_to(victim if place.name in (".octobert", "store") else victim / "lock")
    with pytest.raises((Enough, StorageError)):
        runner.run(
            recipe.model_copy(
                update={"cache": None if place.name != "partial-cache" else recipe.cache}
            ),
            tmp_path / "out",
            executor=quick,
        )
    with suppress(StorageError):
        cleaning.clean(tmp_path / "out")
    assert sorted(
        str(path.relative_to(victim)) for path in victim.rglob("*") if path.is_file()
    ) == sorted(files)
    assert {(victim / name).read_text() for name in files} == {"mine"}


def test_where_results_are_stored_is_no_part_of_them(recipe, tmp_path: Path) -> None:
    other = recipe.model_copy(update={"cache": None, "log_level": "info"})
    assert [step.options for step in steps_of(recipe)] == [step.options for step in steps_of(other)]


def test_the_level_of_the_log_is_that_of_the_run_and_its_runtimes(recipe, tmp_path: Path) -> None:
    seen: list[object] = []

    def looked(request: Request, work: Path, *rest: object) -> Response:
        options = SessionOptions()
        seen.extend(
            (
                logs.level(),
                ort._settings(options, 1).log_severity_level,
                openvino.settings_of(options)["LOG_LEVEL"],
            )
        )
        seen.append(logging.getLogger("octobert").level)
        raise Enough

    before = logging.getLogger("octobert").level
    with pytest.raises(Enough):
        runner.run(
            recipe.model_copy(update={"log_level": "warning"}), tmp_path / "out", executor=looked
        )
    assert seen == ["warning", 2, "LOG_WARNING", logging.WARNING]
    assert (logs.level(), logging.getLogger("octobert").level) == (None, before)
    assert ort._settings(SessionOptions(), 1).log_severity_level == 3
    with pytest.raises(RecipeError, match="log_level: input should be 'debug'"):
        parse({"model": "m", "task": "mrpc", "data": "d", "log_level": "loud"})
