"""Command: prints the names of all calibrators."""

from __future__ import annotations

import typer


def command(suffix: str = typer.Option("", help="Printed after each name.")) -> None:
    """Print the names of all calibrators."""
    from octobert.quantization import calibrators

    for name in calibrators.names():
        typer.echo(name + suffix)
