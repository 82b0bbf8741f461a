"""SQuAD 1.1: every question has an answer in its context. The official JSON files, or the hub's form."""

from __future__ import annotations

from typing import ClassVar

from octobert.core.results import ModelMetadata
from octobert.tasks._answering import Answering, WindowOptions
from octobert.tasks._task import NOTHING


class SquadOptions(WindowOptions):
    """The windows, and nothing else: columns and rules are the data set's."""

    description: ClassVar[str] = "SQuAD 1.1: every question has an answer; exact match and F1"
    files: ClassVar[tuple[str, ...]] = ("v1.1",)

    def build(self, metadata: ModelMetadata = NOTHING) -> Answering:
        """Return the task; nothing that a model states matters here."""
        return self.answering()
