"""What commands share: JSON on stdout, messages for people on stderr, progress, and the options that every command has."""

from __future__ import annotations

import functools
import inspect
import json
import logging
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from octobert.core.plain import printable, printable_json

if TYPE_CHECKING:
    from octobert.report.progress import ProgressCallback

# Groups of commands in `octobert --help`, in order.
MAKE, USE, LOOK = "Make models", "Use models", "Look up and clean up"
PANELS = (MAKE, USE, LOOK)
# Groups of options.
RECIPE_PANEL, GENERAL_PANEL = "Recipe keys", "General"

# Columns that a text beside its name always gets.
_LEAST = 20

CACHE_HELP = "Folder where the runtime stores compiled models, to open them faster the next time."
RUNTIME_LOG_HELP = "Print the runtime's log on stderr."
FALLBACK_HELP = "Run operators on the CPU that the target's device does not support, instead of failing."
DEVICE_HELP = "For OpenVINO targets: CPU, GPU, NPU, AUTO, MULTI:… or HETERO:…. Default: the target's."
JSON_OPTION = typer.Option(False, "--json", help="Print one JSON document on stdout.", rich_help_panel=GENERAL_PANEL)


@dataclass
class _Verbosity:
    verbose: bool = False
    quiet: bool = False


verbosity = _Verbosity()


def with_general_options(command: Callable[..., None]) -> Callable[..., None]:
    """The command with `--verbose` and `--quiet`."""

    def parameter(name: str, text: str) -> inspect.Parameter:
        option = typer.Option(f"--{name}", f"-{name[0]}", help=text, rich_help_panel=GENERAL_PANEL)
        kind = inspect.Parameter.KEYWORD_ONLY
        return inspect.Parameter(name, kind, default=False, annotation=Annotated[bool, option])

    @functools.wraps(command)
    def wrapped(*arguments: Any, verbose: bool = False, quiet: bool = False, **options: Any) -> None:
        set_verbosity(verbose=verbose, quiet=quiet)
        command(*arguments, **options)

    added = [
        parameter("verbose", "Print debug messages, and full tracebacks of errors."),
        parameter("quiet", "Print no progress and no notes."),
    ]
    return with_parameters(wrapped, command, added)


def with_parameters(
    wrapped: Callable[..., None], command: Callable[..., None], added: Sequence[inspect.Parameter], without: Iterable[str] = ()
) -> Callable[..., None]:
    """Give a wrapper the signature of its command, with parameters added and left out; typer makes options of it."""
    own = inspect.signature(command, eval_str=True).parameters.values()
    named = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own if p.name not in without]
    signature = inspect.Signature([*named, *added])
    wrapped.__signature__ = signature  # type: ignore[attr-defined]
    wrapped.__annotations__ = {p.name: p.annotation for p in signature.parameters.values()}
    return wrapped


def set_verbosity(*, verbose: bool, quiet: bool) -> None:
    """Apply `--verbose` and `--quiet`, which may stand before the command or after it."""
    verbosity.verbose |= verbose
    verbosity.quiet |= quiet
    if verbosity.verbose:
        show_log()
        logging.getLogger("octobert").setLevel(logging.DEBUG)


def show_log() -> None:
    """Print octobert's log on stderr."""
    logging.basicConfig(handlers=[_LogLines()])


def line(text: str = "", *, err: bool = False) -> None:
    """Print a text: everything that commands print and that is neither JSON nor a table."""
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


def document(data: Any) -> None:
    """Print one JSON document."""
    typer.echo(printable_json(json.dumps(data, indent=1, ensure_ascii=False)))


def note(text: str) -> None:
    """Print a message for people on stderr."""
    if not verbosity.quiet:
        line(text, err=True)


def confirmed(question: str) -> bool:
    """Whether the user says yes; no where nobody can be asked."""
    return sys.stdin.isatty() and sys.stderr.isatty() and typer.confirm(question, err=True)


def split_names(values: Iterable[str] | None) -> list[str]:
    """Names from options that are given several times or with commas."""
    return [name.strip() for value in values or () for name in value.split(",") if name.strip()]


def render(*parts: Any) -> None:
    """Print tables. Where the output is not a terminal they are printed 200 columns wide."""
    from octobert.report.console import PlainConsole

    console = PlainConsole(width=None if sys.stdout.isatty() else 200)
    for part in parts:
        console.print(part)


@contextmanager
def progress() -> Iterator[ProgressCallback]:
    """A callback that shows progress on stderr."""
    from octobert.report.progress import ProgressBar, ignore

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
