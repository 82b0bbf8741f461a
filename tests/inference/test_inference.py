"""Prediction with a finished package: batching, order of answers with many texts, threads and streams, the cost model."""

from __future__ import annotations

import gc
import itertools
import json
import os
import shutil
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import platformdirs
import psutil
import pytest

import octobert
from octobert import targets
from octobert.core import environment
from octobert.core.errors import DataError, ModelError, RecipeError, TargetError
from octobert.core.plain import preview
from octobert.core.session import SessionOptions
from octobert.inference import predictor, streaming
from octobert.inference.opened import open_model
from octobert.inference.package_files import files_of
from octobert.inference.predictor import Predictor
from tests.support.runs import TARGETS
from tests.support.tolerances import assert_same_rounding

# The same row in another batch: float32 sums in another order can move an 8-bit value by one scale. One of 255 steps of a range
# as wide as 2 is 8e-3 of a logit, of which a score, a sigmoid of it, has a quarter; two values may move. With AMX 2.11e-3 came.
SAME_SCORE = 4e-3
# Sums of float32 in another order, as a part of the largest output.
SAME_FLOAT = 1e-5
GOALS = ("latency", "throughput")
TEXT = "the of and to in a is that for it was"


def texts(count: int) -> list[tuple[str, str]]:
    words = TEXT.split()
    return [
        (" ".join(words[: 1 + i * 7 % 11]), " ".join(words[i % 5 : 6 + i % 3]))
        for i in range(count)
    ]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder for each test."""
    monkeypatch.setenv("OCTOBERT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def model(finished) -> Iterator[Predictor]:
    with octobert.load(finished[1] / "ort-cpu") as predictor:
        yield predictor


# ---- answers


@pytest.mark.parametrize("goal", GOALS)
@pytest.mark.parametrize("target", TARGETS)
def test_answers_are_in_order_and_equal_those_of_each_text_alone(
    finished, target: str, goal: str
) -> None:
    inputs = texts(90)
    with octobert.load(finished[1] / target, goal=goal) as model:
        together, one_by_one = model(inputs), [model([text])[0] for text in inputs]
        assert list(model.stream(iter(inputs))) == together
    assert [a["label"] for a in together] == [a["label"] for a in one_by_one]
    assert (
        np.abs(np.subtract([a["score"] for a in together], [a["score"] for a in one_by_one])).max()
        <= SAME_SCORE
    )


@pytest.mark.parametrize("streams", [1, 3])
@pytest.mark.parametrize("threads", [0, 1, 2])
@pytest.mark.parametrize("target", ["ort-cpu", "openvino-cpu"])
def test_streams_and_threads_are_as_given(
    finished, target: str, threads: int, streams: int
) -> None:
    with octobert.load(finished[1] / target, streams=streams, threads=threads) as model:
        session = model._engine.get().session
        assert (session.streams, len(model(texts(40)))) == (streams, 40)
        expected = threads or max(1, environment.cores() // streams)
        # OpenVINO uses at most as many threads as there are cores.
        assert (
            session.threads == expected if target == "ort-cpu" else 1 <= session.threads <= expected
        )


def test_an_endless_source_is_read_as_far_as_needed(model) -> None:
    read = 0

    def source() -> Iterator[tuple[str, str]]:
        nonlocal read
        for text in itertools.cycle(texts(30)):
            read += 1
            yield text

    stream = model.stream(source())
    ahead = max(
        read - answered for answered, _ in enumerate(itertools.islice(stream, 5000), start=1)
    )
    assert streaming._FIRST <= ahead <= (streaming._AHEAD + 1) * streaming._LARGEST
    stream.close()
    assert read <= 5000 + (streaming._AHEAD + 1) * streaming._LARGEST


def test_inputs_of_a_slow_source_are_answered_before_the_next_is_read(model) -> None:
    behind, answered = [], 0

    def source() -> Iterator[tuple[str, str]]:
        for index, text in enumerate(texts(6)):
            behind.append(index - answered)
            time.sleep(2 * streaming._PATIENCE_S)
            yield text

    for _ in model.stream(source()):
        answered += 1
    assert behind == [0] * 6


def test_no_texts_no_answers(model) -> None:
    assert model([]) == []
    assert list(model.stream(iter([]))) == []


def test_many_threads_ask_one_model(finished) -> None:
    inputs = texts(50)
    with octobert.load(finished[1] / "openvino-cpu", streams=2) as model:
        expected = model(inputs)
        barrier = threading.Barrier(6)

        def ask(_: int) -> list[dict[str, object]]:
            barrier.wait()
            return model(inputs)

        with ThreadPoolExecutor(6) as pool:
            assert all(answers == expected for answers in pool.map(ask, range(6)))


def test_a_bad_input_is_named_after_the_answers_before_it(model) -> None:
    stream = model.stream([*texts(streaming._FIRST), *texts(5), "\udcff", *texts(5)])
    assert len(list(itertools.islice(stream, streaming._FIRST))) == streaming._FIRST
    with pytest.raises(DataError, match="the text is not Unicode") as error:
        next(stream)
    assert error.value.where == f"input {streaming._FIRST + 6}"


def test_an_empty_text_is_an_input_of_special_tokens(model) -> None:
    """One among many ends neither a call nor a stream, and changes no other answer."""
    given = [*texts(3), ("", ""), *texts(2), ("  ", "")]
    answers = model(given)
    assert answers[:3] + answers[4:6] == model([*texts(3), *texts(2)])
    assert answers[3]["label"] == answers[6]["label"]
    assert list(model.stream(given)) == answers


def test_a_number_that_python_does_not_write_is_no_input(model) -> None:
    number = 10**5000
    for given in (number, [number], [("a", number)], [{"text": number}]):
        with pytest.raises(DataError, match=r"the input is n(ot|either) a text"):
            model(given)


@pytest.mark.parametrize("given", [None, 7, np.array(1.0), np.array("a"), object()])
def test_what_is_no_input_and_no_list_is_refused_by_calls_and_streams_alike(model, given) -> None:
    for ask in (model, model.stream):
        with pytest.raises(DataError, match="neither a text nor a list of texts"):
            list(ask(given))
    for ask in (model, model.stream):
        with pytest.raises(DataError, match="input 1"):
            list(ask([given]))


def test_a_stream_of_one_input_has_one_answer(model) -> None:
    """A text has letters, and is no list of them; a dictionary is no list of its keys."""
    for given in ("abc", {"sentence1": "a", "sentence2": "b"}):
        with pytest.raises(DataError) as error:
            model(given)
        with pytest.raises(DataError) as again:
            list(model.stream(given))
        assert str(again.value) == str(error.value)
        assert preview(given)[:5] in str(error.value)


def test_a_text_has_a_limit(golden, model) -> None:
    half = "word " * 100_001
    with golden.raises(DataError):
        model([("a", "b"), (half, half)])
    assert model([(half, "a")])[0]["truncated"]


def test_an_error_of_the_source_comes_after_the_answers_before_it(model) -> None:
    def source() -> Iterator[tuple[str, str]]:
        yield from texts(40)
        raise OSError("the connection is gone")

    answers: list[dict[str, object]] = []
    with pytest.raises(OSError, match="the connection is gone"):
        answers.extend(model.stream(source()))
    assert answers == model(texts(40))


def test_one_model_under_many_threads_that_stop_and_fail(finished) -> None:
    inputs = texts(40)
    before = threading.active_count()
    with octobert.load(finished[1] / "ort-cpu", streams=2) as model:
        expected = model(inputs)
        barrier = threading.Barrier(16)

        def broken() -> Iterator[tuple[str, str]]:
            yield from inputs
            raise OSError("the connection is gone")

        def work(kind: int) -> None:
            barrier.wait()
            for _ in range(5):
                if kind == 0:
                    assert model(inputs) == expected
                elif kind == 1:
                    assert list(model.stream(iter(inputs))) == expected
                elif kind == 2:
                    # A consumer that stops after a few answers, while windows are in work.
                    assert len(list(itertools.islice(model.stream(inputs * 4), 7))) == 7
                else:
                    with pytest.raises(OSError, match="the connection is gone"):
                        list(model.stream(broken()))

        with ThreadPoolExecutor(16) as pool:
            for done in [pool.submit(work, number % 4) for number in range(16)]:
                done.result(timeout=120)
    assert threading.active_count() == before


@pytest.mark.parametrize("target", TARGETS)
def test_models_that_were_closed_leave_no_threads_and_no_files(finished, target: str) -> None:
    process = psutil.Process()

    def opened_and_closed() -> tuple[int, int]:
        with octobert.load(finished[1] / target) as model:
            model(texts(6))
        return threading.active_count(), process.num_fds() if hasattr(process, "num_fds") else 0

    # Of other tests, garbage that would go in between.
    gc.collect()
    # The first ones import the runtime.
    before = [opened_and_closed() for _ in range(2)][-1]
    assert [opened_and_closed() for _ in range(3)] == [before] * 3


# ---- static lengths


def test_single_texts_are_answered_by_models_of_static_lengths(finished) -> None:
    model = open_model(finished[1] / "openvino-cpu")
    assert model.floating is not None
    options = SessionOptions(threads=1, streams=2, static_up_to=20)
    session, free = model.session(options), model.session(SessionOptions(threads=1))
    floats = targets.load("openvino-cpu").open_session(model.floating.path, options)
    plain = targets.load("openvino-cpu").open_session(
        model.floating.path, SessionOptions(threads=1)
    )
    assert list(session._models) == [0]
    generator = np.random.default_rng(0)
    ours, theirs, exact = [], [], []
    for rows, length in ((1, 16), (1, 32), (1, 7), (1, 30), (2, 16), (1, 16)):
        ids = generator.integers(5, 50, (rows, length))
        feeds = {
            "input_ids": ids,
            "attention_mask": np.ones_like(ids),
            "token_type_ids": np.zeros_like(ids),
        }
        own, other = floats.run(feeds)["logits"], plain.run(feeds)["logits"]
        assert np.abs(own - other).max() <= SAME_FLOAT * np.abs(other).max()
        ours.append(session.run(feeds)["logits"])
        theirs.append(free.run(feeds)["logits"])
        exact.append(other)
    assert list(session._models) == [0, 16, 32]
    assert_same_rounding(np.concatenate(ours), np.concatenate(theirs), np.concatenate(exact))


def test_a_static_length_is_made_of_the_model_that_was_opened(finished, tmp_path: Path) -> None:
    """The file may be replaced, or gone, before the first row of a length comes."""
    opened = open_model(finished[1] / "openvino-cpu")
    for file in files_of(opened.file):
        shutil.copyfile(file, tmp_path / file.name)
    session = targets.load("openvino-cpu").open_session(
        tmp_path / opened.file.name, SessionOptions(threads=1, static_up_to=16)
    )
    for file in tmp_path.iterdir():
        file.unlink()
    ids = np.arange(5, 21).reshape(1, 16)
    feeds = {
        "input_ids": ids,
        "attention_mask": np.ones_like(ids),
        "token_type_ids": np.zeros_like(ids),
    }
    assert np.isfinite(session.run(feeds)["logits"]).all()
    assert list(session._models) == [0, 16]


def shapes_run(model: Predictor, inputs: list[list[tuple[str, str]]]) -> list[int]:
    """The static lengths of which models were made for calls; 0 is the one for all shapes."""
    for each in inputs:
        model(each)
    return list(model._engine.get().session._models)


def test_single_texts_are_padded_to_static_lengths_and_lists_are_not(finished) -> None:
    with octobert.load(finished[1] / "openvino-cpu") as model:
        # The times by length are those of the model for all shapes.
        assert list(model._engine.get().session._models) == [0]
        scheduler = model._engine.get().scheduler
        assert [scheduler.padded(n) for n in (2, 16, 17, 33, 64)] == [16, 16, 32, 48, 64]
        assert shapes_run(model, [texts(1) * 3]) == [0]
        assert shapes_run(model, [texts(1)]) == [0, 16]


@pytest.mark.parametrize(
    ("options", "bound"),
    [
        ({"goal": "throughput"}, None),
        ({"measure": False}, None),
        ({"device": "CPU"}, None),
        ({"static_up_to": 0}, None),
        ({}, 1000),
    ],
)
def test_models_of_static_lengths_are_not_made_where_they_do_not_pay(
    finished, monkeypatch, options: dict[str, Any], bound: int | None
) -> None:
    if bound is not None:
        # A large model: its copies take much memory, and preparing a shape is a small part of its time.
        monkeypatch.setattr(predictor, "_STATIC_BYTES", bound)
    with octobert.load(finished[1] / "openvino-cpu", **options) as model:
        assert shapes_run(model, [texts(1)]) == [0]


def test_a_model_with_static_lengths_answers_alike_from_several_threads(finished) -> None:
    inputs = texts(24)
    with octobert.load(finished[1] / "openvino-cpu", measure=False) as model:
        expected = [answer["label"] for answer in model(inputs)]
    with (
        octobert.load(finished[1] / "openvino-cpu", static_up_to=32, streams=2) as model,
        ThreadPoolExecutor(4) as pool,
    ):
        assert [
            answers[0]["label"] for answers in pool.map(lambda text: model([text]), inputs * 4)
        ] == expected * 4
        assert set(model._engine.get().session._models) == {0, 16, 32}
        assert [answer["label"] for answer in model(inputs)] == expected


@pytest.mark.parametrize(
    ("target", "up_to"), [("ort-cpu", 64), ("openvino-cpu", 65), ("openvino-cpu", -1)]
)
def test_static_lengths_that_cannot_be(golden, finished, target: str, up_to: int) -> None:
    with golden.raises(RecipeError):
        octobert.load(finished[1] / target, static_up_to=up_to)


def test_nothing_is_measured_where_that_is_not_wanted(finished, cache: Path) -> None:
    for goal in GOALS:
        octobert.load(finished[1] / "ort-cpu", goal=goal, measure=False).close()
    assert not cache.exists() or not any(cache.iterdir())


# ---- processes

FORKED = """
import faulthandler, os, signal, sys
import octobert

models = [octobert.load(folder, streams=2) for folder in {folders!r}]
texts = {texts!r}
expected = [model(texts) for model in models]
# Threads take turns as often as they can, so that the fork finds them anywhere.
sys.setswitchinterval(1e-6)
begun = models[0].stream(texts * 9)
next(begun)
if os.fork() == 0:
    faulthandler.dump_traceback_later(58)
    signal.alarm(60)
    for model, answers in zip(models, expected):
        if model.target == "openvino-cpu":
            try:
                model(texts)
            except octobert.TargetError as error:
                print(error)
            continue
        assert [a["label"] for a in model(texts[:2])] == [a["label"] for a in answers[:2]]
        assert [a["label"] for a in model(texts)] == [a["label"] for a in answers]
    try:
        list(begun)
    except octobert.core.errors.ModelError as error:
        print(error)
    for model in models:
        model.close()
    sys.exit(0)
sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_process_answers_with_the_models_of_its_parent_and_ends(finished) -> None:
    code = FORKED.format(folders=[str(finished[1] / target) for target in TARGETS], texts=texts(40))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "the stream began before this process was forked" in done.stdout
    assert (
        "OpenVINO does not work in a process that was forked after a model was opened; load"
        in done.stdout
    )


FORKED_INSIDE = """
import os, signal, threading
from octobert.data.tokenization import EncodedTexts

inside = threading.Event()

class Rows(list):
    def __iter__(self):
        inside.set()
        threading.Event().wait()

threading.Thread(target=lambda: EncodedTexts([], Rows()).flat, daemon=True).start()
inside.wait()
if os.fork() == 0:
    signal.alarm(20)
    os._exit(len(EncodedTexts([], []).flat))
os._exit(os.waitstatus_to_exitcode(os.wait()[1]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_process_does_not_await_what_a_thread_of_its_parent_computes() -> None:
    assert subprocess.run([sys.executable, "-c", FORKED_INSIDE], timeout=60).returncode == 0


FORKED_TOKENIZING = """
import os, signal, sys
from pathlib import Path
from octobert.data.tokenization import Tokenizer

def work():
    tokenizer = Tokenizer(Path(sys.argv[1]))
    rows = tokenizer.encode([("the",), ("of", "a pair"), ("the", "of")])
    offsets = tokenizer.offsets(["the of", "of"])
    return [(r.ids.tolist(), r.types.tolist()) for r in rows], [(o.ids.tolist(), o.spans.tolist()) for o in offsets]

expected = work()
if os.fork() == 0:
    signal.alarm(20)
    os._exit(0 if work() == expected else 1)
os._exit(os.waitstatus_to_exitcode(os.wait()[1]))
"""


@pytest.mark.parametrize("setting", ["true", "false", None])
@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_process_does_not_await_the_threads_of_its_parents_tokenizer(
    setting: str | None, finished, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TOKENIZERS_PARALLELISM", raising=False)
    if setting is not None:
        monkeypatch.setenv("TOKENIZERS_PARALLELISM", setting)
    done = subprocess.run(
        [sys.executable, "-c", FORKED_TOKENIZING, str(finished[1] / "ort-cpu")], timeout=60
    )
    assert done.returncode == 0


@pytest.mark.parametrize("count", [1, 40])
def test_a_closed_model_says_so(finished, count: int) -> None:
    model = octobert.load(finished[1] / "ort-cpu")
    begun = model.stream(texts(3000))
    next(begun)
    model.close()
    model.close()
    for use in (
        lambda: model(texts(count)),
        lambda: list(model.stream(texts(count))),
        lambda: list(begun),
    ):
        with pytest.raises(ModelError, match="the model is closed; load it again"):
            use()


def test_a_model_is_freed_when_nobody_uses_it(finished) -> None:
    model = octobert.load(finished[1] / "ort-cpu")
    model(texts(40))
    engine = weakref.ref(model._engine.get())
    gc.disable()
    try:
        del model
        assert engine() is None
    finally:
        gc.enable()


def test_prediction_works_without_a_writable_cache(finished, tmp_path, monkeypatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("OCTOBERT_CACHE", str(tmp_path / "file" / "cache"))
    with octobert.load(finished[1] / "ort-cpu", goal="throughput") as model:
        assert len(model(texts(40))) == 40


def test_the_cache_folder_is_the_users(monkeypatch) -> None:
    monkeypatch.delenv("OCTOBERT_CACHE")
    assert environment.cache_folder() == platformdirs.user_cache_path("octobert", appauthor=False)


# ---- opening a package


def test_an_unknown_goal_is_refused(golden, finished) -> None:
    with golden.raises(RecipeError):
        octobert.load(finished[1] / "ort-cpu", goal="fast")


# Absent on Windows, or in an installation that only predicts.
ABSENT = ("fcntl", "resource", "torch", "transformers", "datasets")
PREDICT_WITHOUT = """
import importlib.abc, json, sys
# On Linux, psutil imports `resource` for itself.
import psutil

class Absent(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {absent!r}:
            raise ImportError(f"{{name}} is absent")

for name in {absent!r}:
    sys.modules.pop(name, None)
sys.meta_path.insert(0, Absent())
import octobert
print(json.dumps(octobert.load({folder!r}, goal={goal!r})({inputs!r})))
"""


@pytest.mark.parametrize("goal", GOALS)
def test_prediction_needs_neither_unix_modules_nor_torch(finished, goal: str) -> None:
    folder, inputs = finished[1] / "ort-cpu", texts(6)
    code = PREDICT_WITHOUT.format(absent=ABSENT, folder=str(folder), goal=goal, inputs=inputs)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout)
    assert [answer["label"] for answer in answers] == [
        answer["label"] for answer in octobert.load(folder)(inputs)
    ]


def test_a_process_that_may_start_no_thread_is_told_so(golden, finished, monkeypatch) -> None:
    def start(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with octobert.load(finished[1] / "ort-cpu") as model:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", start)
            with golden.raises(TargetError):
                model(texts(40))
        assert len(model(texts(40))) == 40
