"""What a task is: which texts go into the model, what is expected of them, and how answers are judged.

A row of a data set is a dict of columns. `inputs` gives the texts that the model reads, one tuple per model row (two texts
form a pair); `gold` what is expected, one per judged item; `items` turns outputs into one judged quantity per item, such as
the predicted class, the cosine of a pair or the rank of the right document. Metrics are functions of items and gold, which
is what lets every metric have an interval and a paired comparison by resampling the same items.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from octobert import plugins
from octobert.errors import DataError, did_you_mean
from octobert.texts import Text

Row = Mapping[str, Any]
Metric = Callable[[np.ndarray, np.ndarray], float]
# A column that rows read for a run carry: their place in the file they came from.
ROW_NUMBER = "__row__"


@dataclass(frozen=True)
class Fidelity:
    """How closely one model follows another on the same items.

    Args:
        agreement: what counts as following, in [0, 1], and what it is called.
        error: root mean square difference of the outputs.
        changed: items that came out otherwise.
    """

    name: str
    agreement: float
    error: float
    changed: tuple[int, ...]


class Task(Protocol):
    """One task with its options bound."""

    head: str
    labels: tuple[str, ...]
    max_length: int | None
    primary: str | None
    metrics: Mapping[str, Metric]

    def inputs(self, rows: Sequence[Row], *, where: str) -> list[Text]:
        """The texts of rows, in order; possibly several model rows for one data row."""
        ...

    def gold(self, rows: Sequence[Row], *, where: str) -> list[float]:
        """What is expected, one number per item; empty for unlabelled data."""
        ...

    def items(self, outputs: Mapping[str, np.ndarray], inputs: Sequence[Text]) -> np.ndarray:
        """One judged quantity per item, from the outputs of all model rows, and the texts they came from."""
        ...

    def fidelity(self, ours: Mapping[str, np.ndarray], reference: Mapping[str, np.ndarray], inputs: Sequence[Text]) -> Fidelity:
        """How closely outputs follow reference outputs."""
        ...

    def answer(self, outputs: Mapping[str, np.ndarray], index: int) -> dict[str, Any]:
        """What a user is told about model row `index`."""
        ...


def build(name: str, options: Mapping[str, Any], labels: Sequence[str]) -> Task:
    """A task by its plugin's name, with its options, for a model with these class names.

    Raises:
        DataError: labels that do not fit the task.
    """
    module = plugins.load("tasks", name)
    return module.build(module.Options.model_validate(options), tuple(labels))


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
