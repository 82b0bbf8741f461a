"""What runs on a machine of a cluster, without a cluster: the machine and its files have to be those of the run."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import sys
from pathlib import Path

import pytest

import octobert
from octobert.core import environment
from octobert.core.errors import OctobertError, RecipeError, StorageError, TargetError
from octobert.core.files import digests_of
from octobert.engine.contract import stage_named
from octobert.engine.executors import _remote, ray
from octobert.engine.store import MANIFEST, Artifact
from octobert.pipeline import stages
from tests.support.closure import closure
from tests.support.stages import request_of, step_of, stored

STAGES = Path(stages.__file__).parent


def test_every_stage_that_times_stays_on_this_machine() -> None:
    """Nothing that the stages for a cluster import measures time, describes the machine or resumes from what it kept."""
    names = [path.stem for path in STAGES.glob("[!_]*.py")]
    spread = [name for name in names if stage_named(name).anywhere]
    assert len(spread) == 10
    for name in spread:
        measuring = {
            f"octobert.evaluation.{module}"
            for module in ("latency", "tuning", "benchmarking", "worker")
        }
        assert not measuring & set(closure(f"octobert.pipeline.stages.{name}")), name
        source = (STAGES / f"{name}.py").read_text()
        assert not re.search(r"\btime\.\w|perf_counter|\.scratch\b|environment\.current", source), (
            name
        )


@pytest.fixture(autouse=True)
def variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Variables that an attempt sets in its process, which is that of the tests here."""
    for name in (*ray._VARIABLES, environment.CORES):
        monkeypatch.setenv(name, os.environ.get(name, ""))
    monkeypatch.delenv(environment.CORES)


@pytest.fixture(scope="module")
def order(finished, tmp_path_factory: pytest.TempPathFactory) -> _remote.Order:
    """The stage that takes the least time."""
    recipe, out, _ = finished
    step = step_of(recipe, "calibrate")
    folder = tmp_path_factory.mktemp("store")
    (folder / "place").mkdir()
    made = {name: stored(out, name) for name in step.needs.values()}
    return ray._order(request_of(step, folder / "scratch", made), folder / "place", cpus=2)


def test_an_attempt_has_a_folder_of_its_own(order: _remote.Order, finished, tmp_path) -> None:
    """An attempt on a machine that the others no longer see goes on writing; only one attempt becomes the result."""
    (order.place / "lost" / "files").mkdir(parents=True)
    (order.place / "lost" / "files" / "half.bin").write_text("of a stage that nobody waits for")
    answer, work = _remote.attempt(order), tmp_path / "work"
    assert {path.name for path in order.place.iterdir()} - {"progress.json"} == {
        "token",
        "lost",
        answer["attempt"],
    }
    work.mkdir()
    ray._move(order.place / answer["attempt"] / "files", work, answer["sizes"])
    artifact = Artifact.model_validate_json(
        (stored(finished[1], "calibrate") / MANIFEST).read_bytes()
    )
    assert digests_of(work) == artifact.files
    assert answer["response"]["summary"] == artifact.summary


def refused(order: _remote.Order) -> OctobertError:
    return OctobertError.from_json(_remote.attempt(order)["error"])


def test_a_machine_with_another_octobert_is_refused(order: _remote.Order) -> None:
    for part in ("octobert", "octobert's code", "numpy", "instructions of the CPU"):
        assert part in order.kind
        error = refused(dataclasses.replace(order, kind=order.kind | {part: "other"}))
        assert isinstance(error, TargetError)
        assert (
            error.what
            == f"{part} is not what it is on the machine of the run, so results would differ"
        )
        assert error.expected == "other"
    error = refused(
        dataclasses.replace(
            order, kind={name: value for name, value in order.kind.items() if name != "numpy"}
        )
    )
    assert (error.what.split()[0], error.expected) == ("numpy", "none")


def test_a_machine_that_does_not_see_the_folder_is_refused(
    order: _remote.Order, tmp_path, monkeypatch
) -> None:
    monkeypatch.setattr(_remote, "_SETTLING", 0.0)
    (tmp_path / "token").write_text("of another folder under the same path")
    for place in (tmp_path, tmp_path / "missing"):
        error = refused(dataclasses.replace(order, place=place))
        assert isinstance(error, StorageError)
        assert error.what == "the folder of the run is not there"
        assert error.got == str(place.parent)
        assert (
            error.fix
            == "put --out (and --cache) into a folder that all machines share under the same path"
        )


def test_files_of_the_user_have_to_be_the_same(finished, tmp_path) -> None:
    recipe, _, _ = finished
    step = step_of(recipe, "capture")
    moved = json.dumps(recipe.model)
    (tmp_path / "place").mkdir()
    order = ray._order(request_of(step, tmp_path / "scratch", {}), tmp_path / "place", cpus=1)
    missing = dataclasses.replace(
        order, request=order.request.replace(moved, json.dumps(str(tmp_path / "nowhere")))
    )
    assert refused(missing).what == "a file of the run is not there"
    shutil.copytree(json.loads(moved), tmp_path / "copy")
    (tmp_path / "copy" / "config.json").write_text("{}")
    other = dataclasses.replace(
        order, request=order.request.replace(moved, json.dumps(str(tmp_path / "copy")))
    )
    assert refused(other).what == "a file of the run is not the same there"


@pytest.mark.parametrize("address", ["ray://127.0.0.1:10001", "a cluster", "127.0.0.1:9"])
def test_addresses_without_a_cluster(golden, address) -> None:
    with golden.raises(RecipeError):
        ray._check_address(address)


def test_without_the_package(golden, monkeypatch, finished, tmp_path) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with golden.raises(TargetError):
        octobert.run(finished[0].model_copy(update={"executor": "ray"}), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_stage_uses_no_more_cores_than_it_is_told(monkeypatch) -> None:
    before = environment.cores()
    for told, expected in (("1", 1), ("0", 1), ("1000", before), ("", before), ("many", before)):
        monkeypatch.setenv(environment.CORES, told)
        assert environment.cores() == expected, told
