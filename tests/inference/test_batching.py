"""Which rows run together, and to which length they are padded."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octobert import targets
from octobert.core.session import MAX_RUN_TOKENS, Feeds, SessionOptions
from octobert.inference import batching
from octobert.inference.batching import Batch, make_batches, shared_length
from octobert.inference.opened import FinishedModel, open_model

LONGEST = 512
LENGTHS = st.lists(st.integers(0, LONGEST), max_size=300)


@given(LENGTHS, st.booleans(), st.integers(1, 4), st.integers(1, 4096))
def test_batches_stay_within_their_limits(
    lengths: list[int], shared: bool, streams: int, tokens: int
) -> None:
    batches = make_batches(
        lengths, max_length=LONGEST, shared=shared, streams=streams, tokens=tokens
    )
    assert sorted(i for batch in batches for i in batch.rows) == list(range(len(lengths)))
    ends = [batch.length for batch in batches]
    assert ends == sorted(ends, reverse=True)
    for batch in batches:
        own = [max(lengths[i], 1) for i in batch.rows]
        rounded = [min(shared_length(n), LONGEST) if shared else n for n in own]
        assert batch.length == max(rounded)
        assert len(batch.rows) == 1 or len(batch.rows) * batch.length <= tokens
        assert len(batch.rows) <= batching.MAX_ROWS
        # Padding takes no longer than another inference would.
        most = batching._MOST_PADDING_SHARED if shared else batching._MOST_PADDING
        assert sum(batch.length - n for n in rounded) <= most


def test_rows_of_one_length_fill_their_batches() -> None:
    batches = make_batches([LONGEST] * 9 + [3] * 200, max_length=LONGEST)
    assert [len(batch.rows) for batch in batches] == [4, 4, 1, 64, 64, 64, 8]
    assert MAX_RUN_TOKENS == 4 * LONGEST
    assert make_batches([], max_length=LONGEST) == []
    # A row with more tokens than a batch may have forms a batch of its own.
    assert make_batches([5000], max_length=5000) == [Batch([0], 5000)]


def test_every_stream_gets_a_batch() -> None:
    assert len(make_batches([10] * 32, max_length=LONGEST)) == 1
    assert len(make_batches([10] * 32, max_length=LONGEST, streams=4)) == 4


def test_shapes_are_few_where_new_ones_are_slow() -> None:
    """However many texts come: lengths are shared, and rows are powers of two."""
    generator, shapes = np.random.default_rng(0), set[tuple[int, int]]()
    for _ in range(200):
        lengths = [int(n) for n in generator.integers(1, 129, int(generator.integers(1, 300)))]
        batches = make_batches(lengths, max_length=128, shared=True)
        shapes |= {(len(batch.rows), batch.length) for batch in batches}
    assert {rows for rows, _ in shapes} <= {1, 2, 4, 8, 16, 32, 64}
    assert {length for _, length in shapes} <= {shared_length(n) for n in range(1, 129)}


@pytest.mark.parametrize("longest", [60, 100])
def test_no_text_is_padded_beyond_the_models_limit(longest: int) -> None:
    for n in range(1, longest + 1):
        (batch,) = make_batches([n], max_length=longest, shared=True)
        assert batch.length == min(shared_length(n), longest)


# ---- answers do not depend on padding


# Sums of a softmax over more columns, of which the last are zero, may be taken in another order.
PADDED_FLOAT = 1e-5


@pytest.mark.parametrize("target", ["ort-cpu", "openvino-cpu"])
def test_padding_changes_no_answer(finished, target: str) -> None:
    model = open_model(finished[1] / target)
    assert model.ignores_padding
    assert model.floating is not None
    session = model.session(SessionOptions(threads=1, streams=1))
    floating = targets.load(target).open_session(
        model.floating.path, SessionOptions(threads=1, streams=1)
    )
    generator = np.random.default_rng(0)
    for length in (1, 5, 13, 16, 17, 30):
        ids = generator.integers(5, 50, (1, length))
        for padded in (length + 1, 32, 48):
            more = ((0, 0), (0, padded - length))
            short: Feeds = {
                "input_ids": ids,
                "attention_mask": np.ones_like(ids),
                "token_type_ids": np.zeros_like(ids),
            }
            long = {name: np.pad(array, more) for name, array in short.items()}
            (own,), (other,) = session.run(short).values(), session.run(long).values()
            assert np.array_equal(own, other), (length, padded)
            (own,), (other,) = floating.run(short).values(), floating.run(long).values()
            assert np.abs(own - other).max() <= PADDED_FLOAT * max(1.0, float(np.abs(own).max()))


def test_dynamic_ranges_and_files_of_other_tools_are_not_padded(finished) -> None:
    model = open_model(finished[1] / "ort-cpu")
    assert model.manifest is not None
    decisions = model.manifest.plan.decisions
    dynamic = tuple(
        d.model_copy(update={"quantizer": d.quantizer.model_copy(update={"dynamic": True})})
        if d.quantizer
        else d
        for d in decisions
    )
    plan = model.manifest.plan.model_copy(update={"decisions": dynamic})
    changed = FinishedModel(
        **{**vars(model), "manifest": model.manifest.model_copy(update={"plan": plan})}
    )
    assert not changed.ignores_padding
    assert not FinishedModel(**{**vars(model), "manifest": None}).ignores_padding
