"""Task: classification of pairs, by columns of its own names."""

from __future__ import annotations

from typing import ClassVar

from octobert.core.results import ModelMetadata
from octobert.tasks import NOTHING, Task, TaskOptions
from octobert.tasks.text_classification import TextClassificationOptions


class ExtraTask(TaskOptions):
    """Options of the task.

    Args:
        first: column of the first text.
        second: column of the second text.
    """

    description: ClassVar[str] = "same or different; accuracy"

    first: str = "sentence1"
    second: str = "sentence2"

    def build(self, metadata: ModelMetadata = NOTHING) -> Task:
        """Return the task for a model with these class names."""
        return TextClassificationOptions(text=(self.first, self.second)).build(metadata)
