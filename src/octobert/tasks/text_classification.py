"""Text classification: one text or a pair of texts, with any labels."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from octobert.core.errors import DataError
from octobert.core.frozen import FrozenModel
from octobert.tasks._classification import METRICS, Classification, check_labels

DESCRIPTION = "classify one text or a pair; any labels; accuracy, F1, macro-F1, Matthews"
FILES: tuple[str, ...] = ()
_TEXT = (("sentence1", "sentence2"), ("premise", "hypothesis"), ("question", "sentence"), ("text",), ("sentence",))


class Options(FrozenModel):
    """Args:
    text: the text column, or two for pairs; by default, the first of the usual names that the data has.
    label: the label column; by default, the first of the usual names that the data has.
    labels: class names in the order of the logits; by default those of the model's config.
    metric: the main metric.
    max_length: tokens of a row; by default the model's limit.
    """

    text: tuple[str, ...] = Field(default=(), max_length=2)
    label: str | None = None
    labels: tuple[str, ...] = ()
    metric: Literal["accuracy", "f1", "macro_f1", "matthews"] = "accuracy"
    max_length: int | None = Field(default=None, ge=2)

    @field_validator("labels")
    @classmethod
    def _labels_differ(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(value)) < len(value):
            raise ValueError("labels must differ")
        return value

    @field_validator("text", mode="before")
    @classmethod
    def _one_column(cls, value: object) -> object:
        return (value,) if isinstance(value, str) else value


def build(options: Options, labels: tuple[str, ...] = ()) -> Classification:
    """The task for a model with these class names.

    Raises:
        DataError: labels or a metric that do not fit the number of classes.
    """
    names = check_labels(options.labels, labels)
    binary = len(names) <= 2
    if options.metric == "f1" and not binary:
        raise DataError(
            "F1 is a metric of two classes",
            where="task.text-classification.metric",
            got=f"{len(names)} classes",
            expected="macro_f1, accuracy or matthews",
        )
    return Classification(
        text=(options.text,) if options.text else _TEXT,
        label=(options.label,) if options.label else ("label", "labels", "class"),
        labels=names,
        primary=options.metric,
        max_length=options.max_length,
        metrics={name: m for name, m in METRICS.items() if binary or name != "f1"},
    )
