"""Answers as spans of a context: read from the cells of a data set, located in windows, and chosen by their scores."""

from __future__ import annotations

import contextlib
import json
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from octobert.core.errors import DataError
from octobert.core.plain import preview
from octobert.data.tokenization import TokenOffsets
from octobert.data.windows import NOWHERE


@dataclass(frozen=True)
class Span:
    """A possible answer.

    Args:
        text: the characters [start, end) of the context.
        start, end: the place in the context.
        score: the sum of the start logit and the end logit.
    """

    text: str
    start: int
    end: int
    score: float


@dataclass(frozen=True)
class Prediction:
    """What a model predicts for one question.

    Args:
        spans: the best answers with different texts, best first.
        null: the score of "no answer": the smallest of all windows.
    """

    spans: tuple[Span, ...]
    null: float

    @property
    def null_minus_best(self) -> float:
        """The score of "no answer" minus that of the best answer; infinity without an answer."""
        return self.null - self.spans[0].score if self.spans else float("inf")

    @property
    def best_text(self) -> str:
        """The text of the best answer, or an empty text without one."""
        return self.spans[0].text if self.spans else ""


def answers_of(cell: Any, place: str) -> tuple[list[str], list[int]]:
    """Read the answers in a cell.

    Args:
        cell: in one of the forms of SQuAD: a list of {"text", "answer_start"}, {"text": […], "answer_start": […]}, a list of
            texts, a text, any of these as JSON, or nothing.
        place: of the cell, for errors.

    Returns:
        (texts, index of the first character of each in the context; empty if the cell does not state them).

    Raises:
        DataError: the cell has none of these forms.

    Example:
        >>> answers_of('{"text": ["Ada"], "answer_start": [4]}', "row 1")
        (['Ada'], [4])
    """
    if isinstance(cell, str) and cell.lstrip()[:1] in ("[", "{"):
        # An answer may be a text that begins with a bracket.
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
        entries = [entry if isinstance(entry, Mapping) else {"text": entry} for entry in cell]
        texts = [entry.get("text") for entry in entries]
        starts = [
            entry["answer_start"] for entry in entries if entry.get("answer_start") is not None
        ]
        if (
            all(isinstance(t, str) for t in texts)
            and all(isinstance(s, int) for s in starts)
            and len(starts) in (0, len(texts))
        ):
            return [str(t) for t in texts], [int(s) for s in starts]
    raise DataError(
        "the answers cannot be read",
        where=place,
        got=preview(cell),
        expected='[{"text": …, "answer_start": …}], a list of texts, or a text',
    )


def visible(context: str, offsets: TokenOffsets) -> TokenOffsets:
    """The offsets of a context, `NOWHERE` for tokens of white space, which cannot be an answer."""
    seen = np.cumsum([0, *(not character.isspace() for character in context)])
    empty = seen[offsets.spans[:, 1]] == seen[offsets.spans[:, 0]]
    return TokenOffsets(offsets.ids, np.where(empty[:, None], NOWHERE, offsets.spans))


def best_spans(context: str, scored: list[tuple[float, int, int]], count: int) -> tuple[Span, ...]:
    """The best answers with different texts, best first.

    Args:
        context: the whole text.
        scored: (score, first character, end) of possible answers.
        count: the largest number of answers.
    """
    best: dict[str, Span] = {}
    for score, start, end in sorted(scored, key=lambda entry: -entry[0]):
        start, end = whole_characters(context, start, end)
        text = context[start:end]
        if text not in best:
            best[text] = Span(text, start, end, score)
        if len(best) == count:
            break
    return tuple(best.values())


def whole_characters(context: str, start: int, end: int) -> tuple[int, int]:
    """Widen a span to whole characters, then remove white space at its ends.

    Tokenizers that strip accents leave a combining mark outside the token of its letter; others make it a separate token. Some
    include the space before a word.

    Example:
        >>> whole_characters("by Ada ", 2, 7)
        (3, 6)
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


def check_place(context: str, text: str, start: int, place: str) -> None:
    """Check that an answer is in the context at its stated place.

    Raises:
        DataError: it is not; the message says where the text occurs.
    """
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


def characters_of(context: str, gold: Mapping[str, Any]) -> tuple[int, int]:
    """The place of the first answer in the context, (first character, end); (0, 0) if there is no answer.

    Raises:
        DataError: the answer does not occur in the context.
    """
    if not gold["texts"]:
        return 0, 0
    text = gold["texts"][0]
    start = gold["starts"][0] if gold["starts"] else context.find(text)
    if start < 0:
        raise DataError(
            "the answer is not in the context, so a model cannot be trained on it",
            got=f'"{text}"',
            fix="correct the row",
        )
    return start, start + len(text)


def right_spans(context: str, gold: Mapping[str, Any] | None) -> list[tuple[int, int]]:
    """Places of the acceptable answers; of those that state none, the first occurrence."""
    if gold is None:
        return []
    starts = gold["starts"] or [context.find(text) for text in gold["texts"]]
    places = zip(starts, gold["texts"], strict=False)
    return sorted({(start, start + len(text)) for start, text in places if start >= 0 and text})


def tokens_in(row: Any, start: int, end: int) -> np.ndarray:
    """Indices of the tokens of a window that overlap the characters [start, end)."""
    return np.flatnonzero(
        (row.spans[:, 0] < end) & (row.spans[:, 1] > start) & (row.spans[:, 0] != NOWHERE)
    )


def highest(values: np.ndarray, allowed: np.ndarray, count: int) -> np.ndarray:
    """Indices of the highest allowed values, highest first."""
    places = np.flatnonzero(allowed)
    return places[np.argsort(-values[places], kind="stable")[:count]]
