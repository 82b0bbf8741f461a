"""`octobert check MODEL --target NAME`: check an ONNX file against targets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from octobert.cli import _show

PANEL = _show.LOOK
EXAMPLES = ("octobert check model.onnx --target openvino-cpu",)


def command(
    model: Annotated[Path, typer.Argument(help="An ONNX file from any tool, or a package.")],
    target: Annotated[
        list[str] | None,
        typer.Option(help="Target. Give it several times for several. Default: the package's own; ort-cpu for a file."),
    ] = None,
    as_json: bool = _show.JSON_OPTION,
) -> None:
    """Check an ONNX file against targets: what each refuses or runs in float, and how to fix it. Exit code 5: refused."""
    import octobert
    from octobert.core.errors import PlanError

    results = octobert.check(model, _show.split_names(target))
    if as_json:
        _show.document([{**lint.model_dump(mode="json"), "passes": lint.passes} for lint in results])
    else:
        from octobert.report import terminal

        _show.render(*(terminal.lint_table(lint) for lint in results))
    if not all(lint.passes for lint in results):
        raise typer.Exit(PlanError.exit_code)
