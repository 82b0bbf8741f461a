"""Extractive question answering on any data with questions, contexts and answers."""

from __future__ import annotations

from octobert.core.results import ModelMetadata
from octobert.tasks._answering import Answering, WindowOptions, answering
from octobert.tasks._task import NOTHING

DESCRIPTION = "find the answer to a question in a context; exact match and F1, with or without unanswerable questions"


class Options(WindowOptions):
    """Args:
    question, context, answers: columns.
    unanswerable: a question may have no answer, as in SQuAD 2.0.
    null_score_diff_threshold: the answer is "no answer" where its score exceeds that of the best answer by more than this.
    """

    question: str = "question"
    context: str = "context"
    answers: str = "answers"
    unanswerable: bool = False
    null_score_diff_threshold: float = 0.0


def build(options: Options, metadata: ModelMetadata = NOTHING) -> Answering:
    """The task; nothing that a model states matters here."""
    threshold = options.null_score_diff_threshold if options.unanswerable else None
    return answering(options, (options.question, options.context, options.answers), threshold)
