"""SQuAD 2.0: a question may have no answer. The official JSON files, or the hub's form."""

from __future__ import annotations

from typing import ClassVar

from octobert.core.results import ModelMetadata
from octobert.tasks._answering import Answering, WindowOptions
from octobert.tasks._task import NOTHING


class SquadV2Options(WindowOptions):
    """Args:
    null_score_diff_threshold: the answer is "no answer" where its score exceeds that of the best answer by more than this.
        The metrics `best_f1_threshold` and `best_exact_threshold` say what would have been best on the evaluated rows.
    """

    description: ClassVar[str] = (
        "SQuAD 2.0: questions may have no answer; exact match and F1, of answerable and unanswerable ones too"
    )
    files: ClassVar[tuple[str, ...]] = ("v2.0",)

    null_score_diff_threshold: float = 0.0

    def build(self, metadata: ModelMetadata = NOTHING) -> Answering:
        """Return the task; nothing that a model states matters here."""
        return self.answering(threshold=self.null_score_diff_threshold)
