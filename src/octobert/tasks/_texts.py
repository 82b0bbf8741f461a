"""Texts that are read whole, one or two columns of a row: what tasks on single texts and on pairs share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from pydantic import Field, field_validator

from octobert.core.errors import ColumnError, DataError, each
from octobert.core.evidence import Answer, ChangedRow
from octobert.core.plain import preview
from octobert.data.tokenization import EncodedTexts, Text, Tokenizer
from octobert.data.windows import LONG_TEXTS_ARE_CUT, LongTextOptions
from octobert.tasks._metrics import SCORES, extreme_scores
from octobert.tasks._rows import Table, check_texts, label_advice
from octobert.tasks._task import Extremes, Metric, Pair, Result, RowTargets, Task, TaskOptions

# Names of text columns, in groups; the first group that the data has is used.
USUAL = (
    ("sentence1", "sentence2"),
    ("premise", "hypothesis"),
    ("question", "sentence"),
    ("text",),
    ("sentence",),
)


class TextOptions(TaskOptions):
    """Args:
    text: the text column, or two for pairs; by default, the first of the usual names that the data has.
    """

    text: tuple[str, ...] = Field(default=(), max_length=2)

    @field_validator("text", mode="before")
    @classmethod
    def _one_column(cls, value: object) -> object:
        return (value,) if isinstance(value, str) else value


@dataclass(frozen=True, kw_only=True)
class WholeTexts(Task):
    """The part of tasks that judge each text, or pair of texts, as a whole.

    Args:
        windows: how long ones are read.
    """

    windows: LongTextOptions = LONG_TEXTS_ARE_CUT

    def parse(self, user_input: Any, *, where: str) -> Text:
        """A text or a pair of texts, which may be empty: then the model reads special tokens alone.

        Raises:
            DataError: it is neither, or is not Unicode.
        """
        texts: tuple[Any, ...] = (user_input,)
        if not isinstance(user_input, str):
            texts = tuple(user_input) if isinstance(user_input, (tuple, list)) else ()
        if not 1 <= len(texts) <= 2 or not all(isinstance(text, str) for text in texts):
            raise DataError(
                "the input is not a text or a pair of texts", where=where, got=preview(user_input)
            )
        check_texts(texts, where=where, fix=None)
        return texts

    def encode(self, tokenizer: Tokenizer, texts: Sequence[Text]) -> EncodedTexts:
        """One token row for each text, cut to the largest number of tokens, or several windows."""
        return self.windows.encoded(tokenizer, texts)

    def scored_row(
        self, pair: Pair, index: int, answers: Sequence[str], scores: Sequence[float], **others: Any
    ) -> ChangedRow:
        """A row with another score, which went from lower to higher, or the other way; see `row_of`."""
        before, after = scores
        shown = [
            Answer(text=text, score=score) for text, score in zip(answers, scores, strict=True)
        ]
        moves = [("lower", "higher") if before < after else ("higher", "lower")]
        return self.row_of(
            pair, index, shown, transitions=moves, change=abs(before - after), **others
        )


@dataclass(frozen=True, kw_only=True)
class RowTexts(WholeTexts):
    """One or two text columns.

    Args:
        text: candidate groups of text columns; the first group that the data has is used.
        texts: texts of an input, 1 or 2; 0 where it is not known.
    """

    text: tuple[tuple[str, ...], ...]
    texts: int = 0

    def read_inputs(self, table: Table) -> list[Text]:
        columns = table.first(self.text, "text")
        if wrong := self._wrong_count(columns):
            fix = "give one text column, such as text"
            if self.texts == 2:
                fix = "give two text columns, such as sentence1 and sentence2"
            raise ColumnError(
                wrong, where=table.where, got=f"columns {', '.join(columns)}", fix=fix
            )
        return list(zip(*map(table.texts, columns), strict=True))

    def parse(self, user_input: Any, *, where: str) -> Text:
        """A text, or a pair of texts for a model of pairs.

        Raises:
            DataError: it is neither, or is not Unicode.
        """
        text = super().parse(user_input, where=where)
        if wrong := self._wrong_count(text):
            fix = "give one text for each input"
            if self.texts == 2:
                fix = 'give two texts for each input: --pair on the command line, ("first", "second") in Python'
            raise DataError(wrong, where=where, got=preview(text), fix=fix)
        return text

    def _wrong_count(self, texts: Sequence[str]) -> str | None:
        """Return the problem of the number of texts of an input; None where the model reads as many."""
        if self.texts in (0, len(texts)):
            return None
        if self.texts == 2:
            return "the model reads pairs of texts"
        return "the model reads single texts, not pairs"


@dataclass(frozen=True, kw_only=True)
class LabelledTexts(RowTexts):
    """Texts with a label, several labels or a score each.

    Args:
        label: candidate columns of labels or scores; the first that the data has is used.
        threshold: of a probability or a score, that the user acts on; None for none.
    """

    label: tuple[str, ...]
    threshold: float | None = None
    head: str = "sequence-classification"

    def values(self, result: Result) -> np.ndarray:
        """[texts, …] what a threshold is compared with: the probability of each class, or the score."""
        raise NotImplementedError

    def labelled(self, table: Table) -> Iterator[tuple[Any, str]]:
        """(cell, its place) of the label column."""
        return table.cells(table.first_column(self.label))

    def read_classes(self, table: Table, read: Callable[[Any, str], Any]) -> list[Any]:
        """What `read` makes of each cell of the label column.

        Raises:
            DataError: labels that the model does not have; what to do follows from all labels of the rows.
        """
        try:
            return each(read, self.labelled(table))
        except DataError as error:
            cells = [cell for cell, _ in self.labelled(table)]
            error.fix = error.fix or label_advice(cells, self.labels)
            raise

    def target(self, gold: Any) -> Any:
        """The training target of one entry of gold."""
        return gold

    def targets(self, encoded: EncodedTexts, gold: Sequence[Any]) -> list[RowTargets]:
        """Every window has the label of its text."""
        return [{"labels": self.target(label)} for label in encoded.of_rows(gold)]

    def best_constant(self, predictions: Sequence[np.ndarray]) -> Mapping[str, float]:
        """Name of a metric → its best value of items that all have one prediction."""
        return {
            name: max(metric(items) for items in predictions)
            for name, metric in self.metrics.items()
        }


class Correlated(Task):
    """Items that are scores beside gold scores."""

    @property
    def offered(self) -> Mapping[str, Metric | None]:
        return SCORES

    def chance(self, items: np.ndarray) -> Mapping[str, float]:
        """Of uninformative scores."""
        return dict.fromkeys(self.metrics, 0.0)

    def extremes(self, items: np.ndarray) -> Extremes:
        return extreme_scores(items)

    def expected(self, gold: float) -> str:
        return f"{gold:g}"


class Unscored(Task):
    """Texts of which nothing is right or wrong: 8 bits are compared with float only."""

    def read_gold(self, table: Table) -> list[Any]:
        return []

    def items(self, result: Result) -> np.ndarray:
        """[0, 0]: nothing is scored."""
        return np.empty((0, 0))

    def chance(self, items: np.ndarray) -> Mapping[str, float]:
        return {}

    def extremes(self, items: np.ndarray) -> Extremes:
        return items, items
