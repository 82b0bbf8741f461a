"""`octobert auto MODEL`: the fastest model on this machine that still does the task."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from octobert.api import choosing
from octobert.cli import _options, _recipe, _show
from octobert.cli.run import run_recipe
from octobert.core.errors import RecipeError

PANEL = _show.MAKE
EXAMPLES = (
    "octobert auto ./my-model --task text-classification --data ./my-data --out out",
    "octobert auto ./my-model --task text-classification --data ./my-data --latency 20ms@p90 --minutes 60 --out out",
)
_LIMITS = ("max_drop", "relative", "at_least", "min_speedup")
_GOALS = ("latency", "throughput", "size", "memory")


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
    model: Annotated[str, typer.Argument(help=f"A model: {_recipe.TEXTS['model']}")],
    rows: _options.Arguments,
    keys: _options.Arguments,
    wishes: _options.Arguments,
    *,
    out: Path | None = None,
    save_recipe: Path | None = None,
) -> Iterator[Any]:
    """Find the fastest model on this machine that still does the task, measured on your data.

    Args:
        out: Output directory. The same command resumes in it.
        save_recipe: Also write the recipe to this file.
    """
    given = {**rows, "out": out}
    missing = [f"--{name}" for name in ("task", "data", "out") if not given.get(name)]
    if missing:
        raise RecipeError(
            f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing",
            fix=f"for example: {EXAMPLES[0]}",
        )
    keys["choose"] = choosing.settings(**wishes)
    recipe = _recipe.recipe_of(model, **rows, keys=keys)
    _recipe.tell(recipe, save_recipe)
    yield from run_recipe(recipe, Path(str(out)))
