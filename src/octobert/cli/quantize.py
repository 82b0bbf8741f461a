"""`octobert quantize MODEL`: build a recipe from options, print it, and run it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from octobert.api._arguments import NotNegative
from octobert.cli import _options, _recipe, _show
from octobert.cli.run import run_recipe
from octobert.core.errors import RecipeError

PANEL = _show.MAKE
EXAMPLES = (
    "octobert quantize ./my-model --task text-classification --data ./my-data --target ort-cpu --out out",
    "octobert quantize ./my-model --task text-classification --data ./my-data --out out --quick",
)


@_recipe.recipe_options()
def command(
    rows: _options.Arguments,
    keys: _options.Arguments,
    *,
    out: Path,
    max_drop: NotNegative | None = None,
    minutes: float = 10,
    shape: str | None = None,
    save_recipe: Path | None = None,
    dry_run: bool = False,
) -> Iterator[Any]:
    """Quantize a model for one or more targets, and compare it with the float model on your data.

    Args:
        out: Output directory.
        max_drop: Search for the fastest plan whose metric drops by at most this much: 0.01 is one point.
        minutes: Time limit of that search.
        shape: BATCHxTOKENS of models for targets with static shapes.
        save_recipe: Also write the recipe to this file.
        dry_run: Read the rows, and print which steps would run and which would be reused.
    """
    if shape is not None:
        keys["shape"] = _shape_of(shape)
    if max_drop is not None:
        keys["accuracy"] = {"max_drop": max_drop, "minutes": minutes}
    recipe = _recipe.recipe_of(**rows, keys=keys)
    _recipe.tell(recipe, save_recipe)
    yield from run_recipe(recipe, out, dry_run=dry_run)


def _shape_of(text: str) -> dict[str, int]:
    """`8x128` as batch size and sequence length."""
    batch, _, sequence = text.partition("x")
    if not (batch.isdecimal() and sequence.isdecimal()):
        raise RecipeError("--shape is not BATCHxTOKENS", got=text, expected="such as 1x128")
    return {"batch": int(batch), "sequence": int(sequence)}
