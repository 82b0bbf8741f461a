"""`octobert run RECIPE`: carry out a recipe."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from octobert.cli import _show

if TYPE_CHECKING:
    from octobert.config.recipe import Recipe
    from octobert.core.results import Report

NAME = "run"


def command(
    recipe: Annotated[Path, typer.Argument(help="A recipe, YAML or JSON.")],
    out: Annotated[Path | None, typer.Option(help="Output directory; default: the recipe's name below ./runs.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Change a part of the recipe: data.calibrate.samples=50; several times.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be reused and what would run.")] = False,
    as_json: bool = _show.JSON_OPTION,
) -> None:
    """Carry out a recipe: capture, calibrate, quantize, evaluate, benchmark, package, report."""
    from octobert.config.recipe import load

    carry_out(load(recipe, changes=settings or ()), out or Path("runs") / recipe.stem, dry_run=dry_run, as_json=as_json)


def carry_out(recipe: Recipe, out: Path, *, dry_run: bool, as_json: bool) -> None:
    """Run or plan a recipe and show the result."""
    from octobert.pipeline import runner

    if dry_run:
        verdicts = runner.dry_run(recipe, out)
        if as_json:
            _show.document([{"step": v.step, "action": v.action, "reason": v.reason} for v in verdicts])
        else:
            for v in verdicts:
                typer.echo(f"{v.action:<6} {v.step:<28} {v.reason}")
        return
    with _show.progress_of_run() as progress:
        report = runner.run(recipe, out, progress)
    if as_json:
        _show.document(report.model_dump(mode="json"))
        _check_criterion(report)
        return
    from octobert.report import terminal

    _show.render(terminal.render(report))
    typer.echo(f"\nReport   {out / 'report.html'}")
    for target in recipe.targets:
        typer.echo(f'Model    {out / target}   try: octobert predict {out / target} "some text"')
    _check_criterion(report)


def _check_criterion(report: Report) -> None:
    """The run is done and written; whether it met the criterion is in the exit code.

    Raises:
        AccuracyError: a target missed it.
    """
    from octobert.core.errors import AccuracyError

    for target, search in report.searches.items():
        if not search.met:
            raise AccuracyError(
                f"the best plan that was found misses the criterion: {search.ended}",
                where=target,
                got=f"{search.metric} {search.taken.value:.4f}, a drop of {search.taken.drop:.4f} on {search.taken.rows} rows",
                expected=search.criterion,
                fix="allow a larger drop or more minutes, or let more stay in float",
            )
