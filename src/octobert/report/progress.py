"""A progress callback for terminals and notebooks, drawn by rich: what is at work, how much is done, and what is left."""

from __future__ import annotations

import importlib.util
import threading
import time
from dataclasses import dataclass

from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Column
from rich.text import Text

from octobert.core.plain import printable
from octobert.core.progress import ProgressEvent
from octobert.core.wording import duration
from octobert.report.tables import PlainConsole

# Pictures per second.
_FRAMES = 8
# Seconds between lines on what is at work, where nothing can be drawn.
_REMIND_S = 30.0
# Steps at work that have a line of their own.
_AT_WORK = 4


@dataclass
class _Step:
    """A step at work.

    Args:
        began: when it started, in seconds of a clock.
        told: what it does, and how much of it is done.
        task: its line.
    """

    began: float
    told: str
    task: TaskID


class _Left(ProgressColumn):
    """How long the whole takes from now on."""

    def render(self, task: Task) -> Text:
        """Draw it; nothing where that is not known, or took longer."""
        left = (task.fields["ends"] or 0.0) - time.perf_counter()
        return Text(f"about {duration(left)} left" if left > 0 else "")


class ProgressBar:
    """A progress callback that draws a run while it goes on, in a terminal (on stderr) or in a notebook.

    It is a context manager. It shows the steps at work with a bar, how many of all are done and how long the rest takes, and of
    a search for the best model how far it is. Each finished step leaves a line, and each new best variant of a search.

    Elsewhere it prints these lines only, and every half minute what is at work (within `with`).

    Example:
        >>> with ProgressBar() as progress:                      # doctest: +SKIP
        ...     octobert.run("recipe.yaml", "out", progress=progress)
    """

    def __init__(self) -> None:
        self._console = PlainConsole(stderr=True)
        is_terminal = self._console.is_terminal and not self._console.is_dumb_terminal
        # Where ipywidgets is missing, a notebook cannot draw.
        is_notebook = (
            self._console.is_jupyter and importlib.util.find_spec("ipywidgets") is not None
        )
        text = Column(no_wrap=True, overflow="ellipsis", ratio=1)
        self._drawn = Progress(
            SpinnerColumn("line" if self._console.options.ascii_only else "dots"),
            TextColumn("{task.description}", markup=False, table_column=text),
            BarColumn(bar_width=10),
            TimeElapsedColumn(),
            _Left(),
            console=self._console,
            transient=True,
            refresh_per_second=_FRAMES,
            expand=True,
            disable=not (is_terminal or is_notebook),
        )
        # Events come from several threads.
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._begin()

    def _begin(self) -> None:
        self._began, self._at_work = time.perf_counter(), dict[str, _Step]()
        self._planned = self._done = 0
        self._search = self._best = ""
        self._whole: TaskID | None = None

    def __enter__(self) -> ProgressBar:
        self._begin()
        self._drawn.start()
        if self._drawn.disable:
            self._ended.clear()
            threading.Thread(target=self._remind, name="octobert-progress", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._drawn.stop()
        if self._planned and not self._drawn.disable:
            took = duration(time.perf_counter() - self._began)
            self._say(f"{self._done} of {self._planned} steps in {took}")

    def __call__(self, event: ProgressEvent) -> None:
        """Draw an event, or print it."""
        with self._lock:
            self._take(event)

    def _take(self, event: ProgressEvent) -> None:
        if event.state == "note":
            self._say(f"! {event.detail}")
        elif event.state == "planned":
            self._planned, self._search = len(event.plan), ""
            self._show_whole(None)
        elif event.state == "searching":
            self._search = event.detail
            self._show_whole(event.left_seconds)
            if event.best != self._best:
                self._best = event.best
                self._say(f"  {event.detail}")
        elif event.state in ("finished", "reused"):
            self._finish(event)
        else:
            self._work(event)

    def _work(self, event: ProgressEvent) -> None:
        """A step begins, or goes on."""
        if event.step not in self._at_work:
            task = self._drawn.add_task(_one_line(event.step), total=None, ends=None)
            self._at_work[event.step] = _Step(time.perf_counter(), "", task)
        step = self._at_work[event.step]
        count = f" {event.done}/{event.total}" if event.total else ""
        step.told = f"{event.detail}{count}".strip()
        for index, other in enumerate(self._at_work.values()):
            shown = index >= len(self._at_work) - _AT_WORK
            self._drawn.update(other.task, visible=shown)
        self._drawn.update(
            step.task,
            description=_one_line(f"{event.step}  {step.told}"),
            completed=event.done,
            total=event.total or None,
        )
        if event.state == "started" and event.number:
            self._search = ""
            self._show_whole(event.left_seconds)

    def _finish(self, event: ProgressEvent) -> None:
        """A step has its result. Those of a search are many, and not printed."""
        if event.step in self._at_work:
            self._drawn.remove_task(self._at_work.pop(event.step).task)
        self._done += bool(event.number)
        if event.number or not self._search:
            name = f"{event.place} {event.step}".lstrip()
            how = "reused" if event.state == "reused" else f"{event.seconds:.1f} s"
            self._say(f"  {name:<34} {how}")

    def _show_whole(self, left_seconds: float | None) -> None:
        """The line on the whole run, or on the search."""
        if self._whole is None:
            self._whole = self._drawn.add_task("", total=None, ends=None)
        self._drawn.update(
            self._whole,
            description=_one_line(self._search or f"{self._done} of {self._planned} steps"),
            completed=self._done,
            total=None if self._search else self._planned,
            ends=None if left_seconds is None else time.perf_counter() + left_seconds,
        )

    def _remind(self) -> None:
        """Say what is at work, again and again until the end."""
        while not self._ended.wait(_REMIND_S):
            with self._lock:
                lines = self._reminders()
            for line in lines:
                self._say(f"  {line}")

    def _reminders(self) -> list[str]:
        """What is at work: `still working on capture (1:30): capturing 1/2`; during a search also how far it is."""
        now, lines = time.perf_counter(), [self._search] if self._search else []
        for name, step in list(self._at_work.items())[-_AT_WORK:]:
            told = f": {step.told}" if step.told else ""
            lines.append(f"still working on {name} ({duration(now - step.began)}){told}")
        return lines

    def _say(self, text: str) -> None:
        """Print a text: one line in a file, wrapped in a terminal."""
        self._console.print(Text(text), soft_wrap=not self._console.is_terminal)


def _one_line(text: str) -> str:
    return " ".join(printable(text).split())
