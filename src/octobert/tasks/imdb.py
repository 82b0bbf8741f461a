"""IMDB, the Large Movie Review Dataset: Stanford's folders of texts, the hub's columns, or the CSV file that goes around.

Reviews are read as they are, `<br />` and all, as published figures have them. Some reviews are in both splits: leave them out
of calibration and training with `drop_evaluated`.
"""

from octobert.tasks._classification import LengthOptions, data_set

DESCRIPTION = "IMDB: negative or positive reviews; accuracy"
FILES = ()
CLASSES = (("negative", "neg"), ("positive", "pos"))


class Options(LengthOptions):
    """Args:
    max_length: tokens of a review; by default the model's limit.
    """


build = data_set(CLASSES, text=(("text",), ("review",)), label=("label", "sentiment"))
