"""IMDB, the Large Movie Review Dataset: Stanford's folders of texts, the hub's columns, or the CSV file that goes around.

Reviews are read as they are, `<br />` and all, as published figures have them. Some reviews are in both splits: leave them out
of calibration and training with `drop_evaluated`.
"""

from dataclasses import replace
from typing import ClassVar

from octobert.core.results import ModelMetadata
from octobert.data.windows import LongTextOptions
from octobert.tasks._classification import Classification, LengthOptions, data_set
from octobert.tasks._task import NOTHING

CLASSES = (("negative", "neg"), ("positive", "pos"))


class IMDBOptions(LengthOptions, LongTextOptions):
    """Args:
    max_length: tokens of a review; by default the model's limit.
    """

    description: ClassVar[str] = "IMDB: negative or positive reviews; accuracy"

    def build(self, metadata: ModelMetadata = NOTHING) -> Classification:
        """Return the task for a model of two classes."""
        task = data_set(
            CLASSES,
            metadata,
            text=(("text",), ("review",)),
            label=("label", "sentiment"),
            max_length=self.max_length,
        )
        return replace(task, windows=self)
