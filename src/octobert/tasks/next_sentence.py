"""Next-sentence prediction: does the second text follow the first one? The second objective of BERT's pre-training."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from pydantic import Field, field_validator

from octobert.core.results import ModelMetadata
from octobert.tasks._classification import Classification, data_set
from octobert.tasks._task import NOTHING, TaskOptions
from octobert.tasks._texts import USUAL

# In the order of the logits of transformers' heads.
CLASSES = (("is_next", "isnext", "next"), ("not_next", "notnext", "random"))


class NextSentenceOptions(TaskOptions):
    """Args:
    text: the columns of the first and of the second text; by default, the first of the usual names that the data has.
    label: the column of labels; by default `label`.
    max_length: tokens of a pair; by default the model's limit.
    """

    description: ClassVar[str] = (
        "does the second text follow the first? accuracy and F1; 0 or is_next where it does, 1 or not_next where not"
    )

    text: tuple[str, ...] = Field(default=(), max_length=2)
    label: str = "label"
    max_length: int | None = Field(default=None, ge=2)

    @field_validator("text")
    @classmethod
    def _two_columns(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if len(value) == 1:
            raise ValueError("a pair has two text columns")
        return value

    def build(self, metadata: ModelMetadata = NOTHING) -> Classification:
        """Return the task for a model. F1 is that of texts that do not follow, class 1.

        Raises:
            DataError: the model has another number of classes, or gives a score, or several labels to a text.
        """
        text = (self.text,) if self.text else tuple(group for group in USUAL if len(group) == 2)
        task = data_set(
            CLASSES,
            metadata,
            text=text,
            label=(self.label,),
            metrics=("accuracy", "f1"),
            max_length=self.max_length,
        )
        return replace(task, head="next-sentence", texts=2)
