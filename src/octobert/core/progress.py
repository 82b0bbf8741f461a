"""Progress of long calls: the event that callbacks get. `progress` has a callback that draws."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class ProgressEvent:
    """One step of progress. A callback ignores states that it does not know; later versions may have more.

    Args:
        step: Name of the step, such as `export/ort-cpu`; of a note, what it is about.
        state: What happened: the step has started, is running, has finished, or its stored result is reused. `note`: a sentence
            that the user should know before the run. `searching`: how far a search for the best model is. `planned`: the steps
            of the run, before the first of them; after a search, those of the final run.
        detail: What the step does now; or the sentence.
        done: Units of `detail` that are done; of a search, variants that were tried.
        total: Units of `detail`; 0 where the number is unknown. Of a search, variants that are known.
        seconds: Duration of a finished step; of a search, since it began.
        number: Place of the step in the run, from 1; 0 where a call is one step, and for the steps of a search.
        steps: Number of steps of the run.
        left_seconds: How long the rest of the run takes, by the times of an earlier run in the same output directory; of a
            search, until its time limit. None where that is not known.
        best: Of a search: name of the best variant until now; empty before the first one.
        plan: Of `planned`: name of each step → names of the steps whose results it reads, in the order in which they run.
    """

    step: str
    state: Literal["started", "running", "finished", "reused", "note", "searching", "planned"]
    detail: str = ""
    done: int = 0
    total: int = 0
    seconds: float = 0.0
    number: int = 0
    steps: int = 0
    left_seconds: float | None = None
    best: str = ""
    plan: Mapping[str, tuple[str, ...]] = field(default_factory=dict, hash=False)

    @property
    def place(self) -> str:
        """Return the place of the step in the run, `5/19`; empty where a call is one step."""
        return f"{self.number:>{len(str(self.steps))}}/{self.steps}" if self.number else ""


ProgressCallback = Callable[[ProgressEvent], None]


def ignore(_: ProgressEvent) -> None:
    """The callback that shows nothing."""
