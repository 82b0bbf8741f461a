"""Answers as spans of a context, and the metrics of SQuAD.

Answers are read from the cells of a data set, located in windows, and chosen by their scores. The metrics are those of the
evaluation scripts of SQuAD 1.1 (Rajpurkar et al. 2016) and 2.0 (2018).

An answer is normalized (lower case, no punctuation, no English articles, single spaces) and compared with every gold answer;
the best counts. Exact match is equality; F1 is that of the two bags of words. All scores are in [0, 1].
"""

from __future__ import annotations

import contextlib
import functools
import random
import re
import string
import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

import numpy as np

from octobert.core.errors import DataError
from octobert.core.plain import parsed_json, preview
from octobert.data.encoded import TokenOffsets
from octobert.data.windows import NOWHERE
from octobert.tasks._task import Extremes

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
# Columns of the numbers of a question.
(
    EXACT,
    F1,
    ANSWERABLE,
    NULL_MINUS_BEST,
    BEST_EXACT,
    BEST_F1,
    SAYS,
    CHANCE_EXACT,
    CHANCE_F1,
    ALL_F1,
) = range(10)
# A span that is chosen by chance: words of the longest one.
_CHANCE_WORDS = 10


# The same gold answers are compared again for every model.
@functools.lru_cache(maxsize=1 << 17)
def normalized(answer: str) -> str:
    """An answer as it is compared."""
    return " ".join(_ARTICLES.sub(" ", answer.lower().translate(_NO_PUNCTUATION)).split())


def exact(answer: str, gold: str) -> float:
    """1.0 if both are the same after normalization, else 0.0."""
    return float(normalized(answer) == normalized(gold))


def f1(answer: str, gold: str, *, empty: float) -> float:
    """F1 of the words of the two.

    Args:
        empty: what two answers without words score; the scripts differ: 0 in 1.1, 1 in 2.0.
    """
    ours, theirs = normalized(answer).split(), normalized(gold).split()
    if not ours and not theirs:
        return empty
    same = sum((Counter(ours) & Counter(theirs)).values())
    if not same:
        return 0.0
    precision, recall = 1.0 * same / len(ours), 1.0 * same / len(theirs)
    return (2 * precision * recall) / (precision + recall)


def judge(answer: str, golds: Sequence[str], *, unanswerable: bool) -> tuple[float, float]:
    """(exact match, F1) of an answer to one question.

    Args:
        golds: acceptable answers; none where the question has no answer.
        unanswerable: by the rules of 2.0: golds without words do not count, and no golds means that "" is right.
    """
    if unanswerable:
        golds = [gold for gold in golds if normalized(gold)] or [""]
    empty = float(unanswerable)
    return max(exact(answer, gold) for gold in golds), max(
        f1(answer, gold, empty=empty) for gold in golds
    )


# The same for every model, too.
@functools.lru_cache(maxsize=1 << 17)
def by_chance(
    context: str, golds: tuple[str, ...], *, unanswerable: bool, seed: int
) -> tuple[float, float, float]:
    """Scores of answers that do not read the question: (exact match, F1) of a few words anywhere, F1 of the whole context."""
    words, generator = context.split(), random.Random(seed)
    first = generator.randrange(len(words))
    span = " ".join(words[first : first + generator.randint(1, _CHANCE_WORDS)])
    right, shared = judge(span, golds, unanswerable=unanswerable)
    return right, shared, judge(context, golds, unanswerable=unanswerable)[1]


def extremes(items: np.ndarray) -> Extremes:
    """A question that can be answered, and one that cannot, both answered wrong, or right."""
    kinds = np.unique(items[:, ANSWERABLE])
    wrong, right = np.zeros((2, len(kinds), items.shape[1]))
    for rows in (wrong, right):
        rows[:, ANSWERABLE], rows[:, SAYS] = kinds, 1.0
    # Wrong: "no answer" where there is one, and an answer where there is none.
    wrong[:, NULL_MINUS_BEST] = np.where(
        kinds == 1, items[:, NULL_MINUS_BEST].max(), items[:, NULL_MINUS_BEST].min()
    )
    right[:, NULL_MINUS_BEST] = np.where(
        kinds == 1, items[:, NULL_MINUS_BEST].min(), items[:, NULL_MINUS_BEST].max()
    )
    right[:, [EXACT, F1]] = 1.0
    right[:, [BEST_EXACT, BEST_F1]] = kinds[:, None]
    return wrong, right


def _mean(column: int, where: bool | None = None) -> Callable[[np.ndarray], float]:
    def metric(items: np.ndarray) -> float:
        chosen = items if where is None else items[items[:, ANSWERABLE] == where]
        return float(np.mean(chosen[:, column])) if len(chosen) else float("nan")

    return metric


def _best(column: int, part: int) -> Callable[[np.ndarray], float]:
    return lambda items: best_threshold(items, column)[part]


def best_threshold(items: np.ndarray, column: int) -> tuple[float, float]:
    """(mean, threshold): the best that ordered threshold on these very questions could reach, and that threshold.

    Args:
        column: `BEST_EXACT` or `BEST_F1`, of the best answer that is not "no answer".

    A question is answered where its null score exceeds its best answer's by no more than the threshold.
    """
    order = np.argsort(items[:, NULL_MINUS_BEST], kind="stable")
    ordered = items[order]
    # Answering a question instead of leaving it: gains its score, or loses a right "no answer".
    gains = np.where(ordered[:, ANSWERABLE] == 1, ordered[:, column], -ordered[:, SAYS])
    reached = np.cumsum(gains)
    # Questions with equal scores are answered together.
    last = np.append(ordered[1:, NULL_MINUS_BEST] != ordered[:-1, NULL_MINUS_BEST], True)
    reached = np.where(last, reached, -np.inf)
    unanswered = float(np.sum(items[:, ANSWERABLE] == 0))
    top = int(np.argmax(reached))
    if reached[top] <= 0:
        return unanswered / len(items), float(ordered[0, NULL_MINUS_BEST]) - 1.0
    return (unanswered + float(reached[top])) / len(items), float(ordered[top, NULL_MINUS_BEST])


METRICS: Mapping[str, Callable[[np.ndarray], float]] = {"f1": _mean(F1), "exact": _mean(EXACT)}
METRICS_2_0: Mapping[str, Callable[[np.ndarray], float]] = {
    **METRICS,
    "HasAns_f1": _mean(F1, True),
    "HasAns_exact": _mean(EXACT, True),
    "NoAns_f1": _mean(F1, False),
    "NoAns_exact": _mean(EXACT, False),
    "best_f1": _best(BEST_F1, 0),
    "best_f1_threshold": _best(BEST_F1, 1),
    "best_exact": _best(BEST_EXACT, 0),
    "best_exact_threshold": _best(BEST_EXACT, 1),
}


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


class Gold(TypedDict):
    """Acceptable answers to a question, and their first characters where the data states them."""

    texts: list[str]
    starts: list[int]


@dataclass(frozen=True)
class Prediction:
    """The prediction of a model for one question.

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
            cell = parsed_json(cell)
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


def characters_of(context: str, gold: Gold) -> tuple[int, int]:
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


def right_spans(context: str, gold: Gold | None) -> list[tuple[int, int]]:
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
