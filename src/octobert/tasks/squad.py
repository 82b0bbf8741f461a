"""SQuAD 1.1: every question has an answer in its context. The official JSON files, or the hub's form."""

from __future__ import annotations

from octobert.core.results import ModelMetadata
from octobert.tasks._answering import Answering, WindowOptions, answering
from octobert.tasks._task import NOTHING

DESCRIPTION = "SQuAD 1.1: every question has an answer; exact match and F1"
# Which of several files of one split is meant, in a folder that holds both versions.
FILES = ("v1.1",)


class Options(WindowOptions):
    """The windows, and nothing else: columns and rules are the data set's."""


def build(options: Options, metadata: ModelMetadata = NOTHING) -> Answering:
    """The task; nothing that a model states matters here."""
    return answering(options)
