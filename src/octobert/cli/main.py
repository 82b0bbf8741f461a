"""The `octobert` program: its commands, and the one place where errors become a message and an exit code."""

from __future__ import annotations

import json
import sys

import typer

from octobert import __version__
from octobert.cli import (
    benchmark,
    calibrate,
    check,
    doctor,
    evaluate,
    finetune,
    fuse,
    inspect,
    placements,
    predict,
    quantize,
    run,
    tables,
    targets,
    tasks,
    tune,
)
from octobert.core.errors import OctobertError

app = typer.Typer(
    help="BERT, in octets: quantize an encoder to 8 bits for the runtime you have, and see what it costs and gains.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for command in (
    quantize,
    run,
    finetune,
    predict,
    evaluate,
    benchmark,
    tune,
    calibrate,
    inspect,
    check,
    fuse,
    placements,
    tables,
    targets,
    tasks,
    doctor,
):
    app.command(name=command.NAME)(command.command)


@app.callback(invoke_without_command=True)
def root(version: bool = typer.Option(False, "--version", help="Print the version.")) -> None:
    """BERT, in octets: quantize an encoder to 8 bits for the runtime you have, and see what it costs and gains."""
    if version:
        typer.echo(__version__)
        raise typer.Exit


def main() -> None:
    """Run the program; exit codes are those of `octobert.errors`."""
    try:
        app()
    except OctobertError as error:
        if "--json" in sys.argv:
            typer.echo(json.dumps({"error": error.to_json()}))
        typer.echo(f"octobert: {error}", err=True)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
