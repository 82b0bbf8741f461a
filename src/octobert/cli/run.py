"""`octobert run RECIPE`: carry out a recipe."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from octobert.cli import _show

if TYPE_CHECKING:
    from octobert.recipe import Recipe

NAME = "run"


def command(
    recipe: Annotated[Path, typer.Argument(help="A recipe, YAML or JSON.")],
    out: Annotated[Path | None, typer.Option(help="Output directory; default: the recipe's name below ./runs.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be reused and what would run.")] = False,
    as_json: bool = _show.JSON_OPTION,
) -> None:
    """Carry out a recipe: capture, calibrate, quantize, evaluate, benchmark, package, report."""
    from octobert.recipe import load

    carry_out(load(recipe), out or Path("runs") / recipe.stem, dry_run=dry_run, as_json=as_json)


def carry_out(recipe: Recipe, out: Path, *, dry_run: bool, as_json: bool) -> None:
    """Run or plan a recipe and show the result."""
    from octobert import pipeline

    if dry_run:
        verdicts = pipeline.dry_run(recipe, out)
        if as_json:
            _show.document([{"step": v.step, "action": v.action, "reason": v.reason} for v in verdicts])
        else:
            for v in verdicts:
                typer.echo(f"{v.action:<6} {v.step:<28} {v.reason}")
        return
    progress = _show.ProgressLine()
    try:
        report = pipeline.run(recipe, out, progress)
    except KeyboardInterrupt:
        _show.note("octobert: interrupted; the same command resumes.")
        raise typer.Exit(130) from None
    finally:
        progress.close()
    if as_json:
        _show.document(report.model_dump(mode="json"))
        return
    from octobert.report import terminal

    _show.render(terminal.render(report))
    typer.echo(f"\nReport   {out / 'report.html'}")
    for target in recipe.targets:
        typer.echo(f'Model    {out / target}   try: octobert predict {out / target} "some text"')
