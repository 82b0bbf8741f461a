"""MRPC, the Microsoft Research Paraphrase Corpus: do two sentences mean the same? Official MSR files or GLUE's."""

from typing import ClassVar

from octobert.core.results import ModelMetadata
from octobert.tasks._classification import Classification, LengthOptions, data_set
from octobert.tasks._task import NOTHING


class MRPCOptions(LengthOptions):
    """Args:
    max_length: tokens of a pair; by default the model's limit.
    """

    description: ClassVar[str] = "MRPC: paraphrase or not; accuracy and F1"

    def build(self, metadata: ModelMetadata = NOTHING) -> Classification:
        """Return the task for a model of two classes."""
        return data_set(
            (("not_equivalent",), ("equivalent",)),
            metadata,
            text=(("#1 String", "#2 String"), ("sentence1", "sentence2")),
            label=("Quality", "label"),
            metrics=("accuracy", "f1"),
            max_length=self.max_length,
        )
