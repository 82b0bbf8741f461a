"""The `octobert` program: finds its commands, and turns errors into a message and an exit code.

A command is a file of this folder: its name is the command's name, and its function `command` has the options. Files whose
names start with an underscore are shared code. Other packages add commands through entry points of the group
`octobert.commands`; the value is a module with a function `command`.
"""

from __future__ import annotations

import codecs
import contextlib
import functools
import importlib
import io
import os
import pkgutil
import sys
import traceback
import warnings
from types import ModuleType
from typing import Any

import typer
from typer.core import TyperGroup

import octobert
from octobert import cli
from octobert.cli import _options, _show
from octobert.core import plugins
from octobert.core.errors import (
    BrokenPluginWarning,
    DownloadWarning,
    IgnoredFileWarning,
    OctobertError,
    OtherMachineWarning,
    PublishedFileWarning,
    StorageError,
    TokenWarning,
    did_you_mean,
)
from octobert.core.files import file_error

_WARNINGS = (
    BrokenPluginWarning,
    DownloadWarning,
    IgnoredFileWarning,
    OtherMachineWarning,
    PublishedFileWarning,
    TokenWarning,
)
_EPILOG = "\n\n".join(
    (
        "Exit codes: 0 done; 1 any other error; 2 recipe or command line; 3 data; 4 model; 5 plan; 6 target or runtime; "
        "7 the output directory is in use; 8 disk; 9 done, but a criterion of accuracy or speed is missed; 130 interrupted.",
        "Environment: OCTOBERT_CACHE is the folder of what is measured once per machine, and of models that are given as a zip "
        "file or a URL. HF_HOME, HF_TOKEN and HF_HUB_OFFLINE: where files of the Hub are kept, who asks for them, and whether "
        "to ask at all. NO_COLOR: print without colours.",
        "Example: octobert quantize ./my-model --task text-classification --data ./my-data --out out",
    )
)
_HELP = {"help_option_names": ["-h", "--help"]}


@functools.cache
def _own_commands() -> tuple[str, ...]:
    names = (module.name for module in pkgutil.iter_modules(cli.__path__) if not module.ispkg)
    return tuple(name for name in names if name != "main" and not name.startswith("_"))


def _module(name: str) -> ModuleType | None:
    """The module of a command. octobert's own commands win where names are the same."""
    if name in _own_commands():
        return importlib.import_module(f"{cli.__name__}.{name}")
    return plugins.load("commands", name) if name in plugins.installed("commands") else None


class Commands(TyperGroup):
    """The commands. Only the one that is called is imported."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Names of the commands, grouped as in the help."""

        modules = dict(plugins.each("commands"))
        modules |= {
            name: importlib.import_module(f"{cli.__name__}.{name}") for name in _own_commands()
        }

        def place(name: str) -> tuple[int, str]:
            panel = getattr(modules[name], "PANEL", None)
            return (_show.PANELS.index(panel) if panel in _show.PANELS else len(_show.PANELS), name)

        return sorted(modules, key=place)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that is called. The error for an unknown one names the nearest."""
        if not args[0].startswith("-") and _module(args[0]) is None:
            ctx.fail(
                f'There is no command "{args[0]}"; {did_you_mean(args[0], self.list_commands(ctx))}'
            )
        return super().resolve_command(ctx, args)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """A command by its name, or None."""
        module = _module(cmd_name)
        if module is None:
            return None
        single = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        examples = getattr(module, "EXAMPLES", ())
        single.command(
            name=cmd_name,
            context_settings=_HELP,
            rich_help_panel=getattr(module, "PANEL", None),
            epilog="\n\n".join(("Examples:", *examples)) if examples else None,
        )(_options.complete(module.command))
        return typer.main.get_command(single)


app = typer.Typer(
    cls=Commands,
    help="Quantize BERT-family encoders to 8 bits, and measure what that costs and gains.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings=_HELP,
    epilog=_EPILOG,
)


@app.callback(invoke_without_command=True)
@_options.filled(general=_options.from_function(_show.set_verbosity, only=("verbose", "quiet")))
def root(general: dict[str, bool], *, version: bool = False) -> None:
    """Quantize BERT-family encoders to 8 bits, and measure what that costs and gains.

    Args:
        version: Print the version.
    """
    if version:
        _show.line(octobert.__version__)
        raise typer.Exit
    _show.set_verbosity(**general)


def main() -> None:
    """Run the program. Exit codes are those of `octobert.core.errors`."""
    _prepare_streams()
    _print_warnings_as_notes()
    try:
        _check_working_directory()
        app()
    except (OctobertError, OSError) as raised:
        if isinstance(raised, BrokenPipeError):
            raise
        error = raised if isinstance(raised, OctobertError) else file_error(raised)
        if "--json" in sys.argv:
            # Printing may be what failed.
            with contextlib.suppress(OSError):
                _show.document({"error": error.to_json()}, indent=None)
        if _show.verbosity.verbose:
            _show.line(traceback.format_exc(), err=True)
            _show.line(error.traceback, err=True)
        _show.line(f"octobert: {error}", err=True)
        sys.exit(error.exit_code)


def _check_working_directory() -> None:
    """Raise StorageError where the working directory was deleted: neither relative paths nor PyTorch's libraries work there."""
    try:
        os.getcwd()
    except FileNotFoundError as error:
        raise StorageError(
            "the working directory does not exist any more", fix="change to a directory that exists"
        ) from error


def _prepare_streams() -> None:
    """Make stdout and stderr take any text: UTF-8 where the locale is ASCII, and nowhere where they are closed."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115  # open to the end
        elif isinstance(stream, io.TextIOWrapper):
            ascii_only = codecs.lookup(stream.encoding).name == "ascii"
            stream.reconfigure(encoding="utf-8" if ascii_only else None, errors="replace")


def _print_warnings_as_notes() -> None:
    """Print octobert's own warnings as notes, without the line of code that caused them."""
    for category in _WARNINGS:
        warnings.simplefilter("always", category)

    def note(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: Any = None,
        line: Any = None,
    ) -> None:
        if issubclass(category, _WARNINGS):
            _show.note(f"octobert: {message}.")
        else:
            _show.line(
                warnings.formatwarning(message, category, filename, lineno, line).rstrip(), err=True
            )

    warnings.showwarning = note


if __name__ == "__main__":
    main()
