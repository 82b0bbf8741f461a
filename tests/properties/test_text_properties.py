"""Tokens and windows of any text: places lie in the text, no token is lost, and each is answered by one window."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octobert.data.encoded import Frame, TokenOffsets
from octobert.data.tokenization import Tokenizer
from octobert.data.windows import NOWHERE, StepOptions, step_within, stepped, windows
from octobert.tasks._squad import best_spans, whole_characters
from tests.support.checkpoints import make_byte_level_tokenizer, make_tokenizer

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=60) | st.text(
    "ab \u0301é漢\U0001f600’.,\n", max_size=60
)


@pytest.fixture(scope="module", params=["wordpiece", "byte-level"])
def tokenizer(request, tmp_path_factory) -> Tokenizer:
    folder = tmp_path_factory.mktemp(request.param)
    make_tokenizer(folder, pad_id=0) if request.param == "wordpiece" else make_byte_level_tokenizer(
        folder
    )
    return Tokenizer(folder, 500)


@given(st.lists(TEXTS, min_size=1, max_size=3))
def test_offsets_are_the_tokens_of_the_text(tokenizer: Tokenizer, texts: list[str]) -> None:
    frame = tokenizer.frame(1)
    for text, offsets, row in zip(
        texts, tokenizer.offsets(texts), tokenizer.encode([(t,) for t in texts]), strict=True
    ):
        assert offsets.spans.shape == (len(offsets.ids), 2)
        assert np.all((offsets.spans >= 0) & (offsets.spans <= len(text)))
        assert np.all(offsets.spans[:, 0] <= offsets.spans[:, 1])
        assert np.all(np.diff(offsets.spans[:, 0]) >= 0)
        assert not row.truncated
        assert row.ids.tolist() == [*frame.special[0], *offsets.ids, *frame.special[-1]]


@given(TEXTS, TEXTS)
def test_a_pair_is_its_two_texts_in_a_frame(tokenizer: Tokenizer, first: str, second: str) -> None:
    a, b = (offsets.ids for offsets in tokenizer.offsets([first, second]))
    frame = tokenizer.frame(2)
    (row,) = tokenizer.encode([(first, second)])
    assert row.ids.tolist() == [*frame.special[0], *a, *frame.special[1], *b, *frame.special[2]]


@st.composite
def cuts(draw: st.DrawFn) -> tuple[Frame, TokenOffsets, int, int, np.ndarray | None]:
    """A frame, a text, and how it is cut."""
    sizes = draw(st.tuples(*[st.integers(0, 2)] * 3))
    special = tuple(np.full(size, 100 + i) for i, size in enumerate(sizes))
    question = draw(st.none() | st.integers(0, 4).map(lambda n: np.arange(n) + 50))
    frame = Frame(
        special if question is not None else special[::2],
        tuple(np.zeros(len(s), int) for s in (special if question is not None else special[::2])),
        (0, 1),
    )
    room, count = draw(st.integers(2, 20)), draw(st.integers(0, 80))
    ids = np.arange(count) + 1000
    offsets = TokenOffsets(ids, np.stack([ids, ids + 1], axis=1))
    stated = draw(st.none() | st.integers(1, room - 1))
    step = step_within(StepOptions(**{draw(st.sampled_from(["step", "overlap"])): stated}), room)
    length = room + frame.size + (0 if question is None else len(question))
    return frame, offsets, length, step, question


@given(cuts())
def test_windows_hold_every_token_and_one_of_them_answers(cut) -> None:
    frame, offsets, length, step, question = cut
    frame = frame if question is None else frame.behind(question)
    found = windows(frame, offsets, stepped(len(offsets.ids), length - frame.size, step))
    best = np.concatenate([window.ids[window.best] for window in found])
    assert sorted(best.tolist()) == offsets.ids.tolist()
    for window in found:
        held = window.spans[:, 0] != NOWHERE
        assert len(window) <= length
        assert len(window.types) == len(window)
        np.testing.assert_array_equal(window.spans[held, 0], window.ids[held])
        assert not window.best[~held].any()


@given(TEXTS.filter(bool), st.data())
def test_spans_widen_to_whole_characters_and_lose_white_space(
    text: str, data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, len(text) - 1))
    end = data.draw(st.integers(start + 1, len(text)))
    first, last = whole_characters(text, start, end)
    assert 0 <= first <= last <= len(text)
    assert text[first:last] == text[first:last].strip()
    assert whole_characters(text, first, last) == (first, last)
    (only,) = best_spans(text, [(1.0, start, end)], 1)
    assert only.text == text[only.start : only.end]
