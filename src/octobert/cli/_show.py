"""What commands share: JSON on stdout, people on stderr, progress of a run."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from rich.progress import Progress

    from octobert.inference.settings import Goal
    from octobert.pipeline.runner import Step
    from octobert.pipeline.store import Artifact

CACHE_HELP = "Folder where the runtime keeps what it compiled, so that it opens faster the next time."
RUNTIME_LOG_HELP = "Have the runtime say what it does, on stderr."
FALLBACK_HELP = "Run on the CPU what the target's device does not take, instead of saying so."
JSON_OPTION = typer.Option(False, "--json", help="Print one JSON document on stdout.")


def document(data: Any) -> None:
    """Print one JSON document."""
    typer.echo(json.dumps(data, indent=1, ensure_ascii=False))


def note(text: str) -> None:
    """Say something to people."""
    typer.echo(text, err=True)


def split_names(given: list[str] | None) -> list[str]:
    """Names given one by one or with commas between them."""
    return [name.strip() for one in given or [] for name in one.split(",") if name.strip()]


def goal_named(name: str) -> Goal:
    """A goal by its name.

    Raises:
        DataError: there is none of that name.
    """
    from octobert.core.errors import DataError
    from octobert.inference.settings import GOALS

    found = next((goal for goal in GOALS if goal == name), None)
    if found is None:
        raise DataError("there is no such goal", where="--goal", got=name, expected=" or ".join(GOALS))
    return found


def render(*parts: Any) -> None:
    """Print tables; wide enough for them when the output is not a terminal."""
    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else 200)
    for part in parts:
        console.print(part)


class Bar:
    """One progress bar on stderr, for a command that does one long thing."""

    def __init__(self) -> None:
        self._bar = _progress()
        self._task: Any = None

    def __enter__(self) -> Bar:
        self._bar.start()
        self._task = self._bar.add_task("", total=None)
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def update(self, what: str, done: int, total: int) -> None:
        """Show how far it is."""
        self._bar.update(self._task, description=what, completed=done, total=total)


def _progress() -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


class ProgressLine:
    """A listener that draws one line a step on stderr: a bar where there is a terminal, plain lines where there is not."""

    def __init__(self) -> None:
        self._bar = _progress()
        self._task: Any = None
        self._bar.start()

    def started(self, step: Step) -> None:
        self._task = self._bar.add_task(step.name, total=None)

    def progressed(self, step: Step, what: str, done: int, total: int) -> None:
        self._bar.update(self._task, description=f"{step.name}: {what}", completed=done, total=total)

    def finished(self, step: Step, artifact: Artifact, reused: bool) -> None:
        if self._task is not None:
            self._bar.remove_task(self._task)
            self._task = None
        how = "reused" if reused else f"{artifact.seconds:.1f} s"
        self._bar.console.print(f"  {step.name:<28} {how}", highlight=False)

    def close(self) -> None:
        """Give the terminal back."""
        self._bar.stop()


@contextmanager
def progress_of_run() -> Iterator[ProgressLine]:
    """Progress of a run that can be interrupted, and goes on when it is started again."""
    progress = ProgressLine()
    try:
        yield progress
    except KeyboardInterrupt:
        note("octobert: interrupted; the same command resumes.")
        raise typer.Exit(130) from None
    finally:
        progress.close()
