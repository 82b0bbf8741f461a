"""What every task has: which texts go into a model, what is expected, and how outputs become scores and answers.

A row of a data set is a mapping of columns. `inputs` gives the texts of rows; `encode` the token rows that the model reads for
them, one or several windows for each text; `gold` what is expected of each item that is scored; `items` turns outputs and gold
into the numbers per item that every metric is computed from, such as the predicted class and the right class. Metrics are
functions of items alone, so that every metric has a confidence interval and a paired comparison by resampling.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np

from octobert.core.closeness import Measure, OutputCloseness
from octobert.core.errors import TokenError, each
from octobert.core.evidence import Answer, ChangedRow
from octobert.core.frozen import FrozenModel, lazy
from octobert.core.heads import head_of
from octobert.core.measurements import FidelityKind
from octobert.core.model_config import Config
from octobert.core.plain import as_json
from octobert.core.results import ModelMetadata
from octobert.data.encoded import outputs_of
from octobert.data.sampling import ROW_NUMBER, Row
from octobert.data.tokenization import EncodedTexts, Text, Tokenizer
from octobert.tasks._rows import Table

Outputs = Mapping[str, np.ndarray]
# The answer to one input as a user gets it: plain data with keys of its task.
UserAnswer = dict[str, Any]
# Training targets of one token row: arguments of the model's `forward`.
RowTargets = dict[str, Any]
Metric = Callable[[np.ndarray], float]
# Items whose answers are as wrong as can be, and the same items with right answers.
Extremes = tuple[np.ndarray, np.ndarray]
# For a model that is not known.
NOTHING = ModelMetadata()
# (index of an item, answer before, answer after), as `Fidelity` has them.
Change = tuple[int, str, str]


@dataclass(frozen=True)
class Result:
    """The outputs of a model for texts.

    Args:
        outputs: arrays [rows, …], or [entries of all rows, …] for a task whose `per_token` is true, with the rows one after
            another; of each row, what its `Encoded.kept` leaves.
        encoded: the texts and their rows.
        gold: what is expected of each item; empty without labels.
        made: name of a method of a task → that task, and what the method returned for this result: see `once`.
    """

    outputs: Outputs
    encoded: EncodedTexts
    gold: Sequence[Any] = ()
    made: dict[str, tuple[Task, Any]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @property
    def logits(self) -> np.ndarray:
        """The only output of models that judge texts: [texts, classes], whatever the number of rows of a text."""
        return self.encoded.join(self.outputs["logits"])

    @lazy
    def by_row(self) -> list[dict[str, np.ndarray]]:
        """The outputs of a graph of any kind, row by row."""
        return outputs_of(self.outputs)

    @property
    def texts(self) -> Sequence[Text]:
        """All texts."""
        return self.encoded.texts

    def single(self, index: int) -> Result:
        """The text at `index` alone, of a model with an output per token."""
        encoded, outputs = self.encoded.single(index, self.outputs)
        return Result(outputs, encoded)

    def expected(self, index: int) -> Any:
        """Gold of an item; None without labels."""
        return self.gold[index] if len(self.gold) else None


S = TypeVar("S", bound="Task")
T = TypeVar("T")


def once(method: Callable[[S, Result], T]) -> Callable[[S, Result], T]:
    """A method of a task that is called once for a result, which keeps what it returned.

    That of one task is kept: another one, such as a copy with other options, has its own answer.
    """
    name = method.__qualname__

    @functools.wraps(method)
    def kept(task: S, result: Result) -> T:
        made = result.made.get(name)
        if made is None or made[0] is not task:
            made = result.made[name] = task, method(task, result)
        value: T = made[1]
        return value

    return kept


# Results of the float model and of the quantized model for the same texts.
Pair = tuple[Result, Result]


@dataclass(frozen=True)
class Fidelity:
    """The agreement of one model with another on the same items.

    Args:
        name: what `agreement` is, such as "mean cosine".
        agreement: 1 where both models agree on everything.
        error: root mean square difference of the outputs.
        changed: items with different results, as (index, result of the other model, result of this model).
        chance: `agreement` with a model that gives the other model's most frequent answer to everything; None where there is
            no such answer.
        divergence: mean Kullback-Leibler divergence from the other model's distributions in nats, where the task measures it.
        kind: of `agreement`; a `correlation` is of all items together, and no mean over them.
        outputs: of a graph of any kind, each of its outputs.
    """

    name: str
    agreement: float
    error: float
    changed: tuple[Change, ...]
    chance: float | None = None
    divergence: float | None = None
    kind: FidelityKind = "share"
    outputs: tuple[OutputCloseness, ...] = ()


@dataclass(frozen=True)
class Predictions:
    """Predictions beside references, one entry for each item that is scored; functions of other people compute metrics of them.

    Args:
        predictions: [items, …]; of type object where an entry is not a number.
        references: the same for what is expected.
        scores: [items, classes] probabilities; None where there are none.
    """

    predictions: np.ndarray
    references: np.ndarray
    scores: np.ndarray | None = None


@dataclass(frozen=True, kw_only=True)
class Task(ABC):
    """A task with its options. What is not abstract here is what most heads do.

    Args:
        head: of the model.
        labels: class names in the order of the logits; empty for a head without classes.
        per_token: each row keeps parts of the outputs, such as those of its tokens: see `Encoded.kept`.
        max_length: the largest number of tokens of a row; None for the model's limit.
        primary: the main metric; None where there is none.
        metrics: name → function of items.
        costs: names of the metrics of which less is better. They limit nothing.
    """

    # Whether metrics of others can read the predictions.
    judges: ClassVar[bool] = True
    # Whether several rows, or lists in them, are answered together; and whether documents of a corpus are searched.
    together: ClassVar[bool] = False
    searches: ClassVar[bool] = False
    # Texts of an input that people are shown whole, by their places.
    shown_whole: ClassVar[tuple[int, ...]] = ()
    head: str
    per_token: bool = False
    labels: tuple[str, ...] = ()
    max_length: int | None = None
    primary: str | None = None
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    costs: tuple[str, ...] = ()

    @property
    def model_labels(self) -> tuple[str, ...]:
        """The names of the model's own classes: those of the task, unless it makes others of them."""
        return self.labels

    @property
    def offered(self) -> Mapping[str, Metric | None]:
        """All metrics that a recipe can name; None for AUROC."""
        return self.metrics

    @property
    def reads_texts(self) -> bool:
        """Whether a tokenizer makes its rows."""
        return head_of(self.head).reads_texts

    def tokenizer(self, folder: Path, config: Config | None = None) -> Tokenizer:
        """What makes rows of the texts, of a model's folder; `config` as for `Tokenizer`."""
        return Tokenizer(folder, self.max_length, config)

    def inputs(self, rows: Sequence[Row], *, where: str) -> list[Text]:
        """The texts of rows, in order; possibly several for each row.

        Args:
            rows: of the data set.
            where: their file, for errors.

        Raises:
            DataError: a column is missing, or a cell is not a text.
        """
        return self.read_inputs(Table(rows, where))

    def gold(self, rows: Sequence[Row], *, where: str) -> list[Any]:
        """The expected value of each item, as plain data; empty for data without labels.

        Raises:
            DataError: a label cannot be read, or does not fit the model.
        """
        return self.read_gold(Table(rows, where))

    def labels_in(self, rows: Sequence[Row], *, where: str) -> tuple[str, ...]:
        """The class names that a model for these rows needs, in the order of its logits; empty for a head without classes."""
        return self.read_labels(Table(rows, where))

    def grouped(self, table: Table) -> list[Row]:
        """The rows that are counted, drawn and kept apart: where a task reads several rows together, one for all of them."""
        return list(table.rows)

    def searched(self, rows: Sequence[Row]) -> list[Row]:
        """Rows of a corpus as rows that are evaluated beside others without being scored, where `searches` is true."""
        raise NotImplementedError

    def row_texts(self, table: Table) -> list[Text]:
        """The texts of each row that calibration and training rows must not share with evaluated rows: all."""
        return self.read_inputs(table)

    @abstractmethod
    def read_inputs(self, table: Table) -> list[Text]:
        """See `inputs`."""

    @abstractmethod
    def read_gold(self, table: Table) -> list[Any]:
        """See `gold`."""

    def read_labels(self, table: Table) -> tuple[str, ...]:
        """See `labels_in`; a head without classes."""
        return ()

    @abstractmethod
    def parse(self, user_input: Any, *, where: str) -> Text:
        """Read an input that a user passes to `predict`, as a text of this task.

        Raises:
            DataError: it is not an input of this task.
        """

    def inputs_like(self, text: Text, texts: Sequence[str]) -> list[Text]:
        """Inputs of the form that `text`, one of this task's, has: of each of the texts, and of the ones behind it."""
        return [
            tuple(texts[(index + n) % len(texts)] for n in range(len(text)))
            for index in range(len(texts))
        ]

    @abstractmethod
    def encode(self, tokenizer: Tokenizer, texts: Sequence[Text]) -> EncodedTexts:
        """The token rows that the model reads for texts."""

    def check_tokens(self, tokenizer: Tokenizer, rows: Sequence[Row], *, where: str) -> None:
        """Refuse rows with a token that the model has no embedding for, before anything is made of the others.

        Args:
            rows: of the data set.
            where: their file, for errors.

        Raises:
            TokenError: with the numbers of the rows.
        """

        def read(row: Row, place: str) -> None:
            try:
                self.encode(tokenizer, self.inputs([row], where=place))
            except TokenError as error:
                error.where = place
                raise

        if self.reads_texts and tokenizer.unread:
            numbers = ((row, row.get(ROW_NUMBER, n)) for n, row in enumerate(rows, 1))
            each(read, ((row, f"{where}, row {number}") for row, number in numbers))

    def targets(self, encoded: EncodedTexts, gold: Sequence[Any]) -> list[RowTargets]:
        """The training targets of each token row: arguments of the model's `forward`; per-token targets are arrays.

        Heads that only a teacher can train have none, see `Head.taught`.

        Raises:
            DataError: a model cannot be trained on this gold.
        """
        raise NotImplementedError

    def items(self, result: Result) -> np.ndarray:
        """The numbers that the metrics need, [items, numbers]: predictions beside references, unless a task has others."""
        judged = self.judged(result)
        return np.column_stack([judged.predictions, judged.references])

    def judged(self, result: Result) -> Predictions:
        """Predictions and references, where `judges` is true."""
        raise NotImplementedError

    @abstractmethod
    def chance(self, items: np.ndarray) -> Mapping[str, float]:
        """Name of a metric → its best value on these items for a model that does not read its input.

        Args:
            items: of any model; only what they say of the gold counts.
        """

    @abstractmethod
    def extremes(self, items: np.ndarray) -> Extremes:
        """Items as a row that was not evaluated could give: as wrong as can be, and the same ones right.

        Args:
            items: of any model.

        Returns:
            Two arrays [kinds, numbers]; intervals count one kind of item more than was seen.
        """

    def expected(self, gold: Any) -> str:
        """One entry of gold in words."""
        return str(gold)

    @abstractmethod
    def fidelity(self, ours: Result, reference: Result) -> Fidelity:
        """Return the agreement of a result with the result of a reference."""

    def compared(self, encoded: EncodedTexts) -> int:
        """The number of things that `fidelity` of these texts is about: the texts, unless a task compares their parts."""
        return len(encoded.texts)

    def closeness(self, ours: Result, reference: Result) -> tuple[Measure, np.ndarray]:
        """How near the outputs for each text are to a reference's.

        Here 1 less the root mean square error of a text's outputs, relative to the reference's standard deviation over all.

        Returns:
            What is measured, and [texts] values, 1 where nothing differs.
        """
        # Entries of outputs of each text.
        counts = [
            sum(row.entries if self.per_token else 1 for row in rows)
            for rows in reference.encoded.rows
        ]
        errors = np.zeros(len(counts))
        for name, values in reference.outputs.items():
            before = values.astype(np.float64)
            squares = (ours.outputs[name].astype(np.float64) - before) ** 2
            parts = np.split(squares, np.cumsum(counts)[:-1])
            means = [part.mean() if part.size else 0.0 for part in parts]
            errors += np.array(means) / max(float(before.var()), 1e-30)
        return "1 - relative error", 1 - np.sqrt(errors / len(reference.outputs))

    @abstractmethod
    def answer(self, result: Result, index: int, user_input: Any) -> UserAnswer:
        """The answer to the text at `index`, which the user gave as `user_input`, as plain data."""

    def line(self, answer: Mapping[str, Any]) -> str:
        """An answer in one line, as `octobert predict` prints it before its input."""
        return as_json(answer)

    def changed_row(self, pair: Pair, index: int, answers: Sequence[str]) -> ChangedRow:
        """The evidence of an item: the answers as text, and what heads know beside it.

        Its `change` is by how much a probability or a score fell.
        """
        before, after = answers
        shown = [Answer(text=before), Answer(text=after)]
        return self.row_of(pair, index, shown, transitions=((before, after),))

    def row_of(
        self, pair: Pair, index: int, answers: Sequence[Answer], **others: Any
    ) -> ChangedRow:
        """A changed item as evidence.

        Args:
            answers: of the float model, and of the quantized one.
            others: further fields of `ChangedRow`.
        """
        gold = pair[0].expected(index)
        fields = {
            "row": index,
            "texts": pair[0].texts[index],
            "expected": "" if gold is None else self.expected(gold),
            "before": answers[0],
            "after": answers[1],
            "outcome": "other",
        }
        return ChangedRow.model_validate({**fields, **others})

    def quality(self, items: np.ndarray) -> np.ndarray | None:
        """The task's own measure on each item alone, from 0 to 1; None where it has none, as scores that are correlated."""
        return None

    def answers(self, pair: Pair, index: int) -> list[UserAnswer]:
        """The answers of both models to a text."""
        return [self.answer(result, index, result.texts[index]) for result in pair]

    def label_of(self, index: int) -> str:
        """The name of a class, or its number where it has none."""
        return self.labels[index] if index < len(self.labels) else str(index)


class TaskOptions(FrozenModel, ABC):
    """What makes a task for a model. The fields are the options of the task; every one has a default.

    Attributes:
        description: one line for people.
        files: words in the names of the files that are meant, where a folder holds several versions of the task's data set.
    """

    description: ClassVar[str]
    files: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def column_options(cls) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the options that name columns: of the texts, and of what is expected of them.

        Example:
            >>> from octobert.tasks import load
            >>> load("text-classification").column_options(), load("sst2").column_options()
            ((('text',), ('label',)), ((), ()))
        """
        texts = (("text",), ("words",), ("question", "context"))
        golds = (("label",), ("score",), ("tags",), ("answers",))
        text_columns, expected = (
            next((o for o in groups if o[0] in cls.model_fields), ()) for groups in (texts, golds)
        )
        return text_columns, expected

    @abstractmethod
    def build(self, metadata: ModelMetadata = NOTHING) -> Task:
        """Return the task for a model.

        Args:
            metadata: what the model's files state.

        Raises:
            DataError: a model that does not fit the task.
        """


def objects(values: Sequence[Any]) -> np.ndarray:
    """An array of values that are not numbers, one for each item."""
    array = np.empty(len(values), dtype=object)
    for index, value in enumerate(values):
        array[index] = value
    return array
