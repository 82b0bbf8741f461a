"""Rows of a data set as tasks read them: columns, cells and texts, with errors that say where something is wrong."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from octobert.core.errors import ColumnError, DataError, did_you_mean, each
from octobert.core.plain import preview
from octobert.data.sampling import ROW_NUMBER, Row

# Of one input. Windows over a text of so many take about two seconds to make and 100 MB; a long novel is about as long.
MOST_CHARACTERS = 1_000_000
# Labels that a message spells out.
_SHOWN = 8


@dataclass(frozen=True)
class Table:
    """Rows, and where they are.

    Args:
        rows: of the data set.
        where: their file, for errors.
    """

    rows: Sequence[Row]
    where: str

    @property
    def columns(self) -> str:
        """The columns of the user's data, as errors name them.

        Example:
            >>> Table([{"text": "a", "label": 0, "__row__": 1}], where="dev.tsv").columns
            'columns text, label'
        """
        return f"columns {', '.join(str(name) for name in self.rows[0] if name != ROW_NUMBER)}"

    def need(self, *columns: str) -> None:
        """Check that rows have all of these columns.

        Raises:
            DataError: there are no rows.
            ColumnError: columns are missing; the message names all of them, and the nearest name for one.
        """
        if not self.rows:
            raise DataError("there are no rows", where=self.where, fix="check the file")
        missing = [column for column in columns if column not in self.rows[0]]
        if missing:
            what = "there is no column " + " and no column ".join(f'"{name}"' for name in missing)
            fix = "rename the columns of the file"
            if len(missing) == 1:
                names = [str(name) for name in self.rows[0] if name != ROW_NUMBER]
                fix = did_you_mean(missing[0], names)
            raise ColumnError(what, where=self.where, got=self.columns, fix=fix)

    def first(self, groups: Sequence[tuple[str, ...]], kind: str) -> tuple[str, ...]:
        """The first of several usual groups of columns that the rows have all of.

        Args:
            groups: columns that stand together, the usual ones first.
            kind: what the columns hold, for the error.

        Raises:
            DataError: there are no rows.
            ColumnError: they have none of them.
        """
        rows = self.rows
        group = next((group for group in groups if rows and set(group) <= set(rows[0])), None)
        if group is None and rows and len(groups) > 1:
            raise ColumnError(
                f"no column is recognized as {kind}",
                where=self.where,
                got=self.columns,
                expected=" or ".join(" + ".join(group) for group in groups),
                fix="rename a column of the file",
            )
        group = group or groups[0]
        self.need(*group)
        return group

    def first_column(self, names: Sequence[str]) -> str:
        """The first of several usual columns that the rows have; errors as of `first`."""
        return self.first([(name,) for name in names], names[0])[0]

    def place(self, column: str, index: int) -> str:
        """The place of a cell, for errors.

        Example:
            >>> Table([{"text": "a"}], where="dev.tsv").place("text", 0)
            'dev.tsv, row 1, column "text"'
        """
        number = self.rows[index].get(ROW_NUMBER, index + 1)
        return f'{self.where}, row {number}, column "{column}"'

    def cells(self, column: str) -> Iterator[tuple[Any, str]]:
        """(cell, its place) of each row.

        Example:
            >>> list(Table([{"text": "a"}], where="dev.tsv").cells("text"))
            [('a', 'dev.tsv, row 1, column "text"')]
        """
        for index, row in enumerate(self.rows):
            yield row[column], self.place(column, index)

    def texts(self, column: str) -> list[str]:
        """The cells of a column as texts.

        Raises:
            DataError: a cell is empty, or is not a text.
        """
        return each(text_of, self.cells(column))


def label_of(value: Any) -> str:
    """The label in a cell as text, a whole number in one form.

    Example:
        >>> label_of(" world  news"), label_of(2.0), label_of("+1"), label_of(3.5)
        ('world news', '2', '1', '3.5')
    """
    name = " ".join(str(value).split())
    return str(int(float(name))) if re.fullmatch(r"[+-]?\d{1,9}(\.0*)?", name, re.ASCII) else name


def is_number(label: str) -> bool:
    """Return whether a label is a whole number, as `label_of` writes it."""
    return re.fullmatch(r"-?\d{1,9}", label, re.ASCII) is not None


def class_index(value: Any, labels: Sequence[str]) -> int | None:
    """The index of the class that a cell names: by its name, or by its number where names are no numbers.

    The name may be written in another case or with other spaces where that means one label only.

    Example:
        >>> class_index("B", ["a", "b"]), class_index(1.0, ["a", "b"]), class_index(0, ["1", "2"])
        (1, 1, None)
        >>> class_index("us", ["US", "Us"])
    """
    name = label_of(value)
    if name in labels:
        return labels.index(name)
    wanted = name.casefold()
    alike = [index for index, label in enumerate(labels) if label_of(label).casefold() == wanted]
    if not alike and is_number(name) and not any(map(is_number, labels)):
        alike = [int(name)] * (0 <= int(name) < len(labels))
    return alike[0] if len(alike) == 1 else None


def label_advice(cells: Iterable[Any], labels: Sequence[str]) -> str:
    """What to do about rows with labels that a model does not have.

    Args:
        cells: of the labels of all rows, each a label or several.
        labels: of the model.

    Example:
        >>> print(label_advice([1, -1, 1], ["LABEL_0", "LABEL_1"]).partition("task: ")[2])
        {text-classification: {labels: ['-1', '1']}}
    """
    parts = (cell.split(",") if isinstance(cell, str) else np.ravel(cell) for cell in cells)
    found = {label_of(part) for several in parts for part in several}
    numbers = sorted(int(name) for name in found if is_number(name))
    if len(numbers) < len(found):
        if any(re.fullmatch(r"-?\d*\.\d+", name) for name in found):
            return "give a model with one logit (problem: regression), if the labels are scores"
        return (
            "correct the row, or name the labels in the task's options in the order of the logits"
        )
    # Of a model whose number of classes nobody knows, those of the rows.
    count = len(labels) or len(numbers) * (0 not in numbers)
    if numbers[0] > 0 and numbers[-1] == count:
        numbers = list(range(1, count + 1))
    if len(numbers) != count or count < 2:
        # What the hub writes where a row has no label, as in the test sets of GLUE.
        unlabelled = "take a split that has labels: -1 stands for none"
        return unlabelled if numbers[0] == -1 else "correct the row, or give a model with its class"
    names = [f"'{number}'" for number in numbers]
    shown = names if len(names) < _SHOWN else [*names[:2], "…", names[-1]]
    option = f"{{text-classification: {{labels: [{', '.join(shown)}]}}}}"
    return (
        f"if the rows number the classes so, name them in the order of the logits: task: {option}"
    )


def text_of(value: Any, place: str) -> str:
    """A cell as a text.

    Raises:
        DataError: it is empty, or is not a text.
    """
    # Parquet files from pandas have NaN where a text is missing.
    value = None if isinstance(value, float) and math.isnan(value) else value
    try:
        if isinstance(value, (list, tuple, dict)):
            raise ValueError
        text = "" if value is None else str(value)
    except ValueError:  # also a number of thousands of digits
        raise DataError("the cell is not a text", where=place, got=preview(value)) from None
    check_texts([text], where=place, fix="remove the row or fill it in")
    return text


def check_texts(
    texts: Sequence[str], *, where: str, fix: str | None = "write at least one word"
) -> None:
    """Refuse an input with a text that is empty or not Unicode, or with more characters than are read at once.

    Args:
        texts: of one input.
        fix: of an empty text; None where a text may be empty.

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
        if fix is not None and not text.strip():
            raise DataError(
                "the text is empty",
                where=where if len(texts) == 1 else f"{where}, text {number} of {len(texts)}",
                fix=fix,
            )
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
