"""Next-sentence prediction: does the second text follow the first one? The second objective of BERT's pre-training."""

from __future__ import annotations

from dataclasses import replace

from pydantic import Field, field_validator

from octobert.core.frozen import FrozenModel
from octobert.core.results import ModelMetadata
from octobert.tasks._classification import Classification, data_set
from octobert.tasks._task import NOTHING
from octobert.tasks._texts import USUAL

DESCRIPTION = "does the second text follow the first? accuracy and F1; 0 or is_next where it does, 1 or not_next where not"

# In the order of the logits of transformers' heads.
CLASSES = (("is_next", "isnext", "next"), ("not_next", "notnext", "random"))


class Options(FrozenModel):
    """Args:
    text: the columns of the first and of the second text; by default, the first of the usual names that the data has.
    label: the column of labels; by default `label`.
    max_length: tokens of a pair; by default the model's limit.
    """

    text: tuple[str, ...] = Field(default=(), max_length=2)
    label: str = "label"
    max_length: int | None = Field(default=None, ge=2)

    @field_validator("text")
    @classmethod
    def _two_columns(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if len(value) == 1:
            raise ValueError("a pair has two text columns")
        return value


def build(options: Options, metadata: ModelMetadata = NOTHING) -> Classification:
    """The task for a model. F1 is that of texts that do not follow, class 1.

    Raises:
        DataError: the model has another number of classes, or gives a score, or several labels to a text.
    """
    text = (options.text,) if options.text else tuple(group for group in USUAL if len(group) == 2)
    build_pair = data_set(CLASSES, text=text, label=(options.label,), metrics=("accuracy", "f1"))
    return replace(build_pair(options, metadata), head="next-sentence", texts=2)
