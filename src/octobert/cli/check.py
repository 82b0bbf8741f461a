"""`octobert check MODEL --target NAME`: check an ONNX file against targets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer

from octobert.api import packages
from octobert.cli import _options, _show
from octobert.core.errors import PlanError

PANEL = _show.LOOK
EXAMPLES = ("octobert check model.onnx --target openvino-cpu",)


@_options.filled(options=_options.from_function(packages.check))
def command(options: _options.Arguments) -> Iterator[Any]:
    """Check an ONNX file against targets: what each refuses or runs in float, and how to fix it. Exit code 5: refused."""
    results = packages.check(**options)
    yield [{**lint.model_dump(mode="json"), "passes": lint.passes} for lint in results]
    from octobert.report import terminal

    _show.render(*(terminal.lint_table(lint) for lint in results))
    if not all(lint.passes for lint in results):
        raise typer.Exit(PlanError.exit_code)
