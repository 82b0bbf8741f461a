"""Texts that are read whole, one or two columns of a row: what tasks on single texts and on pairs share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from pydantic import Field, field_validator

from octobert.core.errors import ColumnError, DataError
from octobert.core.frozen import FrozenModel
from octobert.core.plain import preview
from octobert.data.sampling import Row
from octobert.data.tokenization import Encoded, EncodedTexts, Text, Tokenizer
from octobert.tasks._common import (
    cells,
    check_texts,
    first_column,
    need_columns,
    text_of,
    unrecognized,
)
from octobert.tasks._task import Judges, Metric, Outputs

# Names of text columns, in groups; the first group that the data has is used.
USUAL = (
    ("sentence1", "sentence2"),
    ("premise", "hypothesis"),
    ("question", "sentence"),
    ("text",),
    ("sentence",),
)


class TextOptions(FrozenModel):
    """Args:
    text: the text column, or two for pairs; by default, the first of the usual names that the data has.
    """

    text: tuple[str, ...] = Field(default=(), max_length=2)

    @field_validator("text", mode="before")
    @classmethod
    def _one_column(cls, value: object) -> object:
        return (value,) if isinstance(value, str) else value


class WholeTexts:
    """The part of tasks that read each text, or pair of texts, as one token row and have one output vector for it."""

    per_token = False

    def labels_in(self, rows: Sequence[Row], *, where: str) -> tuple[str, ...]:
        """Empty: a head without classes."""
        return ()

    def parse(self, given: Any, *, where: str) -> Text:
        """A text or a pair of texts.

        Raises:
            DataError: it is neither, is empty, or is not Unicode.
        """
        texts = (
            (given,)
            if isinstance(given, str)
            else tuple(given)
            if isinstance(given, (tuple, list))
            else ()
        )
        if not 1 <= len(texts) <= 2 or not all(isinstance(text, str) for text in texts):
            raise DataError(
                "the input is not a text or a pair of texts", where=where, got=preview(given)
            )
        check_texts(texts, where=where)
        return texts

    def identity(self, text: Text) -> Text:
        """The whole text."""
        return text

    def encode(self, tokenizer: Tokenizer, texts: Sequence[Text]) -> EncodedTexts:
        """One token row for each text, cut to the largest number of tokens."""
        rows: list[Sequence[Encoded]] = [[row] for row in tokenizer.encode(texts)]
        return EncodedTexts(texts, rows)


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
        if wrong := self._wrong_count(columns):
            two, one = (
                "give two text columns, such as sentence1 and sentence2",
                "give one text column, such as text",
            )
            raise ColumnError(
                wrong,
                where=where,
                got=f"columns {', '.join(columns)}",
                fix=two if self.texts == 2 else one,
            )
        texts = (
            [text_of(*cell) for cell in cells(rows, column, where=where)] for column in columns
        )
        return list(zip(*texts, strict=True))

    def parse(self, given: Any, *, where: str) -> Text:
        """A text, or a pair of texts for a model of pairs.

        Raises:
            DataError: it is neither, is empty, or is not Unicode.
        """
        text = super().parse(given, where=where)
        if wrong := self._wrong_count(text):
            two = 'give two texts for each input: --pair on the command line, ("first", "second") in Python'
            fix = two if self.texts == 2 else "give one text for each input"
            raise DataError(wrong, where=where, got=preview(text), fix=fix)
        return text

    def _wrong_count(self, given: Sequence[str]) -> str | None:
        """What is wrong with the number of texts of an input; None where the model reads as many."""
        if self.texts in (0, len(given)):
            return None
        return (
            "the model reads pairs of texts"
            if self.texts == 2
            else "the model reads single texts, not pairs"
        )

    def _text_columns(self, rows: Sequence[Row], where: str) -> tuple[str, ...]:
        group = next((g for g in self.text if rows and all(c in rows[0] for c in g)), None)
        if group is None and rows and len(self.text) > 1:
            raise unrecognized(
                "text", rows[0], " or ".join(" + ".join(group) for group in self.text), where=where
            )
        group = group or self.text[0]
        need_columns(rows, group, where=where)
        return group


@dataclass(frozen=True, kw_only=True)
class LabelledTexts(RowTexts):
    """Texts with a label, several labels or a score each.

    Args:
        label: candidate columns of labels or scores; the first that the data has is used.
        labels: class names in the order of the logits.
        primary: the main metric.
    """

    label: tuple[str, ...]
    labels: tuple[str, ...]
    primary: str
    metrics: Mapping[str, Metric]
    head: str = "sequence-classification"

    def cells(self, rows: Sequence[Row], where: str) -> Iterator[tuple[Any, str]]:
        """(cell, its place) of the label column."""
        return cells(rows, first_column(rows, self.label, where=where), where=where)

    def items(self, outputs: Outputs, encoded: EncodedTexts, gold: Sequence[Any]) -> np.ndarray:
        """[items, 2]: predicted class or score, and the right one; [items, 2 · labels] where there are several labels."""
        judged = cast(Judges, self).judged(outputs, encoded, gold)
        return np.column_stack([judged.predictions, judged.references])
