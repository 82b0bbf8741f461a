"""`octobert compare OUT`: float against INT8, live, on a page in the browser."""

from __future__ import annotations

import contextlib
import webbrowser
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from octobert.cli import _options, _show

PANEL = _show.USE
EXAMPLES = ("octobert compare out --open", "octobert compare out/ort-cpu --port 8123")


def command(
    folder: Path,
    *,
    target: list[str] | None = None,
    port: Annotated[
        int, typer.Option(help="Port on 127.0.0.1. Default: a free one.", min=0, max=65535)
    ] = 0,
    open_: bool = False,
) -> Iterator[Any]:
    """Ask the float model and the quantized one, side by side, in the browser. Needs the extra `web`. Ctrl-C ends it.

    Args:
        folder: An output directory with packages, or a package.
        target: Show the package for this target only. Give it several times for several.
        open_: Open the page in the browser.
    """
    from octobert_compare.server import Server, leading_to

    server = Server(folder, port=port, targets=tuple(_options.split_names(target or ())))
    yield {"address": server.address}
    _show.line(server.address)
    _show.note(
        "The page is for this machine only, and for whoever has its address. Ctrl-C ends it."
    )
    with contextlib.ExitStack() as while_it_runs:
        if open_ and not webbrowser.open(while_it_runs.enter_context(leading_to(server.address))):
            _show.note("No browser could be opened: open the address above.")
        server.run()
