"""SST-2, the Stanford Sentiment Treebank with two classes, in GLUE's layout."""

from __future__ import annotations

from pydantic import Field

from octobert.core.frozen import FrozenModel
from octobert.core.results import Stated
from octobert.tasks._classification import METRICS, Classification, pinned_labels, spellings_of
from octobert.tasks._task import NOTHING

DESCRIPTION = "SST-2: negative or positive; accuracy"
FILES: tuple[str, ...] = ()

CLASSES = (("negative", "neg"), ("positive", "pos"))


class Options(FrozenModel):
    """Args:
    max_length: tokens of a sentence; by default the model's limit.
    """

    max_length: int | None = Field(default=None, ge=2)


def build(options: Options, stated: Stated = NOTHING) -> Classification:
    """The task for a model.

    Raises:
        DataError: the model has another number of classes, or gives a score, or several labels to a text.
    """
    return Classification(
        text=(("sentence",),),
        label=("label",),
        labels=pinned_labels(CLASSES, stated),
        primary="accuracy",
        max_length=options.max_length,
        metrics={"accuracy": METRICS["accuracy"]},
        spellings=spellings_of(CLASSES, stated.labels),
        texts=stated.texts,
    )
