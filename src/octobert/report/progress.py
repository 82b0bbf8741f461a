"""Progress of long calls: the event that callbacks get, and a progress bar for terminals and notebooks."""

from __future__ import annotations

import importlib.util
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from octobert.core.errors import RecipeError

if TYPE_CHECKING:
    from rich.console import Group

# Pictures per second.
_FRAMES = 8


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
    """A progress callback that draws a run while it goes on, in a terminal (on stderr) or in a notebook.

    It is a context manager. It shows the steps of the run as a graph (✓ done, ↺ reused, · waiting), what is at work with its
    rate and the time left, and of a search for the best model how far it is. The graph stays when the run has ended, also
    where it has failed. A call that is one step leaves one line.

    Elsewhere, and without `with`, it only prints one line for each finished step, and for each new best variant of a search.

    Example:
        >>> with ProgressBar() as progress:                      # doctest: +SKIP
        ...     octobert.run("recipe.yaml", "out", progress=progress)
    """

    def __init__(self) -> None:
        from rich.live import Live

        from octobert.report.console import PlainConsole
        from octobert.report.live import Marks, View

        self._console = PlainConsole(stderr=True)
        is_terminal = self._console.is_terminal and not self._console.is_dumb_terminal
        # Where ipywidgets is missing, a notebook cannot draw.
        is_notebook = self._console.is_jupyter and importlib.util.find_spec("ipywidgets") is not None
        self._can_draw = is_terminal or is_notebook
        self._marks = Marks.of(self._console.encoding)
        self._view = View(self._marks)
        # Events come from several threads, and the lines are made in another one.
        self._lock = threading.Lock()
        options: dict[str, Any] = {"transient": True, "refresh_per_second": _FRAMES, "vertical_overflow": "crop"}
        self._live = Live(console=self._console, get_renderable=self._drawn, **options)
        self._best = ""

    def __enter__(self) -> ProgressBar:
        from octobert.report.live import View

        self._view = View(self._marks)
        if self._can_draw:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        drawn = self._live.is_started
        self._live.stop()
        if kind is not None:
            self._view.fail()
        if drawn:
            for line in self._view.summary(self._console.width):
                self._console.print(line)

    def _drawn(self) -> Group:
        from rich.console import Group

        with self._lock:
            # The last column stays free: some terminals wrap a line that reaches it.
            return Group(*self._view.lines(self._console.width - 1, self._console.height))

    def __call__(self, event: ProgressEvent) -> None:
        """Draw an event, or print it."""
        with self._lock:
            searching = self._view.searching
            self._view.take(event)
            # The graph shows the planned steps.
            told = not (self._live.is_started and self._view.planned) and not (searching and not event.number)
        # Printing draws the view anew, which takes the lock.
        if event.state == "note":
            self._say(f"! {event.detail}")
        elif event.state == "searching" and event.best != self._best:
            self._best = event.best
            self._say(f"  {event.detail}")
        elif event.state in ("finished", "reused") and told:
            name = f"{event.place} {event.step}".lstrip()
            how = "reused" if event.state == "reused" else f"{event.seconds:.1f} s"
            self._say(f"  {name:<34} {how}")

    def _say(self, text: str) -> None:
        """Print a text: one line in a file, wrapped in a terminal."""
        self._console.print(text, soft_wrap=not self._console.is_terminal)


def duration(seconds: float) -> str:
    """Format a time for people.

    Example:
        >>> duration(7.2), duration(83), duration(3700)
        ('0:07', '1:23', '1:01:40')
    """
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
