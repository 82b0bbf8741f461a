"""Progress of long calls: the event that callbacks get, and a progress bar for terminals and notebooks."""

from __future__ import annotations

import importlib.util
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from octobert.core.errors import RecipeError
from octobert.core.plain import preview
from octobert.report.events import ProgressCallback, ProgressEvent, ignore

if TYPE_CHECKING:
    from rich.console import Group

# Pictures per second.
_FRAMES = 8
# Seconds between lines on what is at work, where nothing can be drawn.
_REMIND_S = 30.0


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


class ProgressBar:
    """A progress callback that draws a run while it goes on, in a terminal (on stderr) or in a notebook.

    It is a context manager. It shows the steps of the run as a graph (✓ done, ↺ reused, · waiting), what is at work with its
    rate and the time left, and of a search for the best model how far it is. The graph stays when the run has ended, also
    where it has failed. A call that is one step leaves one line.

    Elsewhere it prints one line for each finished step, for each new best variant of a search, and every half minute what is at
    work. Without `with` it prints the first two only.

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
        is_notebook = (
            self._console.is_jupyter and importlib.util.find_spec("ipywidgets") is not None
        )
        self._can_draw = is_terminal or is_notebook
        self._marks = Marks.of(self._console.encoding)
        self._view = View(self._marks)
        # Events come from several threads, and the lines are made in another one.
        self._lock = threading.Lock()
        options: dict[str, Any] = {
            "transient": True,
            "refresh_per_second": _FRAMES,
            "vertical_overflow": "crop",
        }
        self._live = Live(console=self._console, get_renderable=self._drawn, **options)
        self._best = ""
        self._ended = threading.Event()

    def __enter__(self) -> ProgressBar:
        from octobert.report.live import View

        self._view = View(self._marks)
        if self._can_draw:
            self._live.start()
        else:
            self._ended.clear()
            threading.Thread(target=self._remind, name="octobert-progress", daemon=True).start()
        return self

    def _remind(self) -> None:
        """Say what is at work, again and again until the end."""
        while not self._ended.wait(_REMIND_S):
            with self._lock:
                lines = self._view.reminders()
            for line in lines:
                self._say(f"  {line}")

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        drawn = self._live.is_started
        self._live.stop()
        self._ended.set()
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
            told = not (self._live.is_started and self._view.planned) and not (
                searching and not event.number
            )
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
