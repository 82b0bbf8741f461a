"""Whatever array or list a feed of a graph holds under whatever name, the answer is an answer or one sentence, in little memory."""

from __future__ import annotations

import re
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import octobert
from octobert.config.loading import parse
from octobert.core.errors import OctobertError
from octobert.data.encoded import size_of
from octobert.data.tokenization import NoTokenizer
from octobert.engine.executors import inline
from octobert.inference.predictor import Predictor
from octobert.pipeline import runner
from tests.properties.outcomes import sentence_of
from tests.support import any_graphs
from tests.support.runs import made_once
from tests.support.tasks import build

TARGETS = ("ort-cpu", "openvino-cpu")
(FEED,) = any_graphs.feeds_of("spans", 1, seed=5)
NAMES = st.sampled_from(["unique_ids", "token_type_ids", "row", *FEED]) | st.text(
    st.characters(exclude_categories=["Cs", "Cc"]), max_size=4
)
# Bytes. Answers of the tiny graph take some kilobytes, and the library's own arrays a megabyte.
MEMORY = 32 << 20
# Bytes of most types are any numbers; the others have none, or none that ONNX has.
KINDS = st.sampled_from([*map(np.dtype, "?bBhHiIlLefd"), np.dtype(">i8"), np.dtype(">f4")])
OTHERS = st.sampled_from([*map(np.dtype, "gFDGSUOMmV")])
SMALL = arrays.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)
# Elements that nothing holds, on axes that nothing should walk along.
EMPTY = st.tuples(st.just(0), st.integers(1, 2**40), st.integers(1, 3)).flatmap(st.permutations)
ARRAYS = (
    KINDS.flatmap(lambda kind: arrays.arrays(kind, SMALL))
    | st.builds(np.zeros, EMPTY, KINDS)
    | st.builds(np.zeros, SMALL, OTHERS)
)
NUMBERS = (
    st.integers(-(2**70), 2**70)
    | st.sampled_from([10**15, 2**63, 2**64 - 1, -5, 10**400])
    | st.floats()
    | st.booleans()
    | st.none()
    | st.text(max_size=2)
)
LISTS = st.recursive(NUMBERS, lambda inner: st.lists(inner, max_size=4), max_leaves=12)


def deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> Iterator[list[Predictor]]:
    def make(folder: Path) -> None:
        model = any_graphs.write("spans", folder / "model.onnx")
        (folder / "feeds").mkdir()
        for index, feed in enumerate(any_graphs.feeds_of("spans", 12)):
            np.savez(folder / f"feeds/{index:03}.npz", **feed)
        asked = {
            "model": str(model),
            "task": "graph",
            "data": {"source": str(folder / "feeds"), "calibrate": {"samples": 8}},
            "targets": list(TARGETS),
            "measure": False,
        }
        runner.run(parse(asked), folder / "out", executor=inline.run)

    root = made_once(tmp_path_factory, "any-graph-for-feeds", make)
    opened = [octobert.load(root / "out" / target) for target in TARGETS]
    for model in opened:
        model([FEED])
    yield opened
    for model in opened:
        model.close()


def check_ends_well(models: list[Predictor], changed: dict[str, Any]) -> list[str | None]:
    sentences = []
    for model in models:
        tracemalloc.start()
        try:
            sentences.append(sentence_of(OctobertError, model, [{**FEED, **changed}]))
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert "\n" not in (sentences[-1] or "")
        assert peak < MEMORY
    return sentences


@given(st.dictionaries(NAMES, ARRAYS | LISTS, min_size=1, max_size=3))
def test_any_feed_is_answered_or_refused(models: list[Predictor], changed: dict[str, Any]) -> None:
    check_ends_well(models, changed)


TOO_LARGE = "an array of the shape .* would take too much memory"
NO_NUMBERS = "the cell is not an array of numbers"
OTHER_TYPE = 'the input "{}" holds a number that its type does not have'


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("attention_mask", [[10**15] * FEED["input_ids"].size], None),
        ("attention_mask", [[-5] * FEED["input_ids"].size], None),
        ("attention_mask", [[float("nan")] * FEED["input_ids"].size], OTHER_TYPE),
        ("attention_mask", [[10**15]], None),
        ("attention_mask", np.zeros((1, 2**34, 0), np.int64), TOO_LARGE),
        ("another", np.zeros((1, 2**34, 0), np.int64), TOO_LARGE),
        ("another", np.broadcast_to(np.float32(1), (2**40,)), TOO_LARGE),
        ("input_ids", np.zeros((2**40, 0), np.int64), TOO_LARGE),
        ("input_ids", np.full_like(FEED["input_ids"], 2**64 - 1, np.uint64), OTHER_TYPE),
        ("input_ids", [[2**63]], OTHER_TYPE),
        ("input_ids", [[1.5]], OTHER_TYPE),
        ("input_ids", [[10**400]], NO_NUMBERS),
        ("input_ids", [[1.0, 10**400]], NO_NUMBERS),
        ("input_ids", np.int64(3), "cannot run the model"),
        ("span_mask", np.full_like(FEED["span_mask"], 1e300, np.float64), OTHER_TYPE),
        ("span_mask", [[1e300]], OTHER_TYPE),
        ("span_mask", np.ma.masked_array(FEED["span_mask"], FEED["span_mask"] > 0), None),
        ("span_mask", FEED["span_mask"].astype(np.longdouble), NO_NUMBERS),
        ("another", deep(500), NO_NUMBERS),
        ("another", deep(100_000), NO_NUMBERS),
    ],
)
def test_a_number_is_no_size(
    models: list[Predictor], name: str, value: Any, message: str | None
) -> None:
    for sentence in check_ends_well(models, {name: value}):
        assert message is None or re.search(message.format(name), sentence or "")


@given(st.dictionaries(NAMES, ARRAYS, min_size=1, max_size=3))
def test_the_size_of_a_feed_follows_from_shapes(changed: dict[str, np.ndarray]) -> None:
    """Other numbers of the same shapes have the same length, and it is at most the number of elements."""
    task = build("graph", {})
    made = []

    def encoded(feed: dict[str, np.ndarray]) -> None:
        made.append(task.encode(NoTokenizer(), [task.parse(feed, where="input 1")]).flat[0])

    if sentence_of(OctobertError, encoded, changed) is None:
        (row,) = made
        assert len(row) <= max((array.size for array in row.feeds.values()), default=0) or (
            len(row) == 1
        )
        other = {name: np.ones_like(array) for name, array in row.feeds.items()}
        assert size_of(other)[1] == len(row)
