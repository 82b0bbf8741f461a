"""Progress of long calls: the event that callbacks get, and the callback of a call. `progress` has one that draws."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

from octobert.core.errors import RecipeError
from octobert.core.plain import preview


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
        """The place of the step in the run, `5/19`; empty where a call is one step."""
        return f"{self.number:>{len(str(self.steps))}}/{self.steps}" if self.number else ""


ProgressCallback = Callable[[ProgressEvent], None]


def ignore(_: ProgressEvent) -> None:
    """The callback that shows nothing."""


@contextmanager
def shown(progress: ProgressCallback | None) -> Iterator[ProgressCallback]:
    """The callback of a call: the one that was given, or a progress bar in a notebook, or one that shows nothing."""
    if progress is not None and not callable(progress):
        raise RecipeError(
            "the callback is not a function",
            where="progress",
            got=preview(progress),
            fix="pass a function, or octobert.ProgressBar()",
        )
    if progress is not None:
        yield progress
    elif _in_notebook():
        from octobert.report.progress import ProgressBar

        with ProgressBar() as bar:
            yield bar
    else:
        yield ignore


def _in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    if "IPython" not in sys.modules:
        return False
    shell = sys.modules["IPython"].get_ipython()
    return type(shell).__name__ == "ZMQInteractiveShell"


@contextmanager
def progress_step(
    progress: ProgressCallback | None, name: str
) -> Iterator[Callable[[str, int, int], None]]:
    """Report a call as one step.

    Yields:
        A function to call with what is done now, the units done, and all units.
    """
    started = time.perf_counter()
    with shown(progress) as tell:
        tell(ProgressEvent(name, "started"))
        yield lambda what, done, total: tell(ProgressEvent(name, "running", what, done, total))
        tell(ProgressEvent(name, "finished", seconds=time.perf_counter() - started))
