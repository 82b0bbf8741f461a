"""Text classification: one text or a pair of texts, with one label, several labels, or a score."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import AfterValidator, BeforeValidator, Field, FiniteFloat

from octobert.core.errors import DataError, each
from octobert.core.evidence import Answer, ChangedRow
from octobert.core.plain import preview
from octobert.core.results import ModelMetadata, Problem
from octobert.data.windows import LongTextOptions
from octobert.tasks._classification import Classification, check_labels, problem_of, refuse_prompt
from octobert.tasks._metrics import (
    AUROC,
    CLASSES,
    LABELS,
    SCORES,
    agreement,
    best_scores,
    f1_of_rows,
    moved,
    named,
    output_error,
    sigmoid,
)
from octobert.tasks._one_score import OneScore, activation_of
from octobert.tasks._rows import Table, class_index, number_of
from octobert.tasks._task import (
    NOTHING,
    Change,
    Extremes,
    Fidelity,
    Metric,
    Pair,
    Predictions,
    Result,
    UserAnswer,
)
from octobert.tasks._texts import USUAL, Correlated, LabelledTexts, TextOptions


def _as_texts(value: Any) -> Any:
    """YAML has numbers and booleans, which rows write as texts."""
    plain = (int, float, bool)
    return (
        tuple(str(name).lower() if isinstance(name, plain) else name for name in value)
        if isinstance(value, (list, tuple))
        else value
    )


def _each_once(value: tuple[str, ...]) -> tuple[str, ...]:
    if len(set(value)) < len(value):
        raise ValueError("labels must differ")
    return value


# Names of labels, as rows have them.
LabelNames = Annotated[tuple[str, ...], BeforeValidator(_as_texts), AfterValidator(_each_once)]


class TextClassificationOptions(TextOptions, LongTextOptions):
    """Args:
    label: the column of labels or scores; by default, the first of the usual names that the data has.
    labels: class names in the order of the logits; by default those of the model's config.
    problem: what the logits mean: one label for each text (`single-label`), any number of labels (`multi-label`), or a score
        (`regression`); by default as the model's config says (`problem_type`), and a score if there is one logit.
    metric: the main metric; by default accuracy, for several labels micro_f1, for scores spearman.
    max_length: tokens of a row; by default the model's limit.
    threshold: a probability (of a regression, a score) that you act on, such as 0.8: the report counts the rows whose classes
        reach it in the float model or in the 8-bit model alone.
    """

    description: ClassVar[str] = (
        "classify or score one text or a pair; accuracy, F1, Matthews; "
        "micro-F1 of several labels; Spearman, Pearson of scores"
    )

    label: str | None = None
    labels: LabelNames = ()
    problem: Problem | None = None
    metric: (
        Literal["accuracy", "f1", "macro_f1", "matthews", "micro_f1", "spearman", "pearson"] | None
    ) = None
    max_length: int | None = Field(default=None, ge=2)
    threshold: FiniteFloat | None = None

    def build(self, metadata: ModelMetadata = NOTHING) -> Classification | MultiLabel | Scores:
        """Return the task for a model.

        Raises:
            DataError: labels, a problem or a metric that do not fit the model or each other.
        """
        refuse_prompt(metadata)
        names = check_labels(self.labels, metadata.labels)
        metadata = metadata.replaced(labels=names, problem=self.problem or metadata.problem)
        problem = self.problem or problem_of(metadata)
        usual = ("label", "labels", "class")
        label = (
            (self.label,)
            if self.label
            else {"regression": ("score", *usual), "multi-label": ("labels", *usual)}.get(
                problem, usual
            )
        )
        shared: dict[str, Any] = {
            "text": (self.text,) if self.text else USUAL,
            "texts": metadata.texts,
            "max_length": self.max_length,
            "windows": self,
            "label": label,
            "threshold": self.threshold,
        }
        if self.threshold is not None and problem != "regression" and not 0 < self.threshold < 1:
            raise DataError(
                "the threshold is not a probability",
                where="task.text-classification.threshold",
                got=f"{self.threshold:g}",
                expected="a number between 0 and 1, such as 0.8",
            )
        if problem == "regression":
            if len(names) > 1:
                raise DataError(
                    "a regression has one score",
                    where="task.text-classification",
                    got=f"{len(names)} ({', '.join(names)})",
                    expected="a model with one logit",
                )
            metrics = named(SCORES, "spearman", "pearson")
            kind: Any = partial(Scores, activation=activation_of(metadata))
            names = names or ("score",)
        elif problem == "multi-label":
            kind, metrics = MultiLabel, named(LABELS, "micro_f1", "macro_f1")
        else:
            if self.metric == "f1" and len(names) > 2:
                raise DataError(
                    "F1 is a metric of two classes",
                    where="task.text-classification.metric",
                    got=f"{len(names)} classes",
                    expected="macro_f1, accuracy or matthews",
                )
            of_two = ("f1",) if len(names) <= 2 else ()
            kind, metrics = (
                Classification,
                named(CLASSES, "accuracy", *of_two, "macro_f1", "matthews"),
            )
        if self.metric is not None and self.metric not in metrics:
            raise DataError(
                f"{problem} has no such metric",
                where="task.text-classification.metric",
                got=self.metric,
                expected=", ".join(metrics),
            )
        first, *_ = metrics
        task: Classification | MultiLabel | Scores = kind(
            **shared, labels=names, primary=self.metric or first, metrics=metrics
        )
        return task


# A label is given where its probability is at least this.
THRESHOLD = 0.5


@dataclass(frozen=True, kw_only=True)
class MultiLabel(LabelledTexts):
    """Any number of labels for each text: every logit is a decision of its own.

    The labels are in a column that lists them, or in one column of 0 and 1 for each label.

    """

    @property
    def offered(self) -> Mapping[str, Metric | None]:
        return {**LABELS, AUROC: None}

    def read_gold(self, table: Table) -> list[list[int]]:
        """Indices of the labels of each row, in order."""
        if self.labels and table.rows and set(self.labels) <= set(table.rows[0]):
            flags = [each(_flag, table.cells(label)) for label in self.labels]
            return [
                [index for index, flag in enumerate(row) if flag]
                for row in zip(*flags, strict=True)
            ]
        return self.read_classes(table, self._indices)

    def read_labels(self, table: Table) -> tuple[str, ...]:
        """The labels that occur, in order."""
        labels = {str(name) for cell in self.labelled(table) for name in self._names(*cell)}
        return tuple(sorted(labels))

    def target(self, gold: Sequence[int]) -> list[float]:
        return [float(index in gold) for index in range(len(self.labels))]

    def judged(self, result: Result) -> Predictions:
        """[items, labels] 1 for each predicted label, and for each right label."""
        predicted = self._decided(result)
        right = np.zeros_like(predicted)
        for row, labels in enumerate(result.gold):
            right[row, list(labels)] = 1
        return Predictions(predicted, right, sigmoid(result.logits))

    def chance(self, items: np.ndarray) -> Mapping[str, float]:
        """The metrics of no label for any text, and of all labels for every text."""
        right = np.split(items, 2, axis=1)[1]
        return self.best_constant(
            [np.concatenate([np.full_like(right, value), right], axis=1) for value in (0, 1)]
        )

    def extremes(self, items: np.ndarray) -> Extremes:
        """All decisions on a text are wrong, or right."""
        right = np.split(items, 2, axis=1)[1]
        return np.concatenate([1 - right, right], axis=1), np.concatenate([right, right], axis=1)

    def expected(self, gold: Sequence[int]) -> str:
        return ", ".join(self.labels[index] for index in gold) or "(no label)"

    def fidelity(self, ours: Result, reference: Result) -> Fidelity:
        """Agreement is the share of texts with the same labels."""
        after, before = (
            [self.expected(np.flatnonzero(row).tolist()) for row in self._decided(result)]
            for result in (ours, reference)
        )
        return agreement(before, after, output_error(ours.outputs, reference.outputs))

    def answer(self, result: Result, index: int, user_input: Any) -> UserAnswer:
        """The labels that are given, and the probability of every label."""
        likely = dict(zip(self.labels, self.values(result)[index].tolist(), strict=True))
        return {
            "labels": [name for name, share in likely.items() if share >= THRESHOLD],
            "scores": likely,
        }

    def line(self, answer: Mapping[str, Any]) -> str:
        given = (f"{name} ({answer['scores'][name]:.4f})" for name in answer["labels"])
        return ", ".join(given) or "(no label)"

    def changed_row(self, pair: Pair, index: int, texts: Sequence[str]) -> ChangedRow:
        """With the most likely labels; a transition for each label that differs."""
        sides = self.answers(pair, index)
        answers = [
            Answer(text=text, scores=best_scores(side["scores"].items()))
            for text, side in zip(texts, sides, strict=True)
        ]
        old, new = (set(side["labels"]) for side in sides)
        differ = [name for name in self.labels if name in old ^ new]
        moves = [
            (name, f"(not {name})") if name in old else (f"(not {name})", name) for name in differ
        ]
        return self.row_of(
            pair,
            index,
            answers,
            transitions=moves,
            change=max(
                abs(sides[0]["scores"][name] - sides[1]["scores"][name]) for name in self.labels
            ),
        )

    def quality(self, items: np.ndarray) -> np.ndarray:
        predicted, right = np.split(items, 2, axis=1)
        return f1_of_rows((predicted * right).sum(axis=1), predicted.sum(axis=1), right.sum(axis=1))

    def values(self, result: Result) -> np.ndarray:
        logits = result.logits
        if logits.shape[-1] != len(self.labels):
            raise DataError(
                "the model has another number of logits than labels",
                where="task.labels",
                got=f"{logits.shape[-1]} logits",
                expected=f"{len(self.labels)} ({', '.join(self.labels)})",
                fix="name one label for each logit, in their order",
            )
        return sigmoid(logits)

    def _decided(self, result: Result) -> np.ndarray:
        return (self.values(result) >= THRESHOLD).astype(np.float64)

    def _names(self, value: Any, place: str) -> list[Any]:
        """The labels in a cell: names or indices; or from a text, the names between commas."""
        if isinstance(value, str):
            return [name.strip() for name in value.split(",") if name.strip()]
        if not isinstance(value, (list, tuple, np.ndarray)):
            raise DataError(
                "the cell is not a list of labels",
                where=place,
                got=preview(value),
                fix="list the labels of each text",
            )
        cells = list(value)
        flags = len(cells) == len(self.labels) and set(cells) <= {0, 1}
        if not flags:
            return cells
        if all(
            isinstance(cell, (int, np.integer)) and not isinstance(cell, bool) for cell in cells
        ) and len(set(cells)) == len(cells):
            raise DataError(
                "the cell can be read as indices of labels and as one 0 or 1 for each label",
                where=place,
                got=preview(cells),
                fix="write names",
            )
        return [index for index, cell in enumerate(cells) if cell]

    def _indices(self, cell: Any, place: str) -> list[int]:
        return sorted({self._index(name, place) for name in self._names(cell, place)})

    def _index(self, name: Any, place: str) -> int:
        index = class_index(name, self.labels)
        if index is not None:
            return index
        raise DataError(
            "the task has no such label",
            where=place,
            got=preview(name),
            expected=", ".join(self.labels),
        )


def _flag(cell: Any, place: str) -> bool:
    value = str(cell).strip().lower()
    if value not in ("0", "1", "0.0", "1.0", "true", "false"):
        raise DataError("the cell is not 0 or 1", where=place, got=preview(cell))
    return value in ("1", "1.0", "true")


@dataclass(frozen=True, kw_only=True)
class Scores(LabelledTexts, OneScore, Correlated):
    """Similarity of pairs, relevance of a document to a query, or any number that a text has."""

    def read_gold(self, table: Table) -> list[float]:
        return each(number_of, self.labelled(table))

    def target(self, gold: float) -> float:
        return float(gold)

    def values(self, result: Result) -> np.ndarray:
        return self.scores(result)

    def judged(self, result: Result) -> Predictions:
        """Scores."""
        return Predictions(self.scores(result), np.asarray(result.gold, dtype=np.float64))

    def changes(self, ours: Result, reference: Result) -> Iterator[Change]:
        """Yield scores that changed clearly, see `moved`."""
        after, before = self.scores(ours), self.scores(reference)
        yield from ((i, f"{before[i]:.4g}", f"{after[i]:.4g}") for i in moved(after, before))

    def changed_row(self, pair: Pair, index: int, texts: Sequence[str]) -> ChangedRow:
        """With the scores themselves."""
        scores = [side["score"] for side in self.answers(pair, index)]
        return self.scored_row(pair, index, texts, scores)
