"""Text classification: one text or a pair of texts, with one label, several labels, or a score."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import Field, field_validator

from octobert.core.errors import DataError
from octobert.core.frozen import FrozenModel
from octobert.core.results import Problem, Stated
from octobert.tasks import _multilabel, _scores
from octobert.tasks._classification import METRICS, Classification, check_labels, problem_of, refuse_prompt
from octobert.tasks._multilabel import MultiLabel
from octobert.tasks._scores import Scores
from octobert.tasks._task import NOTHING, Metric
from octobert.tasks._texts import USUAL

DESCRIPTION = (
    "classify or score one text or a pair; accuracy, F1, Matthews; micro-F1 of several labels; Spearman, Pearson of scores"
)
FILES: tuple[str, ...] = ()


class Options(FrozenModel):
    """Args:
    text: the text column, or two for pairs; by default, the first of the usual names that the data has.
    label: the column of labels or scores; by default, the first of the usual names that the data has.
    labels: class names in the order of the logits; by default those of the model's config.
    problem: what the logits mean: one label for each text (`single-label`), any number of labels (`multi-label`), or a score
        (`regression`); by default as the model's config says (`problem_type`), and a score if there is one logit.
    metric: the main metric; by default accuracy, for several labels micro_f1, for scores spearman.
    max_length: tokens of a row; by default the model's limit.
    """

    text: tuple[str, ...] = Field(default=(), max_length=2)
    label: str | None = None
    labels: tuple[str, ...] = ()
    problem: Problem | None = None
    metric: Literal["accuracy", "f1", "macro_f1", "matthews", "micro_f1", "spearman", "pearson"] | None = None
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


def build(options: Options, stated: Stated = NOTHING) -> Classification | MultiLabel | Scores:
    """The task for a model.

    Raises:
        DataError: labels, a problem or a metric that do not fit the model or each other.
    """
    refuse_prompt(stated)
    names = check_labels(options.labels, stated.labels)
    stated = stated.model_copy(update={"labels": names, "problem": options.problem or stated.problem})
    problem = options.problem or problem_of(stated)
    text = (options.text,) if options.text else USUAL
    label = (options.label,) if options.label else ("label", "labels", "class")
    if problem == "regression":
        if len(names) > 1:
            what, got = "a regression has one score", f"{len(names)} ({', '.join(names)})"
            raise DataError(what, where="task.text-classification", got=got, expected="a model with one logit")
        return Scores(
            text=text,
            texts=stated.texts,
            max_length=options.max_length,
            score=(options.label,) if options.label else ("score", *label),
            labels=names or ("score",),
            activation=_scores.activation_of(stated),
            primary=_primary(options, _scores.METRICS, problem),
        )
    if problem == "multi-label":
        return MultiLabel(
            text=text,
            texts=stated.texts,
            max_length=options.max_length,
            label=(options.label,) if options.label else ("labels", *label),
            labels=names,
            primary=_primary(options, _multilabel.METRICS, problem),
        )
    if options.metric == "f1" and len(names) > 2:
        raise DataError(
            "F1 is a metric of two classes",
            where="task.text-classification.metric",
            got=f"{len(names)} classes",
            expected="macro_f1, accuracy or matthews",
        )
    metrics = {name: m for name, m in METRICS.items() if len(names) <= 2 or name != "f1"}
    return Classification(
        text=text,
        texts=stated.texts,
        max_length=options.max_length,
        label=label,
        labels=names,
        primary=_primary(options, metrics, problem),
        metrics=metrics,
    )


def _primary(options: Options, metrics: Mapping[str, Metric], problem: Problem) -> str:
    if options.metric is None:
        return next(iter(metrics))
    if options.metric not in metrics:
        raise DataError(
            f"{problem} has no such metric",
            where="task.text-classification.metric",
            got=options.metric,
            expected=", ".join(metrics),
        )
    return options.metric
