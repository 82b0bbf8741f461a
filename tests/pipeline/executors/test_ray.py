"""A Ray cluster of several nodes on this machine: the same results as with `local`, also when a node is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from octobert.config.loading import parse
from octobert.config.recipe import Recipe
from octobert.core.errors import OctobertError
from octobert.core.progress import ProgressEvent
from octobert.engine import events
from octobert.engine.contract import Step, stage_named
from octobert.engine.executors import ConcurrentExecutor, local, opened
from octobert.engine.store import MANIFEST
from octobert.engine.work import at_work
from octobert.pipeline import runner
from octobert.pipeline.planner import steps_of
from tests.support.hostile import hostile_folder, imported_from
from tests.support.runs import write_pairs
from tests.support.stages import request_of, step_of, stored

pytest.importorskip("ray", reason="the extra octobert[ray] is not installed")
from ray.cluster_utils import Cluster

pytestmark = [pytest.mark.needs_cluster, pytest.mark.filterwarnings("ignore")]
# Until a node starts or a process has ended, on a busy machine.
SECONDS = 60.0


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """A head without CPUs and one node with one CPU."""
    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False}
    )
    monkeypatch.setenv("RAY_ADDRESS", cluster.address)
    cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()
    yield cluster
    cluster.shutdown()


@pytest.fixture
def recipe(checkpoint, tmp_path: Path) -> Recipe:
    return parse(
        {
            "model": str(checkpoint("bert")),
            "task": "text-classification",
            "data": {
                "source": str(write_pairs(tmp_path / "data")),
                "calibrate": {"from": "train", "samples": 8},
            },
            "targets": ["ort-cpu", "openvino-cpu"],
            "measure": False,
        }
    )


def results_in(out: Path) -> dict[str, dict[str, Any]]:
    """Name in the store → key and digests of the files. Reports have times, and packages depend on them."""
    manifests = [
        json.loads(path.read_bytes())
        for path in (out / ".octobert" / "store").glob(f"*/{MANIFEST}")
    ]
    parts = ("stage", "files", "summary")
    return {
        each["key"]: {part: each[part] for part in parts}
        for each in manifests
        if each["stage"] not in ("report", "package")
    }


def needed_by(name: str, steps: list[Step], without: list[Step]) -> list[Step]:
    """A step and all that it reads, in order. The second target's quantize reads the first one's."""
    needed = {name}
    for step in reversed(steps):
        if step.name in needed:
            needed.update(step.needs.values())
    return [step for step in steps if step.name in needed and step not in without]


def left_in(out: Path) -> list[str]:
    return sorted(
        path.name
        for path in (out / ".octobert" / "store").iterdir()
        if path.name.startswith(("work", "scratch"))
    )


def waited(found: Callable[[], Any]) -> Any:
    """What is found in the end."""
    last = time.monotonic() + SECONDS
    while not (it := found()):
        assert time.monotonic() < last
        time.sleep(0.05)
    return it


def running_in(out: Path) -> list[psutil.Process]:
    """Processes that run stages in the store of an output directory."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        line = process.info["cmdline"] or []
        if any("octobert.engine.executors.child" in word for word in line) and any(
            str(out) in word for word in line
        ):
            found.append(process)
    return found


def attempts_in(out: Path) -> list[Path]:
    return [
        path.parents[1]
        for path in (out / ".octobert" / "store").glob("work-remote-*/*/files/request.json")
    ]


@pytest.fixture
def expected(recipe: Recipe, tmp_path: Path) -> dict[str, dict[str, Any]]:
    """Results of the recipe with `local`."""
    runner.run(recipe, tmp_path / "local", executor=local.run)
    return results_in(tmp_path / "local")


def test_the_results_are_those_of_local(cluster, recipe, expected, tmp_path) -> None:
    """Chains at the same time, on two nodes; every stage that may runs there."""
    cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()
    out, seen = tmp_path / "ray", set()

    def told(event: ProgressEvent) -> None:
        if event.state == "running":
            seen.add(event.step.partition("/")[0])

    def watch() -> None:
        while not done.wait(0.05):
            stages.update(
                json.loads((path / "files" / "request.json").read_text())["stage"]
                for path in attempts_in(out)
            )

    stages: set[str] = set()
    done = threading.Event()
    watching = threading.Thread(target=watch)
    watching.start()
    steps = steps_of(recipe)
    try:
        with opened("ray") as executor, at_work(recipe, out, told, executor) as (work, _):
            assert isinstance(executor, ConcurrentExecutor)
            assert (executor.concurrency, executor.note) == (2, None)
            both = [step for step in steps if "/" not in step.name and step.stage != "report"]
            chains = {
                target: needed_by(f"export/{target}", steps, without=both)
                for target in recipe.targets
            }
            made = {}
            for step in both:
                made[step.name] = work.carry_out(step, made)
            found = work.carry_out_chains(chains, made)
    finally:
        done.set()
        watching.join()
    assert all(f"export/{target}" in found[target] for target in recipe.targets)
    results = results_in(out)
    assert results == expected
    run = {"data", "capture", "transform", "observe", "calibrate", "quantize", "export"}
    assert {each["stage"] for each in results.values()} == run
    assert left_in(out) == []
    assert all(stage_named(name).anywhere for name in stages)
    assert {"capture", "observe"} <= stages
    assert "capture" in seen


def test_a_stage_whose_node_is_killed_is_made_again_on_another_one(
    cluster, recipe, expected, tmp_path, capfd
) -> None:
    capfd.readouterr()
    cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()
    out = tmp_path / "ray"
    attempts: list[Path] = []

    def kill() -> None:
        attempts.extend(waited(lambda: running_in(out) and attempts_in(out)))
        above = {process.pid for process in running_in(out)[0].parents()}
        nodes = {node.all_processes["raylet"][0].process.pid: node for node in cluster.worker_nodes}
        (raylet,) = above & set(nodes)
        cluster.remove_node(nodes[raylet], allow_graceful=False)
        attempts.extend(waited(lambda: set(attempts_in(out)) - set(attempts)))

    killing = threading.Thread(target=kill)
    killing.start()
    with opened("ray") as executor:
        runner.run(recipe, out, executor=executor)
    killing.join()
    assert len(cluster.worker_nodes) == 1
    first, second = attempts
    assert first.parent == second.parent, "two attempts of one call"
    assert capfd.readouterr().out == "", "Ray says nothing on stdout, where JSON may be"
    assert results_in(out) == expected
    assert left_in(out) == []
    assert not running_in(out)


def test_an_error_of_a_stage_is_that_of_local(cluster, finished, tmp_path) -> None:
    """It is not repeated."""
    recipe, out, _ = finished
    step = step_of(recipe, "calibrate")
    made = {name: stored(out, name) for name in step.needs.values()}
    made["observe"] = tmp_path / "nothing"
    raised = []
    with opened("ray") as executor:
        for name, run in (("local", local.run), ("ray", executor)):
            work = tmp_path / name / "work"
            work.mkdir(parents=True)
            with pytest.raises(OctobertError) as error:
                run(request_of(step, work.parent / "scratch", made), work, lambda *_: None)
            raised.append(error.value)
            assert [path.name for path in work.parent.iterdir()] == ["work"]
    assert raised[0].to_json() == raised[1].to_json()
    assert "nothing" in str(raised[0])
    last = [error.traceback.strip().splitlines()[-1] for error in raised]
    assert last[0] == last[1] != ""


DRIVER = """
import sys
from pathlib import Path
from octobert.config.loading import load
from octobert.pipeline import runner
from octobert.engine.executors import opened
from octobert.engine.work import at_work
from octobert.pipeline.planner import steps_of
from octobert.core.progress import ignore
with opened("ray") as executor:
    recipe, out = load(Path(sys.argv[1])), Path(sys.argv[2])
    with at_work(recipe, out, ignore, executor) as (work, notes):
        made = {}
        for step in steps_of(recipe)[:2]:
            done = work.carry_out_chains({"a": [step], "b": [step]}, made)
            for error in done.values():
                if isinstance(error, Exception):
                    raise error
            made |= done["a"]
    print(executor.note or "connected", executor.concurrency)
"""


def started(recipe: Recipe, out: Path, folder: Path) -> subprocess.Popen[str]:
    """A program that makes the first results of a recipe; its working directory is hostile."""
    from octobert.config.loading import as_yaml

    (folder / "recipe.yaml").write_text(as_yaml(recipe))
    command = [
        sys.executable,
        "-c",
        f"import sys; sys.path.remove('')\n{DRIVER}",
        str(folder / "recipe.yaml"),
        str(out),
    ]
    hostile = hostile_folder(folder / "hostile")
    return subprocess.Popen(
        command, cwd=hostile, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def test_ray_prints_nothing_and_imports_nothing_from_the_working_directory(
    cluster, recipe, tmp_path
) -> None:
    driver = started(recipe, tmp_path / "out", tmp_path)
    printed, errors = driver.communicate()
    assert driver.returncode == 0, errors
    assert (printed, errors) == ("connected 1\n", "")
    assert imported_from(tmp_path / "hostile") == ""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_nothing_runs_after_the_driver_has_ended(number, cluster, recipe, tmp_path) -> None:
    cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()
    out = tmp_path / "out"
    driver = started(recipe, out, tmp_path)
    waited(lambda: attempts_in(out) and running_in(out))
    driver.send_signal(number)
    assert driver.wait(SECONDS) != 0
    started_waiting = time.monotonic()
    waited(lambda: not running_in(out))
    assert time.monotonic() - started_waiting < 15
    driver.communicate()
    if number == signal.SIGINT:
        assert left_in(out) == []
    assert not [
        event for event in events.read(out / ".octobert" / events.FILE) if event["event"] == "done"
    ]


def test_without_a_cluster_ray_runs_here_until_it_is_done(recipe, tmp_path, monkeypatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    driver = started(recipe, tmp_path / "out", tmp_path)
    raylets = waited(
        lambda: (
            driver.poll() is not None
            or [each for each in psutil.process_iter(["name"]) if each.info["name"] == "raylet"]
        )
    )
    assert raylets is not True, driver.communicate()
    printed, errors = driver.communicate()
    assert (driver.returncode, errors) == (0, "")
    assert printed.startswith("RAY_ADDRESS is not set: Ray was started on this machine alone")
    assert not any(each.is_running() and each.status() != psutil.STATUS_ZOMBIE for each in raylets)
    assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"
