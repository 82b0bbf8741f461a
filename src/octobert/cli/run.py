"""`octobert run RECIPE`: run a recipe."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

import octobert
from octobert.cli import _options, _recipe, _show
from octobert.core.errors import RecipeError, TargetError

if TYPE_CHECKING:
    from octobert.config.recipe import Recipe
    from octobert.core.environment import Setup
    from octobert.core.results import PlannedStep, Report

PANEL = _show.MAKE
EXAMPLES = (
    "octobert run recipe.yaml --out out",
    "octobert run recipe.yaml --quick --set data.calibrate.samples=50",
    "octobert run recipe.yaml --setup",
)


# What lets a recipe run code is given here and not in its file.
@_options.filled(keys=_recipe.keys(only=("allow_pickle", "allow_code", "quick", "cache")))
def command(
    recipe: Path,
    keys: _options.Arguments,
    *,
    out: Path | None = None,
    settings: list[str] | None = None,
    setup: bool = False,
    yes: bool = False,
    dry_run: bool = False,
) -> Iterator[Any]:
    """Run a recipe: capture, calibrate, quantize, evaluate, benchmark, package, report.

    Args:
        recipe: Recipe file, YAML or JSON.
        out: Output directory. Default: ./runs/RECIPE.
        settings: Set a key of the recipe: data.calibrate.samples=50. Several times.
        setup: Print what the recipe needs on this machine; install packages after asking.
        yes: With --setup: install the Python packages without asking.
        dry_run: Read the rows, and print which steps would run and which would be reused.
    """
    from octobert.api.runs import refused_fields

    assignments = [f"{key}={json.dumps(value)}" for key, value in keys.items()]
    checked = octobert.load_recipe(recipe, changes=[*(settings or ()), *assignments])
    for sentence in refused_fields(recipe):
        _show.note(f"octobert: {sentence}.")
    if yes and not setup:
        raise RecipeError(
            "--yes agrees to the installation of packages",
            where="--yes",
            fix="give it with --setup",
        )
    if setup:
        yield from set_up(checked, yes=yes)
        return
    yield from run_recipe(checked, out or Path("runs") / recipe.stem, dry_run=dry_run)


def set_up(recipe: Recipe, *, yes: bool) -> Iterator[Setup]:
    """Print what a recipe needs, and install its Python packages if the user agrees.

    Raises:
        TargetError: something that the run needs is still missing.
    """
    from octobert.report import terminal

    setup = octobert.setup(recipe)
    _show.render(terminal.needs_table(setup))
    for text in terminal.needs_sentences(setup):
        _show.line(text)
    asks = setup.problem is None and not _show.verbosity.json
    if setup.commands and (yes or (asks and _show.confirmed("Install these packages now?"))):
        setup = octobert.setup(recipe, install=True, tell=_show.note)
        if not setup.missing:
            _show.line("Installed. The recipe can run here.")
    yield setup
    if missing := setup.missing:
        if _show.verbosity.json:
            raise typer.Exit(TargetError.exit_code)
        raise TargetError(
            "the recipe needs what is not installed here",
            got=", ".join(f"{need.name} {need.version}".strip() for need in missing),
            fix="; ".join([*setup.commands, *setup.conflicts]),
        )


def run_recipe(recipe: Recipe, out: Path, *, dry_run: bool = False) -> Iterator[Any]:
    """Run or plan a recipe, and print the result."""
    _question_limits(recipe)
    if dry_run:
        yield from print_steps(octobert.dry_run(recipe, out))
        return
    if recipe.log_level is not None:
        _show.show_log()
    with _show.progress_of_run() as progress:
        report = octobert.run(recipe, out, progress=progress)
    yield from print_report(report, out)


def _question_limits(recipe: Recipe) -> None:
    """Ask whether limits are meant that are hardly meant; where nobody can be asked, only say so.

    Raises:
        RecipeError: they are not meant.
    """
    from octobert.config.choosing import doubts

    settings = recipe.searches
    limits = [*(settings.limits if settings is not None else ())]
    limits += [recipe.accuracy.limit] if recipe.accuracy is not None else []
    limits += [recipe.speed.limit] if recipe.speed is not None else []
    sentences = doubts(limits)
    for sentence in sentences:
        _show.note(f"octobert: {sentence}.")
    if sentences and _show.asks() and not _show.confirmed("Is that what you want?"):
        raise RecipeError(
            "the limit is not what you want", got="; ".join(sentences), fix="give another one"
        )


def print_report(report: Report, out: Path) -> Iterator[Report]:
    """Print the result of a run, and where its files are.

    Raises:
        OctobertError: the run is complete, but misses a criterion of its recipe.
    """
    yield report
    from octobert.report import terminal

    _show.render(terminal.render(report))
    _show.line(f"\nReport   {out / 'report.html'}")
    _show.line(f"  open   {shlex.join(['octobert', 'report', str(out), '--open'])}")
    _print_models(report, out)
    if stored := sum(octobert.stored(out).values()):
        command = shlex.join(["octobert", "clean", str(out)])
        _show.line(
            f"Stored   {stored / 1e6:.0f} MB of results that the same command reuses   {command} removes them"
        )
    if any(not report.of(target).absent for target in report.plans):
        _show.line(f"  live   {shlex.join(['octobert', 'compare', str(out), '--open'])}")
    octobert.check_criteria(report)


def _print_models(report: Report, out: Path) -> None:
    """Print where the packages are, and for those that can run here a command that predicts a row of the data."""
    from octobert.api.runs import example
    from octobert.core.selection import BEST
    from octobert.report import commands

    row = example(out, report)
    for target in report.plans:
        # What was chosen has one name, whatever its target is.
        package = out / (target if report.choice is None else BEST)
        absent = report.of(target).absent
        if absent:
            _show.line(f"Model    {package}   cannot run here: {absent}")
        else:
            _show.line(f"Model    {package}   {_size_text(package)}")
        if report.choice is not None:
            _show.line(f"Recipe   {package}.yaml")
        if row is not None and not absent:
            _show.line(f"   try   {commands.predict_command(package, report.task.head, row)}")


def _size_text(package: Path) -> str:
    """The size of a package, and how much of it is the float graph."""
    files = [file for file in package.rglob("*") if file.is_file()]
    whole = f"{sum(file.lstat().st_size for file in files) / 1e6:.1f} MB"
    floats = sum(file.stat().st_size for file in (package / "onnx").glob("model.onnx*"))
    if not floats:
        return whole
    return f"{whole}, {floats / 1e6:.1f} MB of it the float graph (--no-float leaves it out)"


def print_steps(steps: Sequence[PlannedStep]) -> Iterator[Sequence[PlannedStep]]:
    """Print which steps would run, and which would be reused."""
    yield steps
    for step in steps:
        _show.line(f"{step.action:<6} {step.step:<28} {step.reason}")
