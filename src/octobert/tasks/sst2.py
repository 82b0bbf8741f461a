"""SST-2, the Stanford Sentiment Treebank with two classes, in GLUE's layout."""

from typing import ClassVar

from octobert.core.results import ModelMetadata
from octobert.tasks._classification import Classification, LengthOptions, data_set
from octobert.tasks._task import NOTHING
from octobert.tasks.imdb import CLASSES


class SST2Options(LengthOptions):
    """Args:
    max_length: tokens of a sentence; by default the model's limit.
    """

    description: ClassVar[str] = "SST-2: negative or positive; accuracy"

    def build(self, metadata: ModelMetadata = NOTHING) -> Classification:
        """Return the task for a model of two classes."""
        return data_set(CLASSES, metadata, text=(("sentence",),), max_length=self.max_length)
