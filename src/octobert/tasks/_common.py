"""What tasks share: columns and cells of rows, texts that are read whole, and numbers of outputs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from octobert.core.errors import DataError, did_you_mean
from octobert.data.rows import ROW_NUMBER, Row
from octobert.data.tokenization import Encoded, EncodedTexts, Text, Tokenizer
from octobert.tasks._task import Outputs

# Of the range of scores.
_CLEAR = 0.05


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
        DataError: there are no rows, or a column is missing; the message suggests the nearest name.
    """
    if not rows:
        raise DataError("there are no rows", where=where, fix="check the file")
    names = column_names(rows[0])
    for column in columns:
        if column not in rows[0]:
            got = f"columns {', '.join(names)}"
            raise DataError(f'there is no column "{column}"', where=where, got=got, fix=did_you_mean(column, names))


def first_column(rows: Sequence[Row], candidates: Sequence[str], *, where: str) -> str:
    """The first of several usual columns that the rows have.

    Raises:
        DataError: they have none of them.
    """
    column = next((name for name in candidates if rows and name in rows[0]), candidates[0])
    need_columns(rows, [column], where=where)
    return column


def place_of(row: Row, column: str, index: int, *, where: str) -> str:
    """The place of a cell, for errors.

    Example:
        >>> place_of({"text": "a"}, "text", 2, where="dev.tsv")
        'dev.tsv, row 3, column "text"'
    """
    return f'{where}, row {row.get(ROW_NUMBER, index + 1)}, column "{column}"'


def text_of(row: Row, column: str, index: int, *, where: str) -> str:
    """A cell as text.

    Raises:
        DataError: the cell is empty, or is not a text.
    """
    value = row[column]
    # Parquet files from pandas have NaN where a text is missing.
    value = None if isinstance(value, float) and math.isnan(value) else value
    if isinstance(value, (list, tuple, dict)):
        raise DataError("the cell is not a text", where=place_of(row, column, index, where=where), got=repr(value)[:100])
    text = "" if value is None else str(value)
    if not text.strip():
        raise DataError(
            "the text is empty", where=place_of(row, column, index, where=where), fix="remove the row or fill it in"
        )
    if not _is_unicode(text):
        fix = "decode it from its own encoding first"
        raise DataError(
            "the text is not Unicode", where=place_of(row, column, index, where=where), got=ascii(text)[:100], fix=fix
        )
    return text


def _is_unicode(text: str) -> bool:
    """Whether a text has no lone surrogates, which JSON can write and no encoding can."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def check_texts(texts: Sequence[str], *, where: str) -> None:
    """Refuse texts that are empty or not Unicode.

    Raises:
        DataError: with the texts.
    """
    for text in texts:
        if not text.strip():
            raise DataError("the text is empty", where=where, got=repr(tuple(texts))[:100])
        if not _is_unicode(text):
            got = ascii(tuple(texts))[:100]
            raise DataError("the text is not Unicode", where=where, got=got, fix="decode it from its own encoding first")


class WholeTexts:
    """The part of tasks that read each text, or pair of texts, as one token row and have one output vector for it."""

    per_token = False

    def parse(self, given: Any, *, where: str) -> Text:
        """A text or a pair of texts.

        Raises:
            DataError: it is neither, is empty, or is not Unicode.
        """
        texts = (given,) if isinstance(given, str) else tuple(given) if isinstance(given, (tuple, list)) else ()
        if not 1 <= len(texts) <= 2 or not all(isinstance(text, str) for text in texts):
            raise DataError("the input is not a text or a pair of texts", where=where, got=repr(given)[:100])
        check_texts(texts, where=where)
        return texts

    def identity(self, text: Text) -> Text:
        """The whole text."""
        return text

    def encode(self, tokenizer: Tokenizer, texts: Sequence[Text]) -> EncodedTexts:
        """One token row for each text, cut to the largest number of tokens."""
        rows: list[Sequence[Encoded]] = [[row] for row in tokenizer.encode(texts)]
        return EncodedTexts(texts, rows)


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
        raise DataError("the score is not a number", where=place, got=repr(value)[:60], fix="remove the row or correct it")
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


def pearson(items: np.ndarray) -> float:
    """Linear correlation of the two columns; undefined where one is constant."""
    own, gold = items[:, 0] - items[:, 0].mean(), items[:, 1] - items[:, 1].mean()
    spread = np.sqrt((own @ own) * (gold @ gold))
    return float(own @ gold / spread) if spread else math.nan


def spearman(items: np.ndarray) -> float:
    """Rank correlation of the two columns, ties averaged; undefined where one is constant."""
    from scipy.stats import rankdata

    return pearson(rankdata(items, axis=0))


def unit(vectors: np.ndarray) -> np.ndarray:
    """Vectors divided by their L2 norms, in float64."""
    wide = vectors.astype(np.float64)
    normalized: np.ndarray = wide / np.maximum(np.linalg.norm(wide, axis=-1, keepdims=True), 1e-12)
    return normalized


def output_error(ours: Outputs, reference: Outputs) -> float:
    """Root mean square difference of all outputs."""
    squares = [np.square(ours[name].astype(np.float64) - reference[name]).reshape(-1) for name in ours]
    return float(np.sqrt(np.mean(np.concatenate(squares))))
