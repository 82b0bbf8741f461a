"""What a run does, as progress events: one at a time, although several steps may be at work."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from octobert.core.errors import StorageError
from octobert.core.progress import ProgressCallback, ProgressEvent
from octobert.engine import events
from octobert.engine.contract import Step
from octobert.engine.publishing import HIDDEN
from octobert.engine.store import Artifact

_LOG = logging.getLogger("octobert")


class Teller:
    """Tells a callback what a run does, and how long the rest of it takes by the times of earlier runs.

    Args:
        callback: called with each event.
        out: the output directory, whose earlier runs are known.
    """

    def __init__(self, callback: ProgressCallback, out: Path) -> None:
        self._callback, self._out = callback, out
        self._lock = threading.Lock()
        self._steps: Sequence[Step] = ()
        # Name of a step → its place in the run. The steps of a search are not planned, and have none.
        self._numbers: dict[str, int] = {}
        self._seconds: dict[str, float] = {}
        self._running: set[str] = set()

    def planned(self, steps: Sequence[Step]) -> None:
        """The steps of the run are known."""
        self._steps, self._seconds, self._running = steps, earlier_seconds(self._out), set()
        self._numbers = {step.name: number for number, step in enumerate(steps, start=1)}
        plan = {step.name: tuple(dict.fromkeys(step.needs.values())) for step in steps}
        self._tell(ProgressEvent("run", "planned", steps=len(plan), plan=plan))

    def started(self, step: Step) -> None:
        """A step begins."""
        _LOG.debug("%s: started", step.name)
        self._tell_step(step, "started", left_seconds=self.left_from(step))

    def progressed(self, step: Step, what: str, done: int, total: int) -> None:
        """A step is at work."""
        self._tell_step(step, "running", detail=what, done=done, total=total)

    def finished(self, step: Step, artifact: Artifact, *, reused: bool) -> None:
        """A step has its result."""
        state: Literal["reused", "finished"] = "reused" if reused else "finished"
        _LOG.debug("%s: %s, key %s", step.name, state, artifact.key)
        self._tell_step(step, state, seconds=artifact.seconds)

    def searched(
        self, detail: str, best: str, done: int, total: int, seconds: float, minutes: float | None
    ) -> None:
        """Tell how far a search is.

        Args:
            detail: in words.
            best: name of the best variant until now; empty before the first one.
            done, total: variants that were tried, and that are known.
            seconds: since the search began.
            minutes: its time limit; None where there is none.
        """
        left = None if minutes is None else max(0.0, 60 * minutes - seconds)
        self._tell(
            ProgressEvent(
                "search", "searching", detail, done, total, seconds, left_seconds=left, best=best
            )
        )

    def left_from(self, step: Step) -> float | None:
        """Seconds from the start of a step to the end; None unless every step until then has run here before."""
        if step.name not in self._numbers:
            return None
        self._running.add(step.name)
        running, left = set(self._running), 0.0
        for later in self._steps[self._numbers[step.name] - 1 :]:
            # A step whose inputs are not made anew will be reused.
            if later is step or running & set(later.needs.values()):
                running.add(later.name)
                if later.name not in self._seconds:
                    return None
                left += self._seconds[later.name]
        return left

    def _tell_step(
        self, step: Step, state: Literal["started", "running", "finished", "reused"], **facts: Any
    ) -> None:
        number, steps = self._numbers.get(step.name, 0), len(self._numbers)
        self._tell(ProgressEvent(step.name, state, number=number, steps=steps, **facts))

    def _tell(self, event: ProgressEvent) -> None:
        with self._lock:
            self._callback(event)


def earlier_seconds(out: Path) -> dict[str, float]:
    """How long each step took when it last ran for an output directory, as its events say."""
    seconds = {}
    with suppress(StorageError):
        for event in events.read(out / HIDDEN / events.FILE):
            with suppress(ValueError, KeyError, TypeError):
                if event["event"] == "finished":
                    seconds[str(event["step"])] = float(event["seconds"])
    return seconds
