"""Windows over long texts: the tokenizer's own rows where all fits, nothing lost, and BERT's maximum-context rule."""

from __future__ import annotations

import numpy as np
import pytest
from pydantic import ValidationError

from octobert.config.loading import parse
from octobert.core.errors import DataError, RecipeError
from octobert.data.tokenization import Tokenizer
from octobert.data.windows import NOWHERE, StepOptions, Window, step_within, stepped, windows
from octobert.tasks import Result
from tests.support.checkpoints import make_byte_level_tokenizer, make_tokenizer
from tests.support.tasks import build

QUESTION = "who is 42, and from the one they had?"
CONTEXT = (
    "The one, 42 of them; was it at Xyzzy? " * 3
    + "Naïve “quotes” — and\u00a0more 漢字 \U0001f600 end."
)


@pytest.fixture(scope="module")
def tokenizer(tokenizer_folder) -> Tokenizer:
    return Tokenizer(tokenizer_folder, 512)


def cut(
    tokenizer: Tokenizer,
    length: int,
    stride: int,
    context: str = CONTEXT,
    question: str | None = QUESTION,
) -> list[Window]:
    ids = None if question is None else tokenizer.offsets([question])[0].ids
    frame = tokenizer.frame(1 if question is None else 2)
    frame = frame if ids is None else frame.behind(ids)
    offsets = tokenizer.offsets([context])[0]
    return windows(frame, offsets, stepped(len(offsets.ids), length - frame.size, stride))


def task(**options: object):
    return build("question-answering", options)


def test_the_special_tokens_are_read_off_the_tokenizer(tokenizer_folder, tokenizer) -> None:
    assert (tokenizer.frame(1).size, tokenizer.frame(2).size) == (
        (2, 4) if "byte-level" in tokenizer_folder.name else (2, 3)
    )


@pytest.mark.parametrize("question", [QUESTION, None])
def test_one_window_is_the_tokenizers_own_row_where_all_fits(
    tokenizer, question: str | None
) -> None:
    (window,) = cut(tokenizer, 512, 128, question=question)
    (row,) = tokenizer.encode([(CONTEXT,) if question is None else (question, CONTEXT)])
    np.testing.assert_array_equal(window.ids, row.ids)
    np.testing.assert_array_equal(window.types, row.types)
    assert not window.truncated
    # No token of the context is given away to a window that is not there.
    np.testing.assert_array_equal(window.best, window.spans[:, 0] != NOWHERE)


@pytest.mark.parametrize("question", [QUESTION, None])
@pytest.mark.parametrize(("more", "stride"), [(2, 1), (5, 1), (5, 4), (20, 7), (20, 19), (40, 20)])
def test_every_token_is_in_some_window_and_answered_by_one(
    tokenizer, question: str | None, more: int, stride: int
) -> None:
    offsets = tokenizer.offsets([CONTEXT])[0]
    frame = tokenizer.frame(1 if question is None else 2)
    encoded = 0 if question is None else len(tokenizer.offsets([question])[0].ids)
    found = cut(tokenizer, frame.size + encoded + more, stride, question=question)
    owners = np.zeros(len(offsets.ids), dtype=int)
    for number, window in enumerate(found):
        held = np.flatnonzero(window.spans[:, 0] != NOWHERE)
        assert len(window) == frame.size + encoded + len(held)
        assert len(held) == more or (number == len(found) - 1 and 1 <= len(held) <= more)
        places = np.arange(number * stride, number * stride + len(held))
        np.testing.assert_array_equal(window.ids[held], offsets.ids[places])
        np.testing.assert_array_equal(window.spans[held], offsets.spans[places])
        owners[places[window.best[held]]] += 1
        assert not window.best[window.spans[:, 0] == NOWHERE].any()
    np.testing.assert_array_equal(owners, 1)


def original_rule(parts: list[tuple[int, int]], index: int, position: int) -> bool:
    """`_check_is_max_context` of Google's run_squad.py, with spans of (start, length)."""
    best_score, best_span = None, None
    for number, (start, length) in enumerate(parts):
        end = start + length - 1
        if position < start or position > end:
            continue
        score = min(position - start, end - position) + 0.01 * length
        if best_score is None or score > best_score:
            best_score, best_span = score, number
    return best_span == index


@pytest.mark.parametrize(("more", "stride"), [(2, 1), (9, 4), (9, 8), (24, 8), (30, 11), (60, 20)])
def test_the_maximum_context_rule_is_that_of_the_original_code(
    tokenizer, more: int, stride: int
) -> None:
    found = cut(tokenizer, tokenizer.frame(1).size + more, stride, CONTEXT * 2, question=None)
    held = [np.flatnonzero(window.spans[:, 0] != NOWHERE) for window in found]
    parts = [(stride * number, len(own)) for number, own in enumerate(held)]
    assert len(parts) > 1
    for index, (window, own) in enumerate(zip(found, held, strict=True)):
        expected = [
            original_rule(parts, index, parts[index][0] + offset) for offset in range(len(own))
        ]
        assert window.best[own].tolist() == expected


def test_a_question_that_is_too_long_is_cut_and_said_to_be(tokenizer) -> None:
    short, long = QUESTION, QUESTION * 9
    encoded = task(max_length=64, max_query_length=12, step=20).encode(
        tokenizer, [(long, CONTEXT), ("who?", CONTEXT)]
    )
    ids = tokenizer.offsets([short])[0].ids[:12]
    first = len(tokenizer.frame(2).special[0])
    for window in encoded.rows[0]:
        np.testing.assert_array_equal(window.ids[first : first + 12], ids)
        assert window.truncated
        assert len(window) <= 64
    assert not any(window.truncated for window in encoded.rows[1])


def test_lengths_that_leave_no_room_for_a_context(golden, tokenizer) -> None:
    with golden.raises(ValidationError):
        task(max_length=20, max_query_length=17)
    with golden.raises(ValidationError):
        task(max_length=20, max_query_length=12, step=5)
    with golden.raises(ValidationError):
        task(max_length=20, max_query_length=12, overlap=5)
    with golden.raises(DataError):
        task(max_length=24, overlap=17).encode(tokenizer, [(QUESTION, CONTEXT)])
    with golden.raises(DataError):
        task(max_length=24, step=17).encode(tokenizer, [(QUESTION, CONTEXT)])
    with golden.raises(DataError):
        task(max_query_length=600).encode(tokenizer, [(QUESTION, CONTEXT)])


@pytest.mark.parametrize(("length", "overlap"), [(40, 1), (40, 6), (48, 11), (64, 30), (512, 100)])
def test_an_overlap_makes_the_windows_of_hugging_face_tokenizers(
    tokenizer_folder, tokenizer, length: int, overlap: int
) -> None:
    from transformers import PreTrainedTokenizerFast

    theirs = PreTrainedTokenizerFast(tokenizer_file=str(tokenizer_folder / "tokenizer.json"))
    pairs = [(QUESTION, CONTEXT * 2), ("who?", CONTEXT * 2), ("who is it", "the one")]
    encoded = task(max_length=length, overlap=overlap, max_query_length=24).encode(tokenizer, pairs)
    for own, (question, context) in zip(encoded.rows, pairs, strict=True):
        found = theirs(
            question,
            context,
            truncation="only_second",
            max_length=length,
            stride=overlap,
            return_overflowing_tokens=True,
        )
        assert [window.ids.tolist() for window in own] == found["input_ids"]


def test_the_overlap_of_a_text_alone_is_that_of_hugging_face_tokenizers(
    tokenizer_folder, tokenizer
) -> None:
    from transformers import PreTrainedTokenizerFast

    theirs = PreTrainedTokenizerFast(tokenizer_file=str(tokenizer_folder / "tokenizer.json"))
    found = theirs(
        CONTEXT, truncation=True, max_length=30, stride=7, return_overflowing_tokens=True
    )
    step = step_within(StepOptions(overlap=7), 30 - tokenizer.frame(1).size)
    assert [window.ids.tolist() for window in cut(tokenizer, 30, step, question=None)] == found[
        "input_ids"
    ]


def test_doc_stride_is_refused_with_both_of_its_meanings(golden) -> None:
    sentence = (
        r"doc_stride: 128 has two meanings; write step: 128 for windows that start 128 tokens apart, as octobert read it .*"
        r"or overlap: 128 for windows that share 128 tokens, as in Hugging Face tokenizers \(starts 256 apart, less"
    )
    with pytest.raises(ValidationError, match=sentence):
        task(max_length=384, doc_stride=128)
    for name in ("squad", "squad-v2", "question-answering", "token-classification"):
        with golden.raises(RecipeError):
            parse({"model": "m", "data": "d", "task": {name: {"doc_stride": 9}}})
    with pytest.raises(RecipeError, match="give step or overlap, not both"):
        parse({"model": "m", "data": "d", "task": {"squad": {"step": 9, "overlap": 9}}})


def test_four_special_tokens_count_as_four(tmp_path) -> None:
    make_byte_level_tokenizer(tmp_path)
    # Three would leave a token of room; what the tokenizer really has is only known here.
    with pytest.raises(DataError, match="a window has no room for a context"):
        task(max_length=20, max_query_length=16).encode(
            Tokenizer(tmp_path, 64), [(QUESTION, CONTEXT)]
        )


def test_defaults_shrink_with_the_model(tokenizer_folder) -> None:
    for limit in (16, 24, 64, 384, 512):
        encoded = task().encode(Tokenizer(tokenizer_folder, limit), [(QUESTION * 20, CONTEXT * 20)])
        lengths = [len(window) for window in encoded.rows[0]]
        assert max(lengths) == min(limit, 384)
        assert len(lengths) > 1


def test_a_context_of_a_hundred_thousand_characters(tokenizer) -> None:
    context = ("they had this from one, " * 4200)[:100_000]
    offsets = tokenizer.offsets([context])[0]
    (rows,) = task().encode(tokenizer, [(QUESTION, context)]).rows
    spans = np.concatenate([window.spans[window.best] for window in rows])
    np.testing.assert_array_equal(spans[np.lexsort(spans.T[::-1])], offsets.spans)
    assert max(map(len, rows)) <= 384
    # Reading long texts leaves the encoder as it was: other tasks still cut.
    assert len(tokenizer.encode([(context,)])[0]) == 512


def test_a_context_of_which_nothing_is_left_is_one_empty_window(tmp_path) -> None:
    make_tokenizer(tmp_path, pad_id=0)
    tokenizer = Tokenizer(tmp_path, 64)
    # BERT's normalizer drops what controls and formats.
    encoded = task().encode(tokenizer, [(QUESTION, "\u200b\u200d"), (QUESTION, "the of")])
    (empty,), (other,) = encoded.rows
    assert len(other) == len(empty) + 2
    assert not empty.best.any()
    outputs = {
        name: np.random.default_rng(0).standard_normal(len(empty) + len(other))
        for name in ("start_logits", "end_logits")
    }
    answer = task(unanswerable=False).answer(Result(outputs, encoded), 0, encoded.texts[0])
    assert (answer["answer"], answer["start"], answer["end"], answer["others"]) == (
        "",
        None,
        None,
        [],
    )
    assert answer["score"] == 1.0
    gold = [{"texts": ["x"], "starts": []}] * 2
    assert np.isfinite(task().items(Result(outputs, encoded, gold))).all()


def test_contexts_are_tokenized_once(tokenizer, monkeypatch) -> None:
    seen: list[int] = []
    offsets = Tokenizer.offsets
    monkeypatch.setattr(
        Tokenizer, "offsets", lambda self, texts: (seen.append(len(texts)), offsets(self, texts))[1]
    )
    encoded = task().encode(tokenizer, [(f"{QUESTION} {i}", CONTEXT) for i in range(5)])
    assert sorted(seen) == [1, 5]
    assert len(encoded.rows) == 5
