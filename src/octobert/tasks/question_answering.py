"""Extractive question answering on any data with questions, contexts and answers."""

from __future__ import annotations

from typing import ClassVar

from octobert.core.results import ModelMetadata
from octobert.tasks._answering import Answering, WindowOptions
from octobert.tasks._task import NOTHING


class QuestionAnsweringOptions(WindowOptions):
    """Args:
    question, context, answers: columns.
    unanswerable: a question may have no answer, as in SQuAD 2.0.
    null_score_diff_threshold: the answer is "no answer" where its score exceeds that of the best answer by more than this.
    """

    description: ClassVar[str] = (
        "find the answer to a question in a context; exact match and F1, with or without unanswerable questions"
    )

    question: str = "question"
    context: str = "context"
    answers: str = "answers"
    unanswerable: bool = False
    null_score_diff_threshold: float = 0.0

    def build(self, metadata: ModelMetadata = NOTHING) -> Answering:
        """Return the task; nothing that a model states matters here."""
        threshold = self.null_score_diff_threshold if self.unanswerable else None
        return self.answering((self.question, self.context, self.answers), threshold)
