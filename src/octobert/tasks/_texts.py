"""One or two text columns of a row, read whole: what tasks on single texts and on pairs share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from octobert.core.errors import DataError
from octobert.data.rows import Row
from octobert.data.tokenization import Text
from octobert.tasks._common import WholeTexts, column_names, need_columns, text_of

# Names of text columns, in groups; the first group that the data has is used.
USUAL = (("sentence1", "sentence2"), ("premise", "hypothesis"), ("question", "sentence"), ("text",), ("sentence",))


@dataclass(frozen=True, kw_only=True)
class RowTexts(WholeTexts):
    """One or two text columns.

    Args:
        text: candidate groups of text columns; the first group that the data has is used.
        texts: texts of an input, 1 or 2; 0 where it is not known.
        max_length: the largest number of tokens; None for the model's limit.
    """

    text: tuple[tuple[str, ...], ...]
    texts: int = 0
    max_length: int | None

    def inputs(self, rows: Sequence[Row], *, where: str) -> list[Text]:
        columns = self._text_columns(rows, where)
        self._check_count(len(columns), columns, where)
        return [tuple(text_of(row, c, i, where=where) for c in columns) for i, row in enumerate(rows)]

    def parse(self, given: Any, *, where: str) -> Text:
        """A text, or a pair of texts for a model of pairs.

        Raises:
            DataError: it is neither, is empty, or is not Unicode.
        """
        text = super().parse(given, where=where)
        self._check_count(len(text), text, where)
        return text

    def _check_count(self, count: int, got: Sequence[str], where: str) -> None:
        if self.texts and count != self.texts:
            what = "the model reads pairs of texts" if self.texts == 2 else "the model reads single texts, not pairs"
            fix = "give two texts for each input (--pair)" if self.texts == 2 else "give one text for each input"
            raise DataError(what, where=where, got=repr(tuple(got))[:100], fix=fix)

    def _text_columns(self, rows: Sequence[Row], where: str) -> tuple[str, ...]:
        group = next((g for g in self.text if rows and all(c in rows[0] for c in g)), None)
        if group is None and rows and len(self.text) > 1:
            raise DataError(
                "no column is recognized as text",
                where=where,
                got=f"columns {', '.join(column_names(rows[0]))}",
                expected=" or ".join(" + ".join(group) for group in self.text),
                fix="name yours with the task's option text, or data.columns for a file without a header",
            )
        group = group or self.text[0]
        need_columns(rows, group, where=where)
        return group
