"""A finished model at work: which rows run together, answers in order from any number of texts, threads and streams."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import octobert
from octobert.core import environment
from octobert.core.errors import DataError
from octobert.core.session import Feeds
from octobert.inference import batching, streaming
from octobert.inference.batching import Cost, Run, measure_cost, runs_of
from octobert.inference.predictor import Predictor
from tests.conftest import TARGETS

# The same row in another batch: float32 sums in another order, one last digit of which may move an 8-bit value by a step.
SAME_SCORE = 2e-3
GOALS = ("latency", "throughput")
TEXT = "the of and to in a is that for it was"


def texts(count: int) -> list[tuple[str, str]]:
    words = TEXT.split()
    return [(" ".join(words[: 1 + i * 7 % 11]), " ".join(words[i % 5 : 6 + i % 3])) for i in range(count)]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Figures about this machine in a folder of the test's own."""
    monkeypatch.setenv("OCTOBERT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def model(finished) -> Iterator[Predictor]:
    with octobert.load(finished[1] / "ort-cpu") as found:
        yield found


# ---- which rows run together


def total(runs: list[Run], lengths: list[int], cost: Cost, seen: set[tuple[int, int]]) -> float:
    """What runs cost, one after another."""
    assert all(run.length >= max(lengths[i] for i in run.rows) for run in runs)
    new = [0.0 if run.shape in seen else cost.new_shape_ms / (1 if run.length % 8 else 2) for run in runs]
    return sum(float(cost.of(np.array([len(run.rows)]), run.length)[0]) for run in runs) + sum(new)


@pytest.mark.parametrize("new_shape_ms", [0.0, 20.0])
@pytest.mark.parametrize("seed", range(5))
def test_rows_are_put_together_as_cheaply_as_can_be(seed: int, new_shape_ms: float) -> None:
    generator = np.random.default_rng(seed)
    lengths = [int(n) for n in generator.integers(1, 60, 9)]
    own = float(generator.integers(0, 30))
    cost = Cost(tokens=(0, 40, 400), ms=(own, 60.0, 500.0), square_ms=0.01, new_shape_ms=new_shape_ms)
    seen = {(int(n), int(length)) for n, length in generator.integers((1, 1), (5, 65), (60, 2))}
    found = runs_of(lengths, cost, longest=64, seen=seen)
    assert sorted(i for run in found for i in run.rows) == list(range(9))
    order = sorted(range(9), key=lambda i: (-lengths[i], i))
    every = []
    for cuts in itertools.product((False, True), repeat=8):
        edges = [0, *(i + 1 for i, cut in enumerate(cuts) if cut), 9]
        parts = [order[a:b] for a, b in itertools.pairwise(edges)]
        if new_shape_ms and any(len(part) in (5, 7, 9) for part in parts):
            continue
        widths = [{lengths[part[0]], -(-lengths[part[0]] // 8) * 8 if new_shape_ms else lengths[part[0]]} for part in parts]
        every += [[Run(p, w) for p, w in zip(parts, chosen, strict=True)] for chosen in itertools.product(*widths)]
    least = min(total(one, lengths, cost, seen) for one in every)
    assert total(found, lengths, cost, seen) == pytest.approx(least, rel=1e-12)


PLAIN = Cost(tokens=(0, 1024), ms=(16.0, 1040.0), square_ms=0.0)


def test_runs_stay_within_their_limits() -> None:
    lengths = [512] * 9 + [3] * 200
    found = runs_of(lengths, PLAIN, longest=512)
    assert all(len(run.rows) <= batching.ROWS_PER_BATCH for run in found)
    assert all(len(run.rows) * run.length <= batching.TOKENS for run in found)
    assert runs_of([], PLAIN, longest=512) == []
    # A row that is longer than a run may be still has one.
    assert runs_of([5000], PLAIN, longest=5000) == [Run([0], 5000)]


def test_every_stream_has_work() -> None:
    assert len(runs_of([10] * 32, PLAIN, longest=512)) == 1
    assert len(runs_of([10] * 32, PLAIN, longest=512, parts=4)) == 4


def test_shapes_are_used_again_where_they_are_dear() -> None:
    generator, seen = np.random.default_rng(0), set()
    cost = PLAIN.model_copy(update={"new_shape_ms": 100.0})
    new = []
    for _ in range(30):
        runs = runs_of([int(n) for n in generator.integers(5, 120, 200)], cost, longest=120, seen=seen)
        assert all(run.length <= 120 for run in runs)
        new.append(len({run.shape for run in runs} - seen))
        seen.update(run.shape for run in runs)
    assert sum(new[-10:]) <= 0.3 * sum(new[:10])


NEW_SHAPE_MS = 7.0


class Clockwork:
    """A session whose runs take what a formula says, on a clock of its own."""

    outputs, precision, threads, streams = ("logits",), "f32", 1, 1
    prepares_shapes = True

    def __init__(self, monkeypatch: pytest.MonkeyPatch, ms: Callable[[int, int], float]) -> None:
        self._now, self._ms, self._seen = 0.0, ms, set[tuple[int, ...]]()
        monkeypatch.setattr(batching.time, "perf_counter", lambda: self._now)

    def run(self, feeds: Feeds) -> dict[str, np.ndarray]:
        shape = feeds["input_ids"].shape
        self._now += (self._ms(*shape) + (0.0 if shape in self._seen else NEW_SHAPE_MS)) / 1e3
        self._seen.add(shape)
        return {}


@pytest.mark.parametrize("longest", [512, 128, 32, 7])
def test_what_runs_cost_is_found(monkeypatch, longest: int) -> None:
    def ms(rows: int, length: int) -> float:
        return 2.0 + 0.01 * rows * length + 5e-6 * rows * length**2

    cost = measure_cost(Clockwork(monkeypatch, ms), longest)
    assert cost.new_shape_ms == pytest.approx(NEW_SHAPE_MS)
    for rows, length in ((1, 5), (3, 64), (16, 30), (30, 64), (2, 384)):
        if length <= longest:
            assert float(cost.of(np.array([rows]), length)[0]) == pytest.approx(ms(rows, length), rel=0.03)


# ---- answers


@pytest.mark.parametrize("goal", GOALS)
@pytest.mark.parametrize("target", TARGETS)
def test_answers_come_in_order_and_are_those_of_each_text_alone(finished, target: str, goal: str) -> None:
    asked = texts(90)
    with octobert.load(finished[1] / target, goal=goal) as model:
        together, one_by_one = model(asked), [model([one])[0] for one in asked]
        assert list(model.stream(iter(asked))) == together
    assert [a["label"] for a in together] == [a["label"] for a in one_by_one]
    assert np.abs(np.subtract([a["score"] for a in together], [a["score"] for a in one_by_one])).max() <= SAME_SCORE


@pytest.mark.parametrize("streams", [1, 3])
@pytest.mark.parametrize("threads", [0, 1, 2])
@pytest.mark.parametrize("target", ["ort-cpu", "openvino-cpu"])
def test_streams_and_threads_are_what_was_asked_for(finished, target: str, threads: int, streams: int) -> None:
    with octobert.load(finished[1] / target, streams=streams, threads=threads) as model:
        assert (model._session.streams, len(model(texts(40)))) == (streams, 40)
        wanted = threads or max(1, environment.cores() // streams)
        # OpenVINO takes no more threads than there are cores.
        assert model._session.threads == wanted if target == "ort-cpu" else 1 <= model._session.threads <= wanted


def test_an_endless_source_is_read_as_far_as_needed(model) -> None:
    read = 0

    def source() -> Iterator[tuple[str, str]]:
        nonlocal read
        for one in itertools.cycle(texts(30)):
            read += 1
            yield one

    stream = model.stream(source())
    ahead = max(read - given for given, _ in enumerate(itertools.islice(stream, 5000), start=1))
    assert streaming._FIRST <= ahead <= (streaming._AHEAD + 1) * streaming._LARGEST
    stream.close()
    assert read <= 5000 + (streaming._AHEAD + 1) * streaming._LARGEST


def test_a_slow_source_is_answered_before_it_is_asked_again(model) -> None:
    behind, answered = [], 0

    def source() -> Iterator[tuple[str, str]]:
        for index, one in enumerate(texts(6)):
            behind.append(index - answered)
            time.sleep(2 * streaming._PATIENCE_S)
            yield one

    for _ in model.stream(source()):
        answered += 1
    assert behind == [0] * 6


def test_no_texts_no_answers(model) -> None:
    assert model([]) == []
    assert list(model.stream(iter([]))) == []


def test_any_number_of_threads(finished) -> None:
    asked = texts(50)
    with octobert.load(finished[1] / "openvino-cpu", streams=2) as model:
        expected = model(asked)
        barrier = threading.Barrier(6)

        def ask(_: int) -> list[dict[str, object]]:
            barrier.wait()
            return model(asked)

        with ThreadPoolExecutor(6) as pool:
            assert all(found == expected for found in pool.map(ask, range(6)))


def test_a_bad_input_is_named_after_the_answers_before_it(model) -> None:
    stream = model.stream([*texts(streaming._FIRST), *texts(5), "   ", *texts(5)])
    assert len(list(itertools.islice(stream, streaming._FIRST))) == streaming._FIRST
    with pytest.raises(DataError, match="the text is empty") as error:
        next(stream)
    assert error.value.where == f"input {streaming._FIRST + 6}"


def test_an_error_of_the_source_comes_after_the_answers_before_it(model) -> None:
    def source() -> Iterator[tuple[str, str]]:
        yield from texts(40)
        raise OSError("the connection is gone")

    given: list[dict[str, object]] = []
    with pytest.raises(OSError, match="the connection is gone"):
        given.extend(model.stream(source()))
    assert given == model(texts(40))


# ---- what is remembered of a machine


def test_costs_are_measured_once(finished, cache: Path) -> None:
    for _ in range(2):
        octobert.load(finished[1] / "ort-cpu", goal="throughput").close()
        (file,) = cache.iterdir()
        kept = file.read_text()
    assert Cost.model_validate_json(kept).tokens
    written = file.stat().st_mtime_ns
    octobert.load(finished[1] / "ort-cpu", goal="throughput").close()
    assert file.stat().st_mtime_ns == written
    file.write_text("{")
    octobert.load(finished[1] / "ort-cpu", goal="throughput").close()
    assert Cost.model_validate_json(file.read_text())


def test_a_cache_that_cannot_be_written_is_done_without(finished, tmp_path, monkeypatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("OCTOBERT_CACHE", str(tmp_path / "file" / "cache"))
    with octobert.load(finished[1] / "ort-cpu", goal="throughput") as model:
        assert len(model(texts(40))) == 40
