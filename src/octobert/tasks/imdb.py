"""IMDB, the Large Movie Review Dataset: Stanford's folders of texts, the hub's columns, or the CSV file that goes around.

Reviews are read as they are, `<br />` and all, as published figures have them. Some reviews are in both splits: leave them out
of calibration and training with `drop_evaluated`.
"""

from __future__ import annotations

from octobert.core.results import Stated
from octobert.tasks._classification import Classification, LengthOptions, of_data_set
from octobert.tasks._task import NOTHING

DESCRIPTION = "IMDB: negative or positive reviews; accuracy"
FILES: tuple[str, ...] = ()

CLASSES = (("negative", "neg"), ("positive", "pos"))


class Options(LengthOptions):
    """Args:
    max_length: tokens of a review; by default the model's limit.
    """


def build(options: Options, stated: Stated = NOTHING) -> Classification:
    """The task for a model.

    Raises:
        DataError: the model has another number of classes, or gives a score, or several labels to a text.
    """
    return of_data_set(CLASSES, stated, options.max_length, text=(("text",), ("review",)), label=("label", "sentiment"))
