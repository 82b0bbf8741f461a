"""Progress of long calls: the event that callbacks get, and a progress bar for terminals and notebooks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class ProgressEvent:
    """One step of progress.

    Args:
        step: Name of the step, such as `export/ort-cpu`; of a note, what it is about.
        state: What happened: the step has started, is running, has finished, or its stored result is reused. `note`: a sentence
            that the user should know before the run.
        detail: What the step does now; or the sentence.
        done: Units of `detail` that are done.
        total: Units of `detail`; 0 where the number is unknown.
        seconds: Duration of a finished step.
    """

    step: str
    state: Literal["started", "running", "finished", "reused", "note"]
    detail: str = ""
    done: int = 0
    total: int = 0
    seconds: float = 0.0


ProgressCallback = Callable[[ProgressEvent], None]


def ignore(_: ProgressEvent) -> None:
    """The callback that shows nothing."""


@contextmanager
def progress_step(progress: ProgressCallback | None, name: str) -> Iterator[Callable[[str, int, int], None]]:
    """Report a call as one step.

    Yields:
        A function to call with what is done now, the units done, and all units.
    """
    tell = progress or ignore
    started = time.perf_counter()
    tell(ProgressEvent(name, "started"))
    yield lambda what, done, total: tell(ProgressEvent(name, "running", what, done, total))
    tell(ProgressEvent(name, "finished", seconds=time.perf_counter() - started))


class ProgressBar:
    """A progress callback that draws a bar, in a terminal (on stderr) or in a notebook.

    It is a context manager. Elsewhere, and without `with`, it only prints one line for each finished step.

    Example:
        >>> with ProgressBar() as progress:                      # doctest: +SKIP
        ...     octobert.run("recipe.yaml", "out", progress=progress)
    """

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        console = Console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        drawn = console.is_terminal or console.is_jupyter
        self._bar = Progress(*columns, console=console, transient=True, disable=not drawn)
        self._task: Any = None

    def __enter__(self) -> ProgressBar:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def __call__(self, event: ProgressEvent) -> None:
        """Draw an event."""
        if event.state == "note":
            self._bar.console.print(f"! {event.detail}", highlight=False, markup=False)
            return
        if event.state in ("started", "running"):
            if self._task is None:
                self._task = self._bar.add_task(event.step, total=None)
            text = f"{event.step}: {event.detail}" if event.detail else event.step
            self._bar.update(self._task, description=text, completed=event.done, total=event.total or None)
            return
        if self._task is not None:
            self._bar.remove_task(self._task)
            self._task = None
        how = "reused" if event.state == "reused" else f"{event.seconds:.1f} s"
        self._bar.console.print(f"  {event.step:<28} {how}", highlight=False)
