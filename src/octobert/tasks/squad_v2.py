"""SQuAD 2.0: a question may have no answer. The official JSON files, or the hub's form."""

from __future__ import annotations

from octobert.core.results import ModelMetadata
from octobert.tasks._answering import Answering, WindowOptions, answering
from octobert.tasks._task import NOTHING

DESCRIPTION = "SQuAD 2.0: questions may have no answer; exact match and F1, of answerable and unanswerable ones too"
# Which of several files of one split is meant, in a folder that holds both versions.
FILES = ("v2.0",)


class Options(WindowOptions):
    """Args:
    null_score_diff_threshold: the answer is "no answer" where its score exceeds that of the best answer by more than this.
        The metrics `best_f1_threshold` and `best_exact_threshold` say what would have been best on the evaluated rows.
    """

    null_score_diff_threshold: float = 0.0


def build(options: Options, metadata: ModelMetadata = NOTHING) -> Answering:
    """The task; nothing that a model states matters here."""
    return answering(options, threshold=options.null_score_diff_threshold)
