"""`octobert export DIR --for CLIENT`: write a folder that another program opens."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from octobert.api.clients import CLIENTS
from octobert.cli import _show

PANEL = _show.USE
EXAMPLES = ("octobert export out/ort-cpu --for sentence-transformers",)


def command(
    package: Annotated[Path, typer.Argument(help="A package, OUT/<target>.")],
    client: Annotated[str, typer.Option("--for", help=f"The program: {', '.join(CLIENTS)}.")],
    out: Annotated[Path | None, typer.Option(help="The folder to write. Default: OUT/<target>-<client>.")] = None,
    as_json: bool = _show.JSON_OPTION,
) -> None:
    """Write a folder that another program opens, and print the lines that load it there."""
    import octobert

    exported = octobert.export(package, client, out)
    if as_json:
        _show.document(exported.model_dump(mode="json"))
        return
    for text in (f"Written  {exported.folder}", f"Install  {exported.install}", "", *exported.snippet.splitlines()):
        _show.line(text)
