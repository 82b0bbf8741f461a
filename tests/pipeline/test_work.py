"""Chains of steps at the same time: what they share is made once, and an error ends one chain, Ctrl-C all of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from octobert.core.errors import KilledError, ModelError, OctobertError
from octobert.core.frozen import FrozenModel
from octobert.core.lock import locked
from octobert.core.progress import ProgressEvent
from octobert.engine import events
from octobert.engine.contract import Request, Response, Step, StepResult
from octobert.engine.executors import ConcurrentExecutor, Executor, inline, local, opened
from octobert.engine.store import Store
from octobert.engine.telling import Teller
from octobert.engine.work import Work

SECONDS = 10.0


class Inputs(FrozenModel):
    of: StepResult | None = None


class Options(FrozenModel):
    text: str


def chain_of(*texts: str) -> list[Step]:
    """Steps that depend on each other; those with the same texts before them are the same."""
    steps: list[Step] = []
    for text in texts:
        # Any stage will do: the executors of these tests run none.
        steps.append(
            Step(
                f"step/{text}",
                "package",
                Inputs(of=steps[-1].result if steps else None),
                Options(text=text),
            )
        )
    return steps


class Threads:
    """An executor for several stages; each writes its text, after whatever `during` does."""

    note = None

    def __init__(self, during: Callable[[str], object], concurrency: int = 3) -> None:
        self.during, self.concurrency = during, concurrency
        self.ran: list[str] = []
        self.stopped = threading.Event()

    def __call__(self, request: Request, work: Path, progress, launch=None) -> Response:
        text = request.options["text"]
        self.ran.append(text)
        assert work.is_dir()
        assert not list(work.iterdir())
        (request.temporary / "mine").write_text(text)
        progress(text, 0, 1)
        self.during(text)
        assert [file.read_text() for file in request.temporary.iterdir()] == [text]
        (work / "text").write_text(text)
        return Response(summary={"text": text}, seconds=0.0, peak_memory_bytes=0)

    def stop(self) -> None:
        self.stopped.set()


class Alone:
    """A callback that would notice being told two things at the same time."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []
        self._busy = threading.Lock()

    def __call__(self, event: ProgressEvent) -> None:
        assert self._busy.acquire(blocking=False)
        time.sleep(0.001)
        self.told.append((event.state, event.step))
        self._busy.release()


@contextmanager
def at_work(folder: Path, executor: Executor) -> Iterator[Work]:
    with locked(folder) as lock:
        yield Work(
            Store(folder / "store"),
            lock,
            lock,
            events.Events(folder / events.FILE),
            Teller(Alone(), folder),
            executor,
        )


def test_chains_run_at_the_same_time_and_share_what_is_the_same(tmp_path) -> None:
    together = threading.Barrier(3)
    told = ("started", "running", "finished")
    executor = Threads(
        lambda text: together.wait(SECONDS) if text != "shared" else time.sleep(0.05)
    )
    with at_work(tmp_path, executor) as work:
        made = {"step/before": work.carry_out(chain_of("shared")[0], {})}
        done = work.carry_out_chains(
            {name: chain_of("shared", f"own {name}") for name in "abc"}, made
        )
        folders = {
            name: work.results(found)[f"step/own {name}"].path("text")
            for name, found in done.items()
        }
    assert sorted(executor.ran) == ["own a", "own b", "own c", "shared"]
    assert {name: path.read_text() for name, path in folders.items()} == {
        name: f"own {name}" for name in "abc"
    }
    assert all(
        set(found) == {"step/before", "step/shared", f"step/own {name}"}
        for name, found in done.items()
    )
    assert sorted(path.name[:7] for path in (tmp_path / "store").iterdir()) == ["package"] * 4
    # Lines of several threads are whole, and no event is lost: two of each step, which is made once and told once.
    assert (
        len((tmp_path / events.FILE).read_bytes().splitlines())
        == 2 * 4
        == len(events.read(tmp_path / events.FILE))
    )
    assert sorted(work.teller._callback.told) == sorted(
        (what, f"step/{text}") for what in told for text in executor.ran
    )


def test_a_step_that_two_chains_need_at_the_same_time_is_made_once(tmp_path) -> None:
    executor = Threads(lambda text: time.sleep(0.05))
    with at_work(tmp_path, executor) as work:
        work.carry_out_chains({name: chain_of("shared", name) for name in "abcd"}, {})
    assert sorted(executor.ran) == ["a", "b", "c", "d", "shared"]


@pytest.mark.parametrize(("kills", "made"), [(1, {"step/a", "step/b"}), (2, None)])
def test_a_stage_that_was_killed_is_tried_once_more(
    kills: int, made: set[str] | None, tmp_path
) -> None:
    executor = Threads(lambda text: None, 1)

    def die(text: str) -> None:
        if executor.ran.count("b") <= kills and text == "b":
            raise KilledError("the stage was killed by signal 9", where=text)

    executor.during = die
    with at_work(tmp_path, executor) as work:
        done = work.carry_out_chains({"a": chain_of("a", "b")}, {})["a"]
    assert executor.ran == ["a", "b", "b"]
    assert (set(done) if made else type(done)) == (made or KilledError)
    failures = [
        event for event in events.read(tmp_path / events.FILE) if event["event"] == "failure"
    ]
    assert failures[0]["again"] == "step/b"
    assert len(failures) == kills


@pytest.mark.parametrize("concurrency", [1, 3])
def test_an_error_ends_its_chain_alone(concurrency, tmp_path) -> None:
    def fail(text: str) -> None:
        if text == "bad":
            raise ModelError("no model", where=text)

    with at_work(tmp_path, Threads(fail, concurrency)) as work:
        done = work.carry_out_chains(
            {"a": chain_of("a", "bad", "never"), "b": chain_of("b", "c")}, {}
        )
    assert isinstance(done["a"], ModelError)
    assert list(done["b"]) == ["step/b", "step/c"]
    (failure,) = [
        event for event in events.read(tmp_path / events.FILE) if event["event"] == "failure"
    ]
    assert failure["chain"] == "a"
    assert failure["error"]["what"] == "no model"
    assert sorted(path.name[:7] for path in (tmp_path / "store").iterdir()) == ["package"] * 3, (
        "nothing half-written"
    )


@pytest.mark.parametrize("raised", [KeyboardInterrupt, ZeroDivisionError])
def test_what_is_no_error_of_a_stage_ends_all_chains(raised, tmp_path) -> None:
    running = threading.Event()

    def during(text: str) -> None:
        if text == "interrupted":
            assert running.wait(SECONDS)
            raise raised
        running.set()
        assert executor.stopped.wait(SECONDS)
        raise KeyboardInterrupt

    executor = Threads(during, concurrency=2)
    with at_work(tmp_path, executor) as work, pytest.raises(raised):
        work.carry_out_chains(
            {name: chain_of(name) for name in ("long", "interrupted", "waiting", "also waiting")},
            {},
        )
    assert {"interrupted", "long"} <= set(executor.ran) <= {"interrupted", "long", "waiting"}
    assert list((tmp_path / "store").iterdir()) == []


def test_a_replaced_folder_ends_all_chains(tmp_path) -> None:
    folder = tmp_path / "out"

    def replace(text: str) -> None:
        folder.rename(tmp_path / "elsewhere")
        raise ModelError("no model")

    with (
        at_work(folder, Threads(replace, 1)) as work,
        pytest.raises(OctobertError, match="was removed or replaced"),
    ):
        work.carry_out_chains({"a": chain_of("a"), "b": chain_of("b")}, {})


def test_executors_by_their_names() -> None:
    with opened("local") as executor:
        assert executor is local.run
    with opened("inline") as executor:
        assert executor is inline.run
    assert not isinstance(local.run, ConcurrentExecutor)
