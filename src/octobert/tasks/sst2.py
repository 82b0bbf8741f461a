"""SST-2, the Stanford Sentiment Treebank with two classes, in GLUE's layout."""

from octobert.tasks._classification import LengthOptions, data_set
from octobert.tasks.imdb import CLASSES

DESCRIPTION = "SST-2: negative or positive; accuracy"


class Options(LengthOptions):
    """Args:
    max_length: tokens of a sentence; by default the model's limit.
    """


build = data_set(CLASSES, text=(("sentence",),))
