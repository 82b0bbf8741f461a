"""Task: classification of pairs, by columns of its own names."""

from __future__ import annotations

from octobert.core.frozen import FrozenModel
from octobert.core.results import ModelMetadata
from octobert.tasks import NOTHING, Task, text_classification

DESCRIPTION = "same or different; accuracy"


class Options(FrozenModel):
    """Options of the task.

    Args:
        first: column of the first text.
        second: column of the second text.
    """

    first: str = "sentence1"
    second: str = "sentence2"


def build(options: Options, metadata: ModelMetadata = NOTHING) -> Task:
    """Return the task for a model with these class names."""
    columns = text_classification.Options(text=(options.first, options.second))
    return text_classification.build(columns, metadata)
