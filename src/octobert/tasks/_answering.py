"""Extractive question answering: the answer is a span of the context, read in overlapping windows."""

from __future__ import annotations

import contextlib
import json
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from pydantic import Field, model_validator

from octobert.core.errors import DataError
from octobert.core.frozen import FrozenModel
from octobert.data.rows import Row
from octobert.data.tokenization import EncodedTexts, Frame, Text, Tokenizer, TokenOffsets, split
from octobert.data.windows import NOWHERE, stride_within, windows
from octobert.tasks import _squad
from octobert.tasks._common import check_texts, need_columns, output_error, place_of, probabilities, text_of
from octobert.tasks._task import Fidelity, Metric, Outputs

# What the reference workflows use; each shrinks where the model's own length is less.
MAX_LENGTH, DOC_STRIDE, MAX_QUERY_LENGTH = 384, 128, 64
_OTHERS = 4


class WindowOptions(FrozenModel):
    """Args:
    max_length: tokens of a window, the question and special tokens included; 384 at most when absent.
    doc_stride: tokens from the start of a window to that of the next; 128 when absent.
    max_query_length: tokens of the question, which is cut beyond; 64 when absent.
    n_best: answers that are kept of each window, and of each question.
    max_answer_length: tokens of an answer.
    """

    max_length: int | None = Field(default=None, ge=8)
    doc_stride: int | None = Field(default=None, ge=1)
    max_query_length: int | None = Field(default=None, ge=1)
    n_best: int = Field(default=20, ge=1)
    max_answer_length: int = Field(default=30, ge=1)

    @model_validator(mode="after")
    def _fitting(self) -> WindowOptions:
        # Three special tokens at least; a tokenizer with more is found out when texts are encoded.
        if self.max_length is not None and self.max_query_length is not None:
            room = self.max_length - self.max_query_length - 3
            if room < 1:
                raise ValueError(
                    f"a window of max_length {self.max_length} has no room for a context beside a question of "
                    f"max_query_length {self.max_query_length}"
                )
            if self.doc_stride is not None and self.doc_stride >= room:
                raise ValueError(
                    f"doc_stride must be less than the {room} tokens of context in a window, or windows do not overlap"
                )
        return self


@dataclass(frozen=True)
class Span:
    """A possible answer: characters [start, end) of the context, and the sum of its two logits."""

    text: str
    start: int
    end: int
    score: float


@dataclass(frozen=True)
class Prediction:
    """What a model says of one question.

    Args:
        spans: the best answers with different texts, best first.
        null: score of "no answer": the least of all windows.
    """

    spans: tuple[Span, ...]
    null: float

    @property
    def null_minus_best(self) -> float:
        """How much better "no answer" is than the best answer."""
        return self.null - self.spans[0].score if self.spans else float("inf")


@dataclass(frozen=True)
class Answering:
    """Questions about contexts.

    Args:
        columns: question, context and answers.
        unanswerable: a question may have no answer (SQuAD 2.0).
        threshold: "no answer" is said where its score exceeds the best answer's by more.
    """

    columns: tuple[str, str, str]
    options: WindowOptions
    unanswerable: bool
    threshold: float
    head: str = "question-answering"
    labels: tuple[str, ...] = ()
    primary: str = "f1"
    per_token: bool = True

    @property
    def max_length(self) -> int | None:
        return self.options.max_length

    @property
    def metrics(self) -> Mapping[str, Metric]:
        return _squad.METRICS_2_0 if self.unanswerable else _squad.METRICS

    def inputs(self, rows: Sequence[Row], *, where: str) -> list[Text]:
        question, context, _ = self.columns
        need_columns(rows, (question, context), where=where)
        _refuse_duplicates(rows, where)
        return [tuple(text_of(row, column, i, where=where) for column in (question, context)) for i, row in enumerate(rows)]

    def parse(self, given: Any, *, where: str) -> Text:
        """(question, context), or {"question": …, "context": …}.

        Raises:
            DataError: it is neither, or one of them is empty.
        """
        found: tuple[Any, ...] = tuple(given) if isinstance(given, (tuple, list)) else ()
        if isinstance(given, Mapping):
            found = tuple(given.get(key) for key in ("question", "context"))
        if len(found) != 2 or not all(isinstance(text, str) for text in found):
            expected = "(question, context)"
            raise DataError(
                "the input is not a question with its context", where=where, got=repr(given)[:100], expected=expected
            )
        check_texts(found, where=where)
        return found

    def identity(self, text: Text) -> Text:
        """The context: questions about one passage give each other away."""
        return (text[1],)

    def encode(self, tokenizer: Tokenizer, texts: Sequence[Text]) -> EncodedTexts:
        frame = tokenizer.frame(2)
        length, stride, most = self._window(tokenizer, frame)
        distinct = list(dict.fromkeys(context for _, context in texts))
        contexts = {c: _visible(c, own) for c, own in zip(distinct, tokenizer.offsets(distinct), strict=True)}
        rows = []
        for (_, context), question in zip(texts, tokenizer.offsets([q.strip() for q, _ in texts]), strict=True):
            ids = question.ids[:most]
            cut = len(question.ids) > most
            rows.append(windows(frame, contexts[context], length=length, stride=stride, question=ids, truncated=cut))
        return EncodedTexts(texts, rows)

    def _window(self, tokenizer: Tokenizer, frame: Frame) -> tuple[int, int, int]:
        """(length, stride, tokens of a question) for a model.

        Raises:
            DataError: no context fits, or windows would not overlap.
        """
        length = self.options.max_length or min(MAX_LENGTH, tokenizer.max_length)
        most = self.options.max_query_length or min(MAX_QUERY_LENGTH, length // 4)
        room = length - frame.size - most
        if room < 1:
            got = f"a window of {length} tokens, {frame.size} of them special, for questions of up to {most}"
            raise DataError(
                "a window has no room for a context", where="max_length", got=got, fix="raise it, or lower max_query_length"
            )
        return length, stride_within(room, self.options.doc_stride, usual=DOC_STRIDE, of="context"), most

    def gold(self, rows: Sequence[Row], *, where: str) -> list[dict[str, Any]]:
        """{"texts": acceptable answers, "starts": where they start, where that is known} of each question."""
        _, context, answers = self.columns
        need_columns(rows, (context, answers), where=where)
        found = []
        for index, row in enumerate(rows):
            place = place_of(row, answers, index, where=where)
            texts, starts = answers_of(row[answers], place)
            for text, start in zip(texts, starts, strict=False):
                _check_place(str(row[context]), text, start, place)
            if (not texts or row.get("is_impossible")) and not self.unanswerable:
                raise DataError(
                    "the question has no answer, and in this task every question has one",
                    where=place,
                    got="is_impossible: true" if row.get("is_impossible") else "no answers",
                    expected="at least one answer, as in SQuAD 1.1",
                    fix="use the task squad-v2 (or question-answering with unanswerable: true), or leave the row out",
                )
            found.append({"texts": [] if row.get("is_impossible") else texts, "starts": starts})
        return found

    def labels_in(self, rows: Sequence[Row], *, where: str) -> tuple[str, ...]:
        """None: every token has a score for start and end."""
        return ()

    def targets(self, encoded: EncodedTexts, gold: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """First and last token of the answer; the first token of the row where the window does not hold it."""
        found = []
        for (_, context), rows, one in zip(encoded.texts, encoded.rows, gold, strict=True):
            held = [_held(row, *_characters(context, one)) for row in rows]
            # A window holds the answer if it holds all tokens of it that there are.
            spans = [row.spans[own] for row, own in zip(rows, held, strict=True) if len(own)]  # type: ignore[attr-defined]
            whole = (min(s[0, 0] for s in spans), max(s[-1, 1] for s in spans)) if spans else None
            for row, own in zip(rows, held, strict=True):
                holds = len(own) and (row.spans[own[0], 0], row.spans[own[-1], 1]) == whole  # type: ignore[attr-defined]
                found.append({"start_positions": int(own[0]) if holds else 0, "end_positions": int(own[-1]) if holds else 0})
        return found

    def predictions(self, outputs: Outputs, encoded: EncodedTexts, keep: int) -> list[Prediction]:
        """The best answers to every question, so many of each at most."""
        rows = encoded.flat
        starts, ends = split(outputs["start_logits"], rows), split(outputs["end_logits"], rows)
        found, at = [], 0
        for (_, context), own in zip(encoded.texts, encoded.rows, strict=True):
            scored: list[tuple[float, int, int]] = []
            for index, row in enumerate(own):
                scored += self._scored(row, starts[at + index], ends[at + index], keep)
            null = min(float(starts[at + i][0] + ends[at + i][0]) for i in range(len(own)))
            found.append(Prediction(_distinct(context, scored, keep), null))
            at += len(own)
        return found

    def _scored(self, row: Any, starts: np.ndarray, ends: np.ndarray, keep: int) -> list[tuple[float, int, int]]:
        """(score, first character, end) of the best spans of one window."""
        held = row.spans[:, 0] != NOWHERE
        count = self.options.n_best
        first = _highest(starts, held & row.best, count)
        last = _highest(ends, held, count)
        lengths = last[None, :] - first[:, None] + 1
        # Sums in float64, so that the order of answers does not hang on the last bit of a float32 sum.
        scores = starts[first].astype(np.float64)[:, None] + ends[last].astype(np.float64)[None, :]
        scores = np.where((lengths >= 1) & (lengths <= self.options.max_answer_length), scores, -np.inf)
        order = np.argsort(-scores, axis=None, kind="stable")[:keep]
        order = order[np.isfinite(scores.reshape(-1)[order])]
        begun, ended = np.unravel_index(order, scores.shape)
        spans = row.spans[first[begun], 0], row.spans[last[ended], 1]
        return list(zip(scores.reshape(-1)[order].tolist(), *(one.tolist() for one in spans), strict=True))

    def says(self, one: Prediction) -> str:
        """The final answer: the best one, or "" for none."""
        if not one.spans or (self.unanswerable and one.null_minus_best > self.threshold):
            return ""
        return one.spans[0].text

    def items(self, outputs: Outputs, encoded: EncodedTexts, gold: Sequence[dict[str, Any]]) -> np.ndarray:
        """[questions, 7]: the columns of `_squad`."""
        found = []
        for one, right in zip(self.predictions(outputs, encoded, 1), gold, strict=True):
            golds = right["texts"]
            best = one.spans[0].text if one.spans else ""
            final = _squad.judge(self.says(one), golds, unanswerable=self.unanswerable)
            open_ended = _squad.judge(best, golds, unanswerable=self.unanswerable)
            difference = min(one.null_minus_best, np.finfo(np.float32).max)
            found.append((*final, float(bool(golds)), difference, *open_ended, float(bool(best))))
        return np.array(found, dtype=np.float64)

    def expected(self, gold: dict[str, Any]) -> str:
        return " | ".join(dict.fromkeys(gold["texts"])) or "(no answer)"

    def fidelity(self, ours: Outputs, reference: Outputs, encoded: EncodedTexts) -> Fidelity:
        after, before = ([self.says(p) for p in self.predictions(o, encoded, 1)] for o in (ours, reference))
        changed = [
            (i, b or "(no answer)", a or "(no answer)") for i, (a, b) in enumerate(zip(after, before, strict=True)) if a != b
        ]
        return Fidelity("agreement", 1 - len(changed) / max(len(after), 1), output_error(ours, reference), tuple(changed))

    def answer(self, outputs: Outputs, encoded: EncodedTexts, index: int, given: Any) -> dict[str, Any]:
        """The best answer; scores are shares among the best ones, "no answer" included where it is allowed."""
        one, own = encoded.single(index, outputs)
        found = self.predictions(own, one, self.options.n_best)[0]
        logits = [span.score for span in found.spans] + ([found.null] if self.unanswerable or not found.spans else [])
        likely = probabilities(np.array(logits))
        answers: list[dict[str, Any]] = [
            {"answer": span.text, "score": float(share), "start": span.start, "end": span.end}
            for span, share in zip(found.spans, likely, strict=False)
        ]
        if not self.says(found):
            answers.insert(0, {"answer": "", "score": float(likely[-1]), "start": None, "end": None})
        return {**answers[0], "others": answers[1 : 1 + _OTHERS]}


def answers_of(cell: Any, place: str) -> tuple[list[str], list[int]]:
    """The answers in a cell: (texts, first characters where they are given).

    Takes the forms that SQuAD has had: a list of {"text", "answer_start"}, {"text": […], "answer_start": […]}, a list of texts,
    one text, any of these as JSON, or nothing.

    Raises:
        DataError: it is none of these.
    """
    if isinstance(cell, str) and cell.lstrip()[:1] in ("[", "{"):
        # An answer may well begin with a bracket.
        with contextlib.suppress(ValueError):
            cell = json.loads(cell)
    if cell is None or cell == "":
        return [], []
    if isinstance(cell, str):
        return [cell], []
    if isinstance(cell, Mapping):
        texts, starts = cell.get("text"), cell.get("answer_start")
        cell = [{"text": t} for t in texts or []] if isinstance(texts, list) else [cell]
        if isinstance(texts, list) and starts is not None:
            cell = [{"text": t, "answer_start": s} for t, s in zip(texts, starts, strict=False)]
    if isinstance(cell, list):
        entries = [one if isinstance(one, Mapping) else {"text": one} for one in cell]
        texts = [one.get("text") for one in entries]
        starts = [one["answer_start"] for one in entries if one.get("answer_start") is not None]
        if (
            all(isinstance(t, str) for t in texts)
            and all(isinstance(s, int) for s in starts)
            and len(starts) in (0, len(texts))
        ):
            return [str(t) for t in texts], [int(s) for s in starts]
    expected = '[{"text": …, "answer_start": …}], a list of texts, or one text'
    raise DataError("the answers cannot be read", where=place, got=repr(cell)[:100], expected=expected)


def _visible(context: str, offsets: TokenOffsets) -> TokenOffsets:
    """Tokens of white space alone stand for nothing that could be answered."""
    seen = np.cumsum([0, *(not character.isspace() for character in context)])
    empty = seen[offsets.spans[:, 1]] == seen[offsets.spans[:, 0]]
    return TokenOffsets(offsets.ids, np.where(empty[:, None], NOWHERE, offsets.spans))


def _distinct(context: str, scored: list[tuple[float, int, int]], keep: int) -> tuple[Span, ...]:
    """The best answers with different texts."""
    found: dict[str, Span] = {}
    for score, start, end in sorted(scored, key=lambda one: -one[0]):
        start, end = whole_characters(context, start, end)
        text = context[start:end]
        if text not in found:
            found[text] = Span(text, start, end, score)
        if len(found) == keep:
            break
    return tuple(found.values())


def whole_characters(context: str, start: int, end: int) -> tuple[int, int]:
    """A span without white space at its ends, and with what makes its first and last characters whole.

    Tokenizers that strip accents leave a combining mark outside the token of its letter, others make it a token of its own;
    some count the space before a word in.
    """
    while 0 < start < end and unicodedata.category(context[start]).startswith("M"):
        start -= 1
    while end < len(context) and unicodedata.category(context[end]).startswith("M"):
        end += 1
    while start < end and context[start].isspace():
        start += 1
    while end > start and context[end - 1].isspace():
        end -= 1
    return start, end


def _check_place(context: str, text: str, start: int, place: str) -> None:
    if context[start : start + len(text)] == text and start >= 0:
        return
    at = context.find(text)
    raise DataError(
        "the answer is not in the context at the stated place",
        where=place,
        got=f'"{context[max(start, 0) : max(start, 0) + len(text)]}" at {start}',
        expected=f'"{text}"',
        fix=f"correct answer_start (the text occurs at {at})"
        if at >= 0
        else "correct the answer, which occurs nowhere in the context",
    )


def _refuse_duplicates(rows: Sequence[Row], where: str) -> None:
    seen: dict[Any, int] = {}
    for index, row in enumerate(rows):
        name = row.get("id")
        if name in (None, ""):
            continue
        if name in seen:
            other = place_of(rows[seen[name]], "id", seen[name], where=where)
            place = place_of(row, "id", index, where=where)
            raise DataError(
                "two questions have the same id", where=place, got=repr(name), fix=f"rename one; the other is {other}"
            )
        seen[name] = index


def _characters(context: str, gold: Mapping[str, Any]) -> tuple[int, int]:
    """The first answer's place in the context; (0, 0) for none.

    Raises:
        DataError: the answer is nowhere in the context.
    """
    if not gold["texts"]:
        return 0, 0
    text = gold["texts"][0]
    start = gold["starts"][0] if gold["starts"] else context.find(text)
    if start < 0:
        raise DataError("the answer is not in the context, so it cannot be learned", got=f'"{text}"', fix="correct the row")
    return start, start + len(text)


def _held(row: Any, start: int, end: int) -> np.ndarray:
    """The tokens of a window that stand for some of the characters [start, end)."""
    return np.flatnonzero((row.spans[:, 0] < end) & (row.spans[:, 1] > start) & (row.spans[:, 0] != NOWHERE))


def _highest(values: np.ndarray, allowed: np.ndarray, count: int) -> np.ndarray:
    """Indices of the highest allowed values, highest first."""
    places = np.flatnonzero(allowed)
    return places[np.argsort(-values[places], kind="stable")[:count]]
