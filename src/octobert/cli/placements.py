"""`octobert placements`: which values a plan can quantize, as data."""

from __future__ import annotations

from typing import Annotated

import typer

from octobert.cli import _show

NAME = "placements"


def command(
    name: Annotated[str | None, typer.Argument(help="One placement; all of them when absent.")] = None,
    as_json: bool = _show.JSON_OPTION,
) -> None:
    """List the placements: which kinds of values each puts into 8 bits. Kinds can be written into a recipe as they are."""
    from octobert.core import plugins

    wanted = [name] if name else list(plugins.names("placements"))
    found = {one: plugins.load("placements", one).PLACEMENT for one in wanted}
    if as_json:
        _show.document([{"name": one, **placement.model_dump(mode="json")} for one, placement in found.items()])
        return
    for one, placement in found.items():
        typer.echo(f"{one:<18} {placement.description}")
        if name:
            typer.echo(f"{'':<18} in 8 bits: {', '.join(placement.kinds)}")
            for role, why in placement.because.items():
                typer.echo(f"{'':<18} float: {role:<18} {why}")
