"""MRPC, the Microsoft Research Paraphrase Corpus: do two sentences mean the same? Official MSR files or GLUE's."""

from octobert.tasks._classification import LengthOptions, data_set

DESCRIPTION = "MRPC: paraphrase or not; accuracy and F1"


class Options(LengthOptions):
    """Args:
    max_length: tokens of a pair; by default the model's limit.
    """


build = data_set(
    (("not_equivalent",), ("equivalent",)),
    text=(("#1 String", "#2 String"), ("sentence1", "sentence2")),
    label=("Quality", "label"),
    metrics=("accuracy", "f1"),
)
