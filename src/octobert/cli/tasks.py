"""`octobert tasks`: what models can be judged by, and the options of each."""

from __future__ import annotations

import typer

from octobert.cli import _show

NAME = "tasks"


def command(as_json: bool = _show.JSON_OPTION) -> None:
    """List the tasks with their options."""
    from octobert.core import plugins

    modules = {name: plugins.load("tasks", name) for name in plugins.names("tasks")}
    if as_json:
        _show.document(
            [{"name": n, "description": m.DESCRIPTION, "options": m.Options.model_json_schema()} for n, m in modules.items()]
        )
        return
    for name, module in modules.items():
        typer.echo(f"{name:<22} {module.DESCRIPTION}")
        typer.echo(f"{'':<22} options: {', '.join(module.Options.model_fields)}")
