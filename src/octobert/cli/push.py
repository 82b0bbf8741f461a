"""`octobert push DIR OWNER/NAME`: upload a package to the Hub, with a model card."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import typer

from octobert.api import hub
from octobert.cli import _options, _show

PANEL = _show.USE
EXAMPLES = (
    "octobert push out/ort-cpu me/minilm-int8 --dry-run",
    "octobert push out/ort-cpu me/minilm-int8 --license apache-2.0 --private",
)


@_options.filled(options=_options.from_function(hub.push))
def command(
    options: _options.Arguments,
    repo: str,
    *,
    # In other commands the name is that of the data's revision.
    revision: Annotated[
        str | None,
        typer.Option("--revision", help="A branch; it is made if it is not there. Default: main."),
    ] = None,
) -> Iterator[Any]:
    """Upload a package to a repository of the Hub, with a model card made of what was measured.

    Args:
        repo: The repository, OWNER/NAME; it is made if it is not there.
    """
    pushed = hub.push(repo=repo, revision=revision, **options)
    yield pushed
    for text in (
        f"Card     {pushed.card}",
        *(f"File     {name}" for name in pushed.files),
        f"Commit   {pushed.commit or 'none: nothing was sent'}",
    ):
        _show.line(text)
