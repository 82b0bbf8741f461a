"""`octobert export DIR --for CLIENT`: write a folder that another program opens."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from octobert.api.clients import CLIENTS
from octobert.api.exports import export
from octobert.cli import _options, _show

PANEL = _show.USE
EXAMPLES = ("octobert export out/ort-cpu --for sentence-transformers",)
_PROGRAMS = f"The program: {', '.join(CLIENTS)}."


@_options.filled(options=_options.from_function(export, texts={"client": _PROGRAMS}))
def command(options: _options.Arguments) -> Iterator[Any]:
    """Write a folder that another program opens, and print the lines that load it there."""
    exported = export(**options)
    yield exported
    for text in (
        f"Written  {exported.folder}",
        f"Install  {exported.install}",
        exported.unchecked,
        *exported.snippet.splitlines(),
    ):
        _show.line(text)
