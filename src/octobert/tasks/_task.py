"""The `Task` protocol: which texts go into a model, what is expected, and how outputs become scores and answers.

A row of a data set is a mapping of columns. `inputs` gives the texts of rows; `encode` the token rows that the model reads for
them, one or several windows for each text; `gold` what is expected of each item that is scored; `items` turns outputs and gold
into the numbers per item that every metric is computed from, such as the predicted class and the right class. Metrics are
functions of items alone, so that every metric has a confidence interval and a paired comparison by resampling.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from octobert.core.evidence import Answer, Mark
from octobert.core.results import Stated
from octobert.data.sampling import Row
from octobert.data.tokenization import EncodedTexts, Text, Tokenizer

Outputs = Mapping[str, np.ndarray]
Metric = Callable[[np.ndarray], float]
# Items whose answers are as wrong as can be, and the same items with right answers.
Extremes = tuple[np.ndarray, np.ndarray]
# For a model that is not known.
NOTHING = Stated()
# (index of an item, answer before, answer after), as `Fidelity` has them.
Change = tuple[int, str, str]


@dataclass(frozen=True)
class Fidelity:
    """How closely one model follows another on the same items.

    Args:
        name: what `agreement` is, such as "mean cosine".
        agreement: 1 where both models agree on everything.
        error: root mean square difference of the outputs.
        changed: items with different results, as (index, result of the other model, result of this model).
        chance: `agreement` with a model that gives the other model's most frequent answer to everything; None where there is
            no such answer.
        divergence: mean Kullback-Leibler divergence from the other model's distributions in nats, where the task measures it.
    """

    name: str
    agreement: float
    error: float
    changed: tuple[Change, ...]
    chance: float | None = None
    divergence: float | None = None


@dataclass(frozen=True)
class Judged:
    """Predictions beside references, one entry for each item that is scored; functions of other people compute metrics of them.

    Args:
        predictions: [items, …]; of type object where an entry is not a number.
        references: the same for what is expected.
        scores: [items, classes] probabilities; None where there are none.
    """

    predictions: np.ndarray
    references: np.ndarray
    scores: np.ndarray | None = None


@runtime_checkable
class Judges(Protocol):
    """A task whose predictions can be read by other metrics than its own."""

    def judged(self, outputs: Outputs, encoded: EncodedTexts, gold: Sequence[Any]) -> Judged:
        """Predictions and references."""
        ...


@runtime_checkable
class Diverges(Protocol):
    """A task whose outputs are distributions over classes."""

    def divergence(self, ours: Outputs, reference: Outputs) -> float:
        """The mean Kullback-Leibler divergence of the reference's distributions from ours, in nats per row."""
        ...


@dataclass(frozen=True)
class Pair:
    """Outputs of two models for the same rows.

    Args:
        before: of the float model.
        after: of the quantized model.
        encoded: the rows.
        gold: expected value of each item; empty without labels.
    """

    before: Outputs
    after: Outputs
    encoded: EncodedTexts
    gold: Sequence[Any]

    @property
    def sides(self) -> tuple[Outputs, Outputs]:
        """The outputs of both."""
        return self.before, self.after

    def answers(
        self, answer: Callable[[Outputs, EncodedTexts, int, Any], dict[str, Any]], index: int
    ) -> list[dict[str, Any]]:
        """What `answer` of a task decodes from both outputs for an item."""
        return [
            answer(outputs, self.encoded, index, self.encoded.texts[index])
            for outputs in self.sides
        ]

    def expected(self, index: int) -> Any:
        """Gold of an item; None without labels."""
        return self.gold[index] if len(self.gold) else None


@dataclass(frozen=True)
class Explanation:
    """A row that two models answer otherwise, as people read it; see `ChangedRow`.

    Args:
        answers: of the float model, and of the quantized one.
        expected: None for what `Task.expected` says.
        shift: by how much a probability or a score fell.
        questions: texts that are shown whole.
    """

    texts: tuple[str, ...]
    answers: Sequence[Answer]
    marks: tuple[Mark, ...] = ()
    transitions: tuple[tuple[str, str], ...] = ()
    expected: str | None = None
    shift: float = 0.0
    questions: tuple[int, ...] = ()


@runtime_checkable
class Explains(Protocol):
    """A task that says more of an answer than its text: scores, and places in the texts."""

    def explain(self, pair: Pair, changed: Sequence[Change]) -> Iterable[Explanation]:
        """What is said of each changed item, in order."""
        ...

    def quality(self, items: np.ndarray) -> np.ndarray | None:
        """The task's own measure on each item alone, from 0 to 1; None where it has none, as scores that are correlated."""
        ...


def objects(values: Sequence[Any]) -> np.ndarray:
    """An array of values that are not numbers, one for each item."""
    array = np.empty(len(values), dtype=object)
    for index, value in enumerate(values):
        array[index] = value
    return array


class Task(Protocol):
    """A task with its options.

    Outputs are arrays [rows, …], or [tokens of all rows, …] where `per_token` is true, with the rows one after another; of each
    row, what its `Encoded.kept` leaves.
    """

    head: str
    labels: tuple[str, ...]
    max_length: int | None
    primary: str | None
    metrics: Mapping[str, Metric]
    per_token: bool

    def inputs(self, rows: Sequence[Row], *, where: str) -> list[Text]:
        """The texts of rows, in order; possibly several for each row.

        Args:
            rows: of the data set.
            where: their file, for errors.

        Raises:
            DataError: a column is missing, or a cell is not a text.
        """
        ...

    def parse(self, given: Any, *, where: str) -> Text:
        """What a user passes to `predict`, as a text of this task.

        Raises:
            DataError: it is not an input of this task.
        """
        ...

    def identity(self, text: Text) -> Text:
        """The part of a text that calibration and training texts must not share with evaluated texts."""
        ...

    def encode(self, tokenizer: Tokenizer, texts: Sequence[Text]) -> EncodedTexts:
        """The token rows that the model reads for texts."""
        ...

    def gold(self, rows: Sequence[Row], *, where: str) -> list[Any]:
        """What is expected of each item, as plain data; empty for data without labels.

        Raises:
            DataError: a label cannot be read, or does not fit the model.
        """
        ...

    def labels_in(self, rows: Sequence[Row], *, where: str) -> tuple[str, ...]:
        """The class names that a model for these rows needs, in the order of its logits; empty for a head without classes."""
        ...

    def targets(self, encoded: EncodedTexts, gold: Sequence[Any]) -> list[dict[str, Any]]:
        """The training targets of each token row: arguments of the model's `forward`; per-token targets are arrays.

        Raises:
            DataError: a model cannot be trained on this gold.
        """
        ...

    def items(self, outputs: Outputs, encoded: EncodedTexts, gold: Sequence[Any]) -> np.ndarray:
        """The numbers that the metrics need: [items, numbers]."""
        ...

    def chance(self, items: np.ndarray) -> Mapping[str, float]:
        """Name of a metric → its best value on these items for a model that does not read its input.

        Args:
            items: of any model; only what they say of the gold counts.
        """
        ...

    def extremes(self, items: np.ndarray) -> Extremes:
        """Items as a row that was not evaluated could give: as wrong as can be, and the same ones right.

        Args:
            items: of any model.

        Returns:
            Two arrays [kinds, numbers]; intervals count one kind of item more than was seen.
        """
        ...

    def expected(self, gold: Any) -> str:
        """One entry of gold in words."""
        ...

    def fidelity(self, ours: Outputs, reference: Outputs, encoded: EncodedTexts) -> Fidelity:
        """How closely outputs follow reference outputs."""
        ...

    def answer(
        self, outputs: Outputs, encoded: EncodedTexts, index: int, given: Any
    ) -> dict[str, Any]:
        """The answer to the text at `index`, which the user gave as `given`, as plain data."""
        ...
