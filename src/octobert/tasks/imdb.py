"""IMDB, the Large Movie Review Dataset: Stanford's folders of texts, the hub's columns, or the CSV file that goes around.

Reviews are read as they are, `<br />` and all, as published figures have them. Some reviews are in both splits: leave them out
of calibration and training with `drop_evaluated`.
"""

from dataclasses import replace

from octobert.core.results import ModelMetadata
from octobert.data.windows import LongTextOptions
from octobert.tasks._classification import Classification, LengthOptions, data_set
from octobert.tasks._task import NOTHING

DESCRIPTION = "IMDB: negative or positive reviews; accuracy"
CLASSES = (("negative", "neg"), ("positive", "pos"))


class Options(LengthOptions, LongTextOptions):
    """Args:
    max_length: tokens of a review; by default the model's limit.
    """


_build = data_set(CLASSES, text=(("text",), ("review",)), label=("label", "sentiment"))


def build(options: Options, metadata: ModelMetadata = NOTHING) -> Classification:
    """The task for a model of two classes."""
    return replace(_build(options, metadata), windows=options)
