"""MRPC, the Microsoft Research Paraphrase Corpus: do two sentences mean the same? Official MSR files or GLUE's."""

from __future__ import annotations

from pydantic import Field

from octobert.core.frozen import FrozenModel
from octobert.core.results import Stated
from octobert.tasks._classification import METRICS, Classification, pinned_labels, spellings_of
from octobert.tasks._task import NOTHING

DESCRIPTION = "MRPC: paraphrase or not; accuracy and F1"
FILES: tuple[str, ...] = ()

CLASSES = (("not_equivalent",), ("equivalent",))


class Options(FrozenModel):
    """Args:
    max_length: tokens of a pair; by default the model's limit.
    """

    max_length: int | None = Field(default=None, ge=2)


def build(options: Options, stated: Stated = NOTHING) -> Classification:
    """The task for a model.

    Raises:
        DataError: the model has another number of classes, or gives a score, or several labels to a text.
    """
    return Classification(
        text=(("#1 String", "#2 String"), ("sentence1", "sentence2")),
        label=("Quality", "label"),
        labels=pinned_labels(CLASSES, stated),
        primary="accuracy",
        max_length=options.max_length,
        metrics={name: METRICS[name] for name in ("accuracy", "f1")},
        spellings=spellings_of(CLASSES, stated.labels),
        texts=stated.texts,
    )
