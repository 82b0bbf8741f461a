"""What a task is: which texts go into the model, what is expected of them, and how answers are judged.

A row of a data set is a dict of columns. `inputs` gives the texts of rows; `encode` the rows of tokens that the model reads for
them, one or several windows a text; `gold` what is expected of each judged item; `items` turns outputs and gold into the
figures of each item that every metric can be computed from, such as the predicted class and the right one, or an answer's F1.
Metrics are functions of items alone, which is what lets every metric have an interval and a paired comparison by resampling.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from octobert.core import plugins
from octobert.core.errors import DataError, did_you_mean
from octobert.core.results import TaskFacts
from octobert.data.rows import ROW_NUMBER, Row
from octobert.data.tokenization import Encoded, EncodedTexts, Text, Tokenizer

Outputs = Mapping[str, np.ndarray]
Metric = Callable[[np.ndarray], float]


@dataclass(frozen=True)
class Fidelity:
    """How closely one model follows another on the same items.

    Args:
        agreement: what counts as following, in [0, 1], and what it is called.
        error: root mean square difference of the outputs.
        changed: items that came out otherwise: (index, what the other said, what this one says).
    """

    name: str
    agreement: float
    error: float
    changed: tuple[tuple[int, str, str], ...]


class Task(Protocol):
    """One task with its options bound.

    Outputs are [rows, …], or where `per_token` is true [tokens of all rows, …], rows one after another.
    """

    head: str
    labels: tuple[str, ...]
    max_length: int | None
    primary: str | None
    metrics: Mapping[str, Metric]
    per_token: bool

    def inputs(self, rows: Sequence[Row], *, where: str) -> list[Text]:
        """The texts of rows, in order; possibly several for one data row."""
        ...

    def parse(self, given: Any, *, where: str) -> Text:
        """What a user asks a finished model, as a text of this task."""
        ...

    def identity(self, text: Text) -> Text:
        """What a text must not share with one that is evaluated, if it is calibrated or trained on."""
        ...

    def encode(self, encoder: Tokenizer, texts: Sequence[Text]) -> EncodedTexts:
        """The rows of tokens that the model reads for texts."""
        ...

    def gold(self, rows: Sequence[Row], *, where: str) -> list[Any]:
        """What is expected, as plain data, one entry per item; empty for unlabelled data."""
        ...

    def labels_in(self, rows: Sequence[Row], *, where: str) -> tuple[str, ...]:
        """The classes that a model for such rows needs, in the order of its logits; none where the head has no classes."""
        ...

    def targets(self, asked: EncodedTexts, gold: Sequence[Any]) -> list[dict[str, Any]]:
        """What training wants of each row of tokens: arguments of the model's forward, per-token ones as arrays.

        Raises:
            DataError: nothing can be learned from this gold.
        """
        ...

    def items(self, outputs: Outputs, asked: EncodedTexts, gold: Sequence[Any]) -> np.ndarray:
        """[items, figures]: all that the metrics need of each item."""
        ...

    def expected(self, gold: Any) -> str:
        """One entry of gold as a person would say it."""
        ...

    def fidelity(self, ours: Outputs, reference: Outputs, asked: EncodedTexts) -> Fidelity:
        """How closely outputs follow reference outputs."""
        ...

    def answer(self, outputs: Outputs, asked: EncodedTexts, index: int, given: Any) -> dict[str, Any]:
        """What a user is told about text `index`, which was given as `given`."""
        ...


def build(name: str, options: Mapping[str, Any], labels: Sequence[str]) -> Task:
    """A task by its plugin's name, with its options, for a model with these class names.

    Raises:
        DataError: labels that do not fit the task.
    """
    module = plugins.load("tasks", name)
    return module.build(module.Options.model_validate(options), tuple(labels))


def rebuild(facts: TaskFacts) -> Task:
    """The task that a report or a package describes."""
    return build(facts.name, facts.options, facts.labels)


def files_of(name: str) -> tuple[str, ...]:
    """Words in the names of the files that a task means, where a folder holds several versions of its data set."""
    return getattr(plugins.load("tasks", name), "FILES", ())


def need_columns(rows: Sequence[Row], columns: Sequence[str], *, where: str) -> None:
    """Check that every column is there.

    Raises:
        DataError: no rows, or a missing column, with the nearest name.
    """
    if not rows:
        raise DataError("there are no rows", where=where, fix="check the file")
    known = [str(name) for name in rows[0] if name != ROW_NUMBER]
    for column in columns:
        if column not in rows[0]:
            raise DataError(
                f'there is no column "{column}"',
                where=where,
                got=f"columns {', '.join(known)}",
                fix=did_you_mean(column, known),
            )


def first_column(rows: Sequence[Row], candidates: Sequence[str], *, where: str) -> str:
    """The first of several usual columns that the rows have.

    Raises:
        DataError: they have none of them.
    """
    found = next((name for name in candidates if rows and name in rows[0]), candidates[0])
    need_columns(rows, [found], where=where)
    return found


def place_of(row: Row, column: str, index: int, *, where: str) -> str:
    """`file, row 3, column "text"`, for messages."""
    return f'{where}, row {row.get(ROW_NUMBER, index + 1)}, column "{column}"'


def text_of(row: Row, column: str, index: int, *, where: str) -> str:
    """A cell as text.

    Raises:
        DataError: the cell is empty, or holds no text.
    """
    value = row[column]
    if isinstance(value, (list, tuple, dict)):
        raise DataError("the cell is not a text", where=place_of(row, column, index, where=where), got=repr(value)[:100])
    text = "" if value is None else str(value)
    if not text.strip():
        raise DataError(
            "the text is empty", where=place_of(row, column, index, where=where), fix="remove the row or fill it in"
        )
    return text


def check_texts(found: Sequence[str], *, where: str) -> None:
    """Refuse texts that hold nothing, or half a character.

    Raises:
        DataError: with the text.
    """
    for text in found:
        if not text.strip():
            raise DataError("the text is empty", where=where, got=repr(tuple(found))[:100])
        if any("\ud800" <= c <= "\udfff" for c in text):
            got = ascii(tuple(found))[:100]
            raise DataError("the text is not Unicode", where=where, got=got, fix="decode it from its own encoding first")


class WholeTexts:
    """What tasks have in common that read each text, or pair of texts, as one row and answer with one vector."""

    per_token = False

    def parse(self, given: Any, *, where: str) -> Text:
        """A text or a pair of texts.

        Raises:
            DataError: it is neither, is empty, or is not Unicode.
        """
        found = (given,) if isinstance(given, str) else tuple(given) if isinstance(given, (tuple, list)) else ()
        if not 1 <= len(found) <= 2 or not all(isinstance(text, str) for text in found):
            raise DataError("the input is neither a text nor a pair of texts", where=where, got=repr(given)[:100])
        check_texts(found, where=where)
        return found

    def identity(self, text: Text) -> Text:
        """All of it."""
        return text

    def encode(self, encoder: Tokenizer, texts: Sequence[Text]) -> EncodedTexts:
        """One row for every text; what is longer than the model takes is cut."""
        rows: list[Sequence[Encoded]] = [[row] for row in encoder.encode(texts)]
        return EncodedTexts(texts, rows)


def shares(logits: np.ndarray) -> np.ndarray:
    """Probabilities along the last axis."""
    wide = np.asarray(logits, dtype=np.float64)
    found = np.exp(wide - wide.max(axis=-1, keepdims=True))
    return found / found.sum(axis=-1, keepdims=True)


def output_error(ours: Outputs, reference: Outputs) -> float:
    """Root mean square difference of all outputs."""
    squares = [np.square(ours[name].astype(np.float64) - reference[name]).reshape(-1) for name in ours]
    return float(np.sqrt(np.mean(np.concatenate(squares))))
