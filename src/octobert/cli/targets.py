"""`octobert targets`: the targets, and whether this machine can run them."""

from __future__ import annotations

import typer

from octobert.cli import _show

PANEL = _show.LOOK
EXAMPLES = ("octobert targets",)


def command(
    as_json: bool = _show.JSON_OPTION,
    markdown: bool = typer.Option(False, "--markdown", help="Print docs/reference/targets.md, generated from the tables."),
) -> None:
    """List the targets; for each that cannot run here, what is missing and how to install it."""
    import octobert

    targets = octobert.list_targets().values()
    if markdown:
        from octobert.report import targets as pages

        _show.line(pages.page([capabilities for capabilities, _ in targets]))
        return
    if as_json:
        _show.document([{**c.model_dump(mode="json"), "probe": probe.model_dump(mode="json")} for c, probe in targets])
        return
    for capabilities, probe in targets:
        state = f"ready, {capabilities.runtime} {probe.version}" if probe.available else f"missing: {probe.missing}"
        _show.item(capabilities.name, f"{capabilities.description} ({capabilities.status}); {state}", column=14)
        if probe.install:
            _show.item("", f"install it with: {probe.install}", column=14)
