"""`octobert check MODEL.onnx --target NAME`: what a target refuses of a file, what it runs in float and why, what to change."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from octobert.cli import _show

NAME = "check"


def command(
    model: Annotated[Path, typer.Argument(help="An ONNX file, octobert's or not, or a packaged directory.")],
    target: Annotated[list[str] | None, typer.Option(help="Target; may be given several times. Of a package, its own.")] = None,
    as_json: bool = _show.JSON_OPTION,
) -> None:
    """Hold an ONNX file against targets; exit code 5 where one of them refuses it."""
    from octobert.core import plugins
    from octobert.core.errors import PlanError, RecipeError, did_you_mean
    from octobert.inference.predictor import read_manifest
    from octobert.inspection import linter
    from octobert.report import terminal

    known = plugins.names("targets")
    wanted = _show.split_names(target)
    if model.is_dir() and not wanted:
        wanted = [read_manifest(model).target]
    if not wanted:
        raise RecipeError("a file is held against a target", where="--target", fix=f"name one: {', '.join(known)}")
    for name in wanted:
        if name not in known:
            raise RecipeError(f'there is no target "{name}"', where="--target", fix=did_you_mean(name, known))
    capabilities = [plugins.load("targets", name).CAPABILITIES for name in wanted]
    files = [model / one.file if model.is_dir() else model for one in capabilities]
    found = [linter.lint(file, one) for file, one in zip(files, capabilities, strict=True)]
    if as_json:
        _show.document([{**one.model_dump(mode="json"), "passes": one.passes} for one in found])
    for one in found if not as_json else ():
        _show.render(terminal.lint_table(one))
    if not all(one.passes for one in found):
        raise typer.Exit(PlanError.exit_code)
