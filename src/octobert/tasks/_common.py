"""What tasks share: columns and cells of rows, texts that are read whole, and numbers of outputs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np

from octobert.core.errors import ColumnError, DataError, did_you_mean
from octobert.core.evidence import Answer
from octobert.core.plain import preview
from octobert.data.sampling import ROW_NUMBER, Row
from octobert.tasks._task import Explanation, Extremes, Fidelity, Outputs

T = TypeVar("T")

# Of one input. Windows over a text of so many take about two seconds to make and 100 MB; a long novel is about as long.
MOST_CHARACTERS = 1_000_000
# Of the range of scores.
_CLEAR = 0.05
# Classes and neighbours that an explained answer has.
TOP = 5


def column_names(row: Row) -> list[str]:
    """The columns of a row of the user's data.

    Example:
        >>> column_names({"text": "a", "__row__": 1})
        ['text']
    """
    return [str(name) for name in row if name != ROW_NUMBER]


def need_columns(rows: Sequence[Row], columns: Sequence[str], *, where: str) -> None:
    """Check that rows have all of these columns.

    Raises:
        DataError: there are no rows.
        ColumnError: columns are missing; the message names all of them, and the nearest name for one.
    """
    if not rows:
        raise DataError("there are no rows", where=where, fix="check the file")
    names = column_names(rows[0])
    missing = [column for column in columns if column not in rows[0]]
    if missing:
        what = "there is no column " + " and no column ".join(f'"{column}"' for column in missing)
        fix = (
            did_you_mean(missing[0], names)
            if len(missing) == 1
            else "rename the columns of the file"
        )
        raise ColumnError(what, where=where, got=f"columns {', '.join(names)}", fix=fix)


def first_column(rows: Sequence[Row], candidates: Sequence[str], *, where: str) -> str:
    """The first of several usual columns that the rows have.

    Raises:
        DataError: there are no rows.
        ColumnError: they have none of them.
    """
    column = next((name for name in candidates if rows and name in rows[0]), candidates[0])
    if len(candidates) > 1 and rows and column not in rows[0]:
        raise unrecognized(column, rows[0], " or ".join(candidates), where=where)
    need_columns(rows, [column], where=where)
    return column


def unrecognized(kind: str, row: Row, expected: str, *, where: str) -> ColumnError:
    """The error for rows without a usual column.

    Args:
        kind: what the column would hold.
        expected: the usual names.
    """
    what, fix = f"no column is recognized as {kind}", "rename a column of the file"
    return ColumnError(
        what, where=where, got=f"columns {', '.join(column_names(row))}", expected=expected, fix=fix
    )


def is_number(name: str) -> bool:
    """Whether a label in the data is the number of a class."""
    return name.isascii() and name.isdigit() and len(name) < 10


def place_of(row: Row, column: str, index: int, *, where: str) -> str:
    """The place of a cell, for errors.

    Example:
        >>> place_of({"text": "a"}, "text", 2, where="dev.tsv")
        'dev.tsv, row 3, column "text"'
    """
    return f'{where}, row {row.get(ROW_NUMBER, index + 1)}, column "{column}"'


def label_index(name: str, labels: Sequence[str]) -> int | None:
    """The index of a label, which may be written in another case where that means one label only.

    Example:
        >>> label_index("Positive", ["negative", "positive"]), label_index("us", ["US", "Us"])
        (1, None)
    """
    if name in labels:
        return labels.index(name)
    alike = [index for index, label in enumerate(labels) if label.casefold() == name.casefold()]
    return alike[0] if len(alike) == 1 else None


def cells(rows: Sequence[Row], column: str, *, where: str) -> Iterator[tuple[Any, str]]:
    """(cell, its place) of each row.

    Example:
        >>> list(cells([{"text": "a"}], "text", where="dev.tsv"))
        [('a', 'dev.tsv, row 1, column "text"')]
    """
    for index, row in enumerate(rows):
        yield row[column], place_of(row, column, index, where=where)


def text_of(value: Any, place: str) -> str:
    """A cell as text.

    Raises:
        DataError: the cell is empty, or is not a text.
    """
    # Parquet files from pandas have NaN where a text is missing.
    value = None if isinstance(value, float) and math.isnan(value) else value
    if isinstance(value, (list, tuple, dict)):
        raise DataError("the cell is not a text", where=place, got=preview(value))
    try:
        text = "" if value is None else str(value)
    except ValueError:  # a number of thousands of digits
        raise DataError("the cell is not a text", where=place, got=preview(value)) from None
    check_texts([text], where=place, fix="remove the row or fill it in")
    return text


def check_texts(texts: Sequence[str], *, where: str, fix: str = "write at least one word") -> None:
    """Refuse an input with a text that is empty or not Unicode, or with more characters than are read at once.

    Args:
        texts: of one input.
        fix: of an empty text.

    Raises:
        DataError: with what is wrong.
    """
    if (count := sum(map(len, texts))) > MOST_CHARACTERS:
        raise DataError(
            "the text is too long",
            where=where,
            got=f"{count:,} characters",
            expected=f"at most {MOST_CHARACTERS:,}",
            fix="give it in parts",
        )
    for number, text in enumerate(texts, start=1):
        if not text.strip():
            place = where if len(texts) == 1 else f"{where}, text {number} of {len(texts)}"
            raise DataError("the text is empty", where=place, fix=fix)
        try:
            # JSON can write lone surrogates, and no encoding can.
            text.encode()
        except UnicodeEncodeError:
            raise DataError(
                "the text is not Unicode",
                where=where,
                got=ascii(text)[:100],
                fix="decode it from its own encoding first",
            ) from None


def probabilities(logits: np.ndarray) -> np.ndarray:
    """Softmax along the last axis, in float64.

    Example:
        >>> probabilities(np.array([0.0, 0.0]))
        array([0.5, 0.5])
    """
    wide = np.asarray(logits, dtype=np.float64)
    powers: np.ndarray = np.exp(wide - wide.max(axis=-1, keepdims=True))
    result: np.ndarray = powers / np.sum(powers, axis=-1, keepdims=True)
    return result


def log_probabilities(logits: np.ndarray) -> np.ndarray:
    """The logarithm of the softmax over the last axis, in float64.

    Example:
        >>> log_probabilities(np.array([0.0, 0.0])).round(4).tolist()
        [-0.6931, -0.6931]
    """
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True)))


def sigmoid(logits: np.ndarray) -> np.ndarray:
    """The logistic function, in float64.

    Example:
        >>> sigmoid(np.array([0.0]))
        array([0.5])
    """
    from scipy.special import expit

    result: np.ndarray = expit(np.asarray(logits, dtype=np.float64))
    return result


def changed_answers(before: Sequence[T], after: Sequence[T]) -> tuple[tuple[int, T, T], ...]:
    """(index, answer before, answer after) of the items with another answer.

    Example:
        >>> changed_answers(["a", "b"], ["a", "c"])
        ((1, 'b', 'c'),)
    """
    return tuple((i, b, a) for i, (b, a) in enumerate(zip(before, after, strict=True)) if b != a)


def agreement(before: Sequence[str], after: Sequence[str], error: float) -> Fidelity:
    """Fidelity of answers in words: the share of items with the same one.

    Args:
        error: of the outputs.
    """
    changed = changed_answers(before, after)
    return Fidelity(
        "agreement",
        1 - len(changed) / max(len(after), 1),
        error,
        changed,
        share_of_most_frequent(before),
    )


def share_of_most_frequent(answers: Sequence[Hashable]) -> float | None:
    """The share of the most frequent of several answers; None where there are none.

    Example:
        >>> share_of_most_frequent(["a", "b", "a", "a"])
        0.75
    """
    return Counter(answers).most_common(1)[0][1] / len(answers) if answers else None


def number_of(value: Any, place: str) -> float:
    """A gold score.

    Raises:
        DataError: it is not a finite number.
    """
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise DataError(
            "the score is not a number",
            where=place,
            got=preview(value, 60),
            fix="remove the row or correct it",
        )
    return number


def moved(after: np.ndarray, before: np.ndarray) -> list[int]:
    """Which scores changed clearly: by more than a twentieth of the range of nine in ten scores of the reference.

    Example:
        >>> moved(np.array([0.0, 0.9, 0.5]), np.array([0.0, 1.0, 0.51]))
        [1]
    """
    if not len(before):
        return []
    low, high = np.percentile(before, [5, 95])
    clearly: np.ndarray = (np.abs(after - before) > _CLEAR * (high - low)) & (high > low)
    return [int(index) for index in np.flatnonzero(clearly)]


def extreme_scores(items: np.ndarray) -> Extremes:
    """Scores and gold scores: each with the score of quite another row, and all scores in the order of the gold scores.

    Example:
        >>> [each[:, 0].tolist() for each in extreme_scores(np.array([[0.2, 1.0], [0.1, 2.0], [0.9, 3.0], [0.8, 4.0]]))]
        [[0.8, 0.9, 0.1, 0.2], [0.1, 0.2, 0.8, 0.9]]
    """
    wrong, right = items.copy(), items.copy()
    by_gold = np.argsort(items[:, 1], kind="stable")
    right[by_gold, 0] = np.sort(items[:, 0])
    wrong[by_gold, 0] = np.roll(np.sort(items[:, 0]), len(items) // 2)
    return wrong, right


def unit(vectors: np.ndarray) -> np.ndarray:
    """Vectors divided by their L2 norms, in float64."""
    wide = vectors.astype(np.float64)
    normalized: np.ndarray = wide / np.maximum(np.linalg.norm(wide, axis=-1, keepdims=True), 1e-12)
    return normalized


def output_error(ours: Outputs, reference: Outputs) -> float:
    """Root mean square difference of all outputs."""
    squares = [
        np.square(ours[name].astype(np.float64) - reference[name]).reshape(-1) for name in ours
    ]
    return float(np.sqrt(np.mean(np.concatenate(squares))))


def best_scores(scores: Iterable[tuple[str, float]]) -> dict[str, float]:
    """The highest of scores with their names.

    Example:
        >>> best_scores([("a", 0.1), ("b", 0.9)])
        {'b': 0.9, 'a': 0.1}
    """
    return dict(sorted(scores, key=lambda entry: -entry[1])[:TOP])


def f1_of_rows(right: np.ndarray, predicted: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """F1 of each row from its counts; 1 where there is nothing on either side."""
    return np.where(predicted + expected > 0, 2 * right / np.maximum(predicted + expected, 1), 1.0)


def explained_scores(
    texts: Sequence[str], answers: Sequence[str], scores: Sequence[float]
) -> Explanation:
    """A row with another score. It went from lower to higher, or the other way."""
    shown = [Answer(text=text, score=score) for text, score in zip(answers, scores, strict=True)]
    move = ("lower", "higher") if scores[0] < scores[1] else ("higher", "lower")
    return Explanation(tuple(texts), shown, transitions=(move,), shift=abs(scores[0] - scores[1]))
