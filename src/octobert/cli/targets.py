"""`octobert targets`: what models can be written for, and whether this machine has it."""

from __future__ import annotations

import typer

from octobert.cli import _show

NAME = "targets"


def command(
    as_json: bool = _show.JSON_OPTION,
    markdown: bool = typer.Option(False, "--markdown", help="Print docs/reference/targets.md, generated from the tables."),
) -> None:
    """List the targets, with a probe that says what is missing and how to install it."""
    import json

    from octobert.core import plugins

    found = []
    for name in plugins.names("targets"):
        module = plugins.load("targets", name)
        found.append((module.CAPABILITIES, module.probe()))
    if markdown:
        from octobert.report import targets

        typer.echo(targets.page([capabilities for capabilities, _ in found]))
        return
    if as_json:
        _show.document([{**json.loads(c.model_dump_json()), "probe": json.loads(p.model_dump_json())} for c, p in found])
        return
    for capabilities, probe in found:
        state = f"ready, {capabilities.runtime} {probe.version}" if probe.available else f"missing: {probe.missing}"
        typer.echo(f"{capabilities.name:<14} {capabilities.description} ({capabilities.status}); {state}")
        if probe.install:
            typer.echo(f"{'':<14} install it with: {probe.install}")
