"""SST-2, the Stanford Sentiment Treebank with two classes, in GLUE's layout."""

from __future__ import annotations

from octobert.core.results import Stated
from octobert.tasks._classification import Classification, LengthOptions, of_data_set
from octobert.tasks._task import NOTHING
from octobert.tasks.imdb import CLASSES

DESCRIPTION = "SST-2: negative or positive; accuracy"
FILES: tuple[str, ...] = ()


class Options(LengthOptions):
    """Args:
    max_length: tokens of a sentence; by default the model's limit.
    """


def build(options: Options, stated: Stated = NOTHING) -> Classification:
    """The task for a model.

    Raises:
        DataError: the model has another number of classes, or gives a score, or several labels to a text.
    """
    return of_data_set(CLASSES, stated, options.max_length, text=(("sentence",),))
