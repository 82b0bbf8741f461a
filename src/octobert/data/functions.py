"""Rows that a function of the user gives, and rows that a function of the user changes or leaves out.

`rows(split)` returns an iterable of mappings, or a `Dataset`, `DatasetDict` or `DatasetBuilder` of the library `datasets`.
`preprocess(row)` returns a row, or None to leave the row out.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import psutil

from octobert.core import user_code
from octobert.core.errors import DataError, did_you_mean
from octobert.core.frozen import FrozenModel
from octobert.core.plain import preview
from octobert.core.user_code import UserCode
from octobert.data import sampling
from octobert.data.readers import numbered, with_names
from octobert.data.sampling import ROW_NUMBER, Row

# Rows between two looks at the free memory.
_BETWEEN = 4096


class RowFunction(FrozenModel):
    """A function that gives the rows of a split."""

    code: UserCode
    split: str
    span: str = ""

    @property
    def where(self) -> str:
        """Its name in errors."""
        return f"{self.code.path.name}:{self.code.function}({self.split!r}){self.span}"

    def read(self) -> tuple[str, list[Row]]:
        """Call it.

        Returns:
            (the function in words for messages, the rows with their numbers).

        Raises:
            DataError: it gives no rows, or something that is not a row.
            RecipeError: it cannot be loaded, or it failed.
        """
        given = user_code.load(self.code)(self.split)
        with user_code.sentences(self.code):
            rows = self._rows(self._of_datasets(given))
        if not rows:
            raise DataError(
                "the function gives no rows",
                where=self.where,
                fix=f"return rows for {self.split!r}, or name another split with from",
            )
        return self.where, sampling.sliced(numbered(rows), self.span, where=self.where)

    def _of_datasets(self, given: Any) -> Any:
        """The rows of an object of `datasets`; anything else as it is."""
        datasets = sys.modules.get("datasets")
        if datasets is None:
            return given
        if isinstance(given, datasets.DatasetBuilder):
            given.download_and_prepare()
            return self._of_datasets(given.as_dataset())
        if isinstance(given, datasets.DatasetDict):
            if self.split not in given:
                raise DataError(
                    f'the data set has no split "{self.split}"',
                    where=self.where,
                    fix=did_you_mean(self.split, given),
                )
            given = given[self.split]
        return (
            with_names(given.features, given.to_list())
            if isinstance(given, datasets.Dataset)
            else given
        )

    def _rows(self, given: Any) -> list[Row]:
        if not isinstance(given, Iterable) or isinstance(given, (str, bytes, Mapping)):
            raise DataError(
                "the function does not give rows",
                where=self.where,
                got="nothing" if given is None else f"a {type(given).__name__}",
                expected="an iterable of mappings, or a Dataset",
            )
        rows: list[Row] = []
        free = psutil.virtual_memory().available
        for number, row in enumerate(given, start=1):
            if not isinstance(row, Mapping):
                raise DataError(
                    "the row is not a mapping",
                    where=f"{self.where}, row {number}",
                    got=f"a {type(row).__name__}: {preview(row)}",
                    expected="a dict",
                )
            rows.append(dict(row))
            if number % _BETWEEN == 0 and psutil.virtual_memory().available < free // 2:
                raise DataError(
                    "the rows take too much memory",
                    where=self.where,
                    got=f"{number:,} rows",
                    fix="give fewer rows: all of them are held in memory",
                )
        return rows


def preprocessed(rows: Sequence[Row], code: UserCode, *, where: str) -> list[Row]:
    """Rows as a function of the user changes them, without those that it leaves out. They keep their numbers.

    Raises:
        DataError: the function returns something else than a row or None, or leaves out all rows.
        RecipeError: it cannot be loaded, or it failed.
    """
    function = user_code.load(code)
    kept: list[Row] = []
    for row in rows:
        number = row.get(ROW_NUMBER)
        changed = function({name: value for name, value in row.items() if name != ROW_NUMBER})
        if changed is not None and not isinstance(changed, Mapping):
            raise DataError(
                "the row is not a mapping",
                where=f"{where}, row {number}",
                got=f"a {type(changed).__name__} from {code.function}",
                expected="a dict, or None to leave the row out",
            )
        if changed is not None:
            kept.append({**changed, ROW_NUMBER: number})
    if rows and not kept:
        raise DataError(
            "preprocess leaves out every row",
            where=where,
            got=f"None for {len(rows)} rows",
            fix=f"return the rows that {code.function} keeps",
        )
    return kept
