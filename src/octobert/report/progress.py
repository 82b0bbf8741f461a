"""Progress of long calls: the event that callbacks get, and a progress bar for terminals and notebooks."""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from octobert.core.errors import RecipeError


@dataclass(frozen=True)
class ProgressEvent:
    """One step of progress.

    Args:
        step: Name of the step, such as `export/ort-cpu`; of a note, what it is about.
        state: What happened: the step has started, is running, has finished, or its stored result is reused. `note`: a sentence
            that the user should know before the run. `searching`: how far a search for the best model is.
        detail: What the step does now; or the sentence.
        done: Units of `detail` that are done; of a search, variants that were tried.
        total: Units of `detail`; 0 where the number is unknown. Of a search, variants that are known.
        seconds: Duration of a finished step; of a search, since it began.
        number: Place of the step in the run, from 1; 0 where a call is one step, and for the steps of a search.
        steps: Number of steps of the run.
        left_seconds: How long the rest of the run takes, by the times of an earlier run in the same output directory; of a
            search, until its time limit. None where that is not known.
        best: Of a search: name of the best variant until now; empty before the first one.
    """

    step: str
    state: Literal["started", "running", "finished", "reused", "note", "searching"]
    detail: str = ""
    done: int = 0
    total: int = 0
    seconds: float = 0.0
    number: int = 0
    steps: int = 0
    left_seconds: float | None = None
    best: str = ""

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
        fix = "pass a function, or octobert.ProgressBar()"
        raise RecipeError("the callback is not a function", where="progress", got=repr(progress)[:100], fix=fix)
    if progress is not None:
        yield progress
    elif _in_notebook():
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
def progress_step(progress: ProgressCallback | None, name: str) -> Iterator[Callable[[str, int, int], None]]:
    """Report a call as one step.

    Yields:
        A function to call with what is done now, the units done, and all units.
    """
    started = time.perf_counter()
    with shown(progress) as tell:
        tell(ProgressEvent(name, "started"))
        yield lambda what, done, total: tell(ProgressEvent(name, "running", what, done, total))
        tell(ProgressEvent(name, "finished", seconds=time.perf_counter() - started))


class ProgressBar:
    """A progress callback that draws a bar, in a terminal (on stderr) or in a notebook.

    It is a context manager. Elsewhere, and without `with`, it only prints one line for each finished step. The bar shows the
    place of the step in the run, what the step does, the time since the beginning, and the time left where it is known. Of a
    search for the best model, a line above the bar says how far it is. That line is also printed for each new best variant,
    and none for the many steps.

    Example:
        >>> with ProgressBar() as progress:                      # doctest: +SKIP
        ...     octobert.run("recipe.yaml", "out", progress=progress)
    """

    def __init__(self) -> None:
        from rich.console import RenderableType
        from rich.progress import BarColumn, Progress, TextColumn
        from rich.table import Column
        from rich.text import Text

        from octobert.report.console import PlainConsole

        class Lines(Progress):
            """The bar, below what is said of a search."""

            search = ""

            def get_renderables(self) -> Iterator[RenderableType]:
                if self.search:
                    yield Text(self.search, no_wrap=True, overflow="ellipsis")
                yield from super().get_renderables()

        console = PlainConsole(stderr=True)
        # Where ipywidgets is missing, a notebook cannot draw a bar.
        drawn = console.is_terminal or (console.is_jupyter and importlib.util.find_spec("ipywidgets") is not None)
        columns = (
            TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True)),
            BarColumn(bar_width=12),
            TextColumn("{task.fields[clock]}", table_column=Column(no_wrap=True)),
            TextColumn("{task.fields[detail]}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis")),
        )
        self._bar = Lines(*columns, console=console, transient=True, disable=not drawn)
        self._task: Any = None
        self._best = ""
        self._clock = _Clock()

    def __enter__(self) -> ProgressBar:
        self._clock = _Clock()
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def __call__(self, event: ProgressEvent) -> None:
        """Draw an event."""
        if event.state == "note":
            self._bar.console.print(f"! {event.detail}")
        elif event.state == "searching":
            self._bar.search = event.detail
            self._clock.expect(event.left_seconds)
            if event.best != self._best:
                self._best = event.best
                self._bar.console.print(f"  {event.detail}")
        else:
            # A planned step comes after the search.
            self._bar.search = "" if event.number else self._bar.search
            self._draw_step(event)

    def _draw_step(self, event: ProgressEvent) -> None:
        name = f"{event.place} {event.step}".lstrip()
        if event.state in ("started", "running"):
            if event.state == "started" and not self._bar.search:
                self._clock.expect(event.left_seconds)
            count = f" {event.done}/{event.total}" if event.total else ""
            facts: dict[str, Any] = {"completed": event.done, "total": event.total or None, "detail": event.detail + count}
            if self._task is None:
                self._task = self._bar.add_task(name, **facts, clock=self._clock)
            self._bar.update(self._task, description=name, **facts)
            return
        if self._task is not None:
            self._bar.remove_task(self._task)
            self._task = None
        if not self._bar.search:
            how = "reused" if event.state == "reused" else f"{event.seconds:.1f} s"
            self._bar.console.print(f"  {name:<34} {how}")


class _Clock:
    """The time since the beginning, and the time left; its text is new each time that it is drawn."""

    def __init__(self) -> None:
        self._started = time.perf_counter()
        self._ends: float | None = None

    def expect(self, left_seconds: float | None) -> None:
        """Take over an estimate; None where there is none."""
        self._ends = None if left_seconds is None else time.perf_counter() + left_seconds

    def __str__(self) -> str:
        now = time.perf_counter()
        left = "" if self._ends is None or self._ends <= now else f", about {duration(self._ends - now)} left"
        return f"{duration(now - self._started)}{left}"


def duration(seconds: float) -> str:
    """Format a time for people.

    Example:
        >>> duration(7.2), duration(83), duration(3700)
        ('0:07', '1:23', '1:01:40')
    """
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
