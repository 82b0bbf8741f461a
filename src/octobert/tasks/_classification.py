"""Sentence and pair classification: what all classification tasks share."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from pydantic import Field

from octobert.core.closeness import Measure
from octobert.core.errors import DataError
from octobert.core.evidence import Answer, ChangedRow
from octobert.core.frozen import lazy
from octobert.core.plain import preview
from octobert.core.results import ModelMetadata, Problem
from octobert.tasks._metrics import (
    AUROC,
    CLASSES,
    OF_TWO,
    best_scores,
    named,
    output_error,
    probabilities,
    share_of_most_frequent,
)
from octobert.tasks._rows import Table, class_index, is_number, label_advice, label_of
from octobert.tasks._task import (
    Extremes,
    Fidelity,
    Metric,
    Pair,
    Predictions,
    Result,
    TaskOptions,
    UserAnswer,
)
from octobert.tasks._texts import LabelledTexts

# The two classes of a data set in their order, where it names them so.
BOOLEANS = ("false", "true")
# Classes that are tried as the answer to everything.
_FREQUENT = 100


@dataclass(frozen=True, kw_only=True)
class Classification(LabelledTexts):
    """One or two text columns, one label column.

    Args:
        spellings: other names of classes in rows, in lower case → index of the logit; see `spellings_of`.
    """

    spellings: Mapping[str, int] = field(default_factory=dict)

    def values(self, result: Result) -> np.ndarray:
        return probabilities(result.logits)

    @property
    def offered(self) -> Mapping[str, Metric | None]:
        """All metrics that a recipe can name; None for AUROC."""
        offered = {
            name: metric
            for name, metric in CLASSES.items()
            if len(self.labels) <= 2 or name not in OF_TWO
        }
        return {**offered, AUROC: None}

    @lazy
    def _numbers(self) -> dict[str, int]:
        """Label → index of its logit; of equal ones the first."""
        return {name: index for index, name in reversed(list(enumerate(self.labels)))}

    def read_gold(self, table: Table) -> list[int]:
        return self.read_classes(table, self._class_of)

    def read_labels(self, table: Table) -> tuple[str, ...]:
        """The classes that occur, in order; by their numbers where they are numbers."""
        labels = {label_of(cell) for cell, _ in self.labelled(table)}
        return tuple(
            sorted(
                labels,
                key=lambda name: (not is_number(name), int(name) if is_number(name) else 0, name),
            )
        )

    def judged(self, result: Result) -> Predictions:
        """Predicted and right classes by their numbers."""
        predicted, gold = self._classes(result), np.asarray(result.gold)
        classes = [str(index) for index in range(result.logits.shape[-1])]
        if gold.max(initial=0) >= len(classes):
            raise DataError(
                "the model has no such class",
                got=f"{gold.max()} in the rows",
                expected=f"an index below {len(classes)}, the number of its logits",
                fix=label_advice(gold, classes),
            )
        return Predictions(predicted, gold, probabilities(result.logits))

    def chance(self, items: np.ndarray) -> Mapping[str, float]:
        """The metrics of the best single class for every text."""
        right = items[:, 1]
        classes, rows = np.unique(right, return_counts=True)
        # No metric is best for a rare class. Trying a hundred thousand of them would take hours.
        frequent = classes[np.argsort(-rows, kind="stable")[:_FREQUENT]]
        return self.best_constant(
            [np.stack([np.full_like(right, label), right], axis=1) for label in frequent]
        )

    def extremes(self, items: np.ndarray) -> Extremes:
        """One text of each class."""
        classes = np.arange(max(2, len(self.labels), int(items.max()) + 1))
        wrong = np.roll(classes, 1)
        return np.stack([wrong, classes], axis=1), np.stack([classes, classes], axis=1)

    def expected(self, gold: int) -> str:
        return self.label_of(gold)

    def fidelity(self, ours: Result, reference: Result) -> Fidelity:
        after, before = self._classes(ours), self._classes(reference)
        changed = [
            (int(i), self.label_of(int(before[i])), self.label_of(int(after[i])))
            for i in np.flatnonzero(after != before)
        ]
        return Fidelity(
            "agreement",
            float(np.mean(after == before)),
            output_error(ours.outputs, reference.outputs),
            tuple(changed),
            share_of_most_frequent(before.tolist()),
        )

    def closeness(self, ours: Result, reference: Result) -> tuple[Measure, np.ndarray]:
        """1 less the largest change of a class's probability."""
        after, before = (probabilities(result.logits) for result in (ours, reference))
        return "1 - change of a probability", 1 - np.abs(after - before).max(axis=-1)

    def answer(self, result: Result, index: int, user_input: Any) -> UserAnswer:
        best = int(self._classes(result)[index])
        scores = probabilities(result.logits[index])
        return {"label": self.label_of(best), "score": float(scores[best])}

    def line(self, answer: Mapping[str, Any]) -> str:
        return f"{answer['label']}\t{answer['score']:.4f}"

    def changed_row(self, pair: Pair, index: int, texts: Sequence[str]) -> ChangedRow:
        """With the most likely classes; `shift` is of the right class, or of the float model's."""
        sides = [probabilities(result.logits[index]) for result in pair]
        names = list(map(self.label_of, range(len(sides[0]))))
        answers = [
            Answer(
                text=text,
                score=float(likely.max()),
                scores=best_scores(zip(names, likely.tolist(), strict=True)),
            )
            for text, likely in zip(texts, sides, strict=True)
        ]
        right = pair[0].expected(index)
        meant = names.index(texts[0]) if right is None else right
        return self.row_of(
            pair,
            index,
            answers,
            transitions=[texts],
            change=float(sides[0][meant] - sides[1][meant]),
        )

    def quality(self, items: np.ndarray) -> np.ndarray:
        return np.asarray(items[:, 0] == items[:, 1], dtype=np.float64)

    def _classes(self, result: Result) -> np.ndarray:
        """[items] the most likely class of each."""
        logits = result.logits
        if logits.shape[-1] == 1 or len(self.labels) not in (0, logits.shape[-1]):
            raise DataError(
                "the model has another number of logits than the task has classes",
                where="task.labels",
                got=f"{logits.shape[-1]} logits",
                expected=f"{len(self.labels)} ({', '.join(self.labels)})"
                if self.labels
                else "one for each class",
                fix="one logit is a score: set problem: regression"
                if logits.shape[-1] == 1
                else "name one label for each logit",
            )
        classes: np.ndarray = logits.argmax(axis=-1)
        return classes

    def _class_of(self, value: Any, place: str) -> int:
        if isinstance(value, (list, tuple)):
            raise DataError(
                "the cell lists labels, and the model gives one label to a text",
                where=place,
                got=preview(value),
                fix="set problem: multi-label, if the model gives any number of them",
            )
        name = label_of(value)
        index = self._numbers.get(name, self.spellings.get(name.lower()))
        if index is None:
            index = class_index(name, self.labels)
        if index is None and name.lower() in BOOLEANS and len(self.labels) in (0, 2):
            return self._class_of(BOOLEANS.index(name.lower()), place)
        if index is None and not self.labels and is_number(name):
            index = int(name)
        if index is None or index < 0:
            names = ", ".join(self.labels) or "the index of a class"
            if self.labels and not any(map(is_number, self.labels)):
                names += f", or an index below {len(self.labels)}"
            raise DataError(
                "the task has no such label", where=place, got=preview(value), expected=names
            )
        return index


def problem_of(metadata: ModelMetadata) -> Problem:
    """The meaning of a model's logits: as it states, else a score if there is one, else one label for each text."""
    if len(metadata.labels) == 1 and metadata.problem != "multi-label":
        return "regression"
    return metadata.problem or "single-label"


def refuse_prompt(metadata: ModelMetadata) -> None:
    """Refuse a model that puts a prompt before its texts.

    Raises:
        DataError: with the name of the prompt.
    """
    if metadata.default_prompt is not None:
        raise DataError(
            "the model puts a prompt before its texts, which only embeddings do here",
            where="default_prompt_name",
            got=metadata.default_prompt,
            fix="remove default_prompt_name from config_sentence_transformers.json, and write the prompt into the texts",
        )


class LengthOptions(TaskOptions):
    """Args:
    max_length: tokens of a text; by default the model's limit.
    """

    max_length: int | None = Field(default=None, ge=2)


def data_set(
    classes: Sequence[Sequence[str]],
    metadata: ModelMetadata,
    *,
    text: tuple[tuple[str, ...], ...],
    label: tuple[str, ...] = ("label",),
    metrics: Sequence[str] = ("accuracy",),
    max_length: int | None,
) -> Classification:
    """The task of a data set whose classes are fixed.

    Args:
        classes, metadata: see `pinned_labels`.
        text, label, max_length: see `Classification`.
        metrics: names of its metrics, the main one first.

    Raises:
        DataError: as `pinned_labels`.
    """
    return Classification(
        text=text,
        label=label,
        labels=pinned_labels(classes, metadata),
        primary=metrics[0],
        max_length=max_length,
        metrics=named(CLASSES, *metrics),
        spellings=spellings_of(classes, metadata.labels),
        texts=metadata.texts,
    )


def pinned_labels(classes: Sequence[Sequence[str]], metadata: ModelMetadata) -> tuple[str, ...]:
    """The class names of a task whose classes are fixed: the model's own where it has real names for them.

    Args:
        classes: the names that each class goes by in data and models, in the order of the data set's numbers.
        metadata: of the model.

    Raises:
        DataError: the model has another number of classes, or gives a score, or several labels to a text.
    """
    refuse_prompt(metadata)
    of_model, problem = metadata.labels, problem_of(metadata)
    if problem != "single-label":
        raise DataError(
            "the model does not give one of several labels to a text",
            where="task",
            got="a model that gives a score"
            if problem == "regression"
            else "a model that gives several labels to a text",
            expected=f"{len(classes)} classes",
            fix="use the task text-classification",
        )
    checked = check_labels(tuple(names[0] for names in classes), of_model)
    generic = all(re.fullmatch(r"LABEL_\d+", name) for name in of_model)
    return checked if generic else of_model


def spellings_of(classes: Sequence[Sequence[str]], of_model: tuple[str, ...]) -> dict[str, int]:
    """The logit of everything that a row may write for a fixed class, in lower case: its names, and its number in the data set.

    A model that has its classes in another order, and says so by known names, is read in its own order.
    """
    numbers = {
        name: number for number, names in enumerate(classes) for name in (str(number), *names)
    }
    of_model_numbers = [numbers.get(name.lower()) for name in of_model]
    complete = set(of_model_numbers) == set(range(len(classes)))
    return {
        name: of_model_numbers.index(number) if complete else number
        for name, number in numbers.items()
    }


def check_labels(stated: tuple[str, ...], of_model: tuple[str, ...]) -> tuple[str, ...]:
    """The class names: those that are stated, else the model's own.

    Raises:
        DataError: the recipe names another number of labels than the model has classes.
    """
    if stated and of_model and len(stated) != len(of_model):
        raise DataError(
            "the task has another number of labels than the model has classes",
            where="task.labels",
            got=f"{len(stated)} ({', '.join(stated)})",
            expected=f"{len(of_model)} ({', '.join(of_model)})",
            fix="name one label per class, in the order of the logits",
        )
    return stated or of_model
