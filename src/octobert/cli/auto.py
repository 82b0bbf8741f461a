"""`octobert auto MODEL`: the fastest model on this machine that still does the task. `--again`, `--merge`: other machines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

import octobert
from octobert.api import choosing
from octobert.cli import _options, _recipe, _show
from octobert.cli.run import print_report, run_recipe
from octobert.core.errors import RecipeError

PANEL = _show.MAKE
EXAMPLES = (
    "octobert auto ./my-model --task text-classification --data ./my-data --out out",
    "octobert auto ./my-model --task text-classification --data ./my-data --latency 20ms@p90 --minutes 60 --out out",
    "octobert auto out --again",
    "octobert auto --merge out other-machine/out --out everywhere",
)
_LIMITS = ("max_drop", "relative", "at_least", "min_speedup")
_GOALS = ("latency", "throughput", "size", "memory")
_OTHERS = "Other machines"


@_options.filled(
    wishes=_options.from_function(
        choosing.auto,
        only=(*_LIMITS, *_GOALS, "minutes"),
        panels={**dict.fromkeys(_LIMITS, "Limits"), **dict.fromkeys(_GOALS, "Goals")},
    )
)
# Models are always measured, and settings of the runtime are part of the search.
@_recipe.recipe_options("model", "measure", "tune", optional=("task", "data"))
def command(
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL", help=f"A model: {_recipe.TEXTS['model']} With --again OUT."
        ),
    ],
    rows: _options.Arguments,
    keys: _options.Arguments,
    wishes: _options.Arguments,
    *,
    out: Path | None = None,
    save_recipe: Path | None = None,
    again: Annotated[
        bool,
        typer.Option(
            "--again",
            help="Choose again in an output directory, on another machine or with other runtimes. What does not depend on the "
            "machine is used again.",
            rich_help_panel=_OTHERS,
        ),
    ] = False,
    merge: Annotated[
        bool,
        typer.Option(
            "--merge",
            help="Write one folder, --out, with models that were chosen on several machines. It opens the right one on each.",
            rich_help_panel=_OTHERS,
        ),
    ] = False,
) -> Iterator[Any]:
    """Find the fastest model on this machine that still does the task, measured on your data.

    Args:
        out: Output directory. The same command resumes in it.
        save_recipe: Also write the recipe to this file.
    """
    changes = rows.get("changes", [])
    others = {**rows, **wishes, "save_recipe": save_recipe}
    if merge:
        _refuse("--merge", {"again": again or None, **others, **keys})
        yield from _merge(models, out)
    elif again:
        _refuse("--again", {"out": out, **others, "changes": None})
        yield from _again(models, keys, changes)
    else:
        _check(models, {**rows, "out": out})
        keys["choose"] = choosing.settings(**wishes)
        recipe = _recipe.recipe_of(models[0], **rows, keys=keys)
        _recipe.tell(recipe, save_recipe)
        yield from run_recipe(recipe, Path(str(out)))


def _check(models: Sequence[str], given: Mapping[str, Any]) -> None:
    """Check that there is all that a choice needs.

    Raises:
        RecipeError: there is not.
    """
    if len(models) > 1:
        raise RecipeError(
            "a model is chosen for one model at a time",
            got=" ".join(models),
            fix="give one model; --merge takes several output directories",
        )
    missing = [f"--{name}" for name in ("task", "data", "out") if not given.get(name)]
    if missing:
        raise RecipeError(
            f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing",
            fix=f"for example: {EXAMPLES[0]}",
        )


def _refuse(mode: str, options: Mapping[str, Any]) -> None:
    """Refuse options that mean nothing to `--again` or `--merge`.

    Raises:
        RecipeError: with their names.
    """
    extra = [
        _recipe.spellings().get(name) or _options.option_of(name)
        for name, value in options.items()
        if value is not None
    ]
    if extra:
        change = "it runs the recipe of the first choice; change that with --set, such as --set choose.minutes=60"
        raise RecipeError(
            f"{mode} does not take {', '.join(extra)}",
            fix=change if mode == "--again" else "it takes output directories and --out only",
        )


def _again(models: Sequence[str], keys: Mapping[str, Any], changes: Sequence[str]) -> Iterator[Any]:
    """Choose again."""
    if len(models) != 1:
        raise RecipeError(
            "--again takes one output directory",
            got=" ".join(models),
            fix="octobert auto OUT --again",
        )
    with _show.progress_of_run() as progress:
        report = octobert.auto_again(models[0], changes=changes, progress=progress, **keys)
    yield from print_report(report, Path(models[0]))


def _merge(models: Sequence[str], out: Path | None) -> Iterator[Any]:
    """Merge, and print which package is for which machine."""
    if out is None:
        raise RecipeError("--out is missing", fix=f"for example: {EXAMPLES[-1]}")
    index = octobert.merge(models, out)
    yield index
    for package in index.packages:
        _show.line(f"{out / package.folder}   {' '.join(package.features) or package.cpu}")
        _show.line(f"   {package.sentence}")
    _show.line(f"\nModel    {out}   opens the right package on each of these kinds of machines")
