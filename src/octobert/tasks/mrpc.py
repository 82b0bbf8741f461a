"""MRPC, the Microsoft Research Paraphrase Corpus: do two sentences mean the same? Official MSR files or GLUE's."""

from __future__ import annotations

from octobert.core.results import Stated
from octobert.tasks._classification import Classification, LengthOptions, of_data_set
from octobert.tasks._task import NOTHING

DESCRIPTION = "MRPC: paraphrase or not; accuracy and F1"
FILES: tuple[str, ...] = ()

CLASSES = (("not_equivalent",), ("equivalent",))


class Options(LengthOptions):
    """Args:
    max_length: tokens of a pair; by default the model's limit.
    """


def build(options: Options, stated: Stated = NOTHING) -> Classification:
    """The task for a model.

    Raises:
        DataError: the model has another number of classes, or gives a score, or several labels to a text.
    """
    return of_data_set(
        CLASSES,
        stated,
        options.max_length,
        text=(("#1 String", "#2 String"), ("sentence1", "sentence2")),
        label=("Quality", "label"),
        metrics=("accuracy", "f1"),
    )
