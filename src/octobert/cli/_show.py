"""What commands share: JSON on stdout, messages for people on stderr, progress."""

from __future__ import annotations

import logging
import shutil
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from octobert.core.files import storage_errors
from octobert.core.plain import as_json, printable, printable_json

if TYPE_CHECKING:
    from octobert.core.progress import ProgressCallback

# Groups of commands in `octobert --help`, in order.
MAKE, USE, LOOK = "Make models", "Use models", "Look up and clean up"
PANELS = (MAKE, USE, LOOK)
# Columns that a text beside its name always gets.
_LEAST = 20


@dataclass
class _Verbosity:
    verbose: bool = False
    quiet: bool = False
    json: bool = False


verbosity = _Verbosity()


def set_verbosity(*, json: bool = False, verbose: bool = False, quiet: bool = False) -> None:
    """Apply the options of every command. `--verbose` and `--quiet` may stand before the command or after it.

    Args:
        json: Print one JSON document on stdout.
        verbose: Print debug messages, and full tracebacks of errors.
        quiet: Print no progress and no notes.
    """
    verbosity.verbose |= verbose
    verbosity.quiet |= quiet
    verbosity.json = json
    if verbosity.verbose:
        show_log()
        logging.getLogger("octobert").setLevel(logging.DEBUG)


def show_log() -> None:
    """Print octobert's log on stderr."""
    logging.basicConfig(handlers=[_LogLines()])


def line(text: str = "", *, err: bool = False) -> None:
    """Print a text for people, on stdout unless that has a JSON document."""
    if err or not verbosity.json:
        typer.echo(printable(text), err=err)


def item(name: str, text: str, *, column: int) -> None:
    """Print a text beside its name. In a terminal, its further lines begin below the first one.

    Args:
        column: width of the names.
    """
    head, lines = f"{name:<{column}} ", [text]
    if sys.stdout.isatty():
        room = max(_LEAST, shutil.get_terminal_size().columns - len(head))
        lines = textwrap.wrap(text, room, break_long_words=False, break_on_hyphens=False) or [""]
    line(head + f"\n{'':<{len(head)}}".join(lines))


class _LogLines(logging.StreamHandler[Any]):
    """Log records as lines on stderr."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(f"{record.name}: {super().format(record)}")


def document(data: Any, indent: int | None = 1) -> None:
    """Print one JSON document of plain data, paths and records."""

    def plain(value: Any) -> Any:
        return str(value) if isinstance(value, Path) else value.model_dump(mode="json")

    typer.echo(printable_json(as_json(data, plain, indent=indent)))


def note(text: str) -> None:
    """Print a message for people on stderr."""
    if not verbosity.quiet:
        line(text, err=True)


def write(path: Path, text: str) -> None:
    """Write a file that an option names. Its folder is made where it is not there.

    Raises:
        StorageError: It cannot be written.
    """
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        # Not by renaming: it can be a pipe, or /dev/stdout.
        path.write_text(text, encoding="utf-8")


def asks() -> bool:
    """True where somebody can be asked."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def confirmed(question: str, *, unasked: bool = False) -> bool:
    """True where the user says yes.

    Args:
        unasked: the answer where nobody can be asked.
    """
    return typer.confirm(question, err=True) if asks() else unasked


def render(*parts: Any) -> None:
    """Print tables, unless stdout has a JSON document. Where it is not a terminal they are printed 200 columns wide."""
    from octobert.report.tables import PlainConsole

    if verbosity.json:
        return
    console = PlainConsole(width=None if sys.stdout.isatty() else 200)
    for part in parts:
        console.print(part)


@contextmanager
def progress() -> Iterator[ProgressCallback]:
    """A callback that shows progress on stderr."""
    from octobert.core.progress import ignore
    from octobert.report.progress import ProgressBar

    if verbosity.quiet:
        yield ignore
        return
    with ProgressBar() as bar:
        yield bar


@contextmanager
def progress_of_run() -> Iterator[ProgressCallback]:
    """Progress of a run. An interrupted run can be resumed."""
    try:
        with progress() as callback:
            yield callback
    except KeyboardInterrupt:
        note("octobert: interrupted; the same command resumes.")
        raise typer.Exit(130) from None
