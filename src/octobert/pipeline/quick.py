"""`quick: true`: the same models, measured less. What the recipe sets itself stays."""

from __future__ import annotations

from octobert.config.recipe import Recipe
from octobert.evaluation import candidates

# Evaluation rows: intervals of accuracy are some five points wide. Rounds: enough for a median and its interval.
ROWS, ROUNDS, BATCH = 256, 12, (1,)


def shortened(recipe: Recipe, measured: list[str]) -> Recipe:
    """A recipe with the settings that `quick: true` stands for; without it, the recipe itself.

    Args:
        recipe: of the run.
        measured: its targets that can run here.
    """
    if not recipe.quick:
        return recipe
    timed = {"batch": BATCH, "repeats": ROUNDS}
    timed = {name: value for name, value in timed.items() if name not in recipe.benchmark.model_fields_set}
    evaluated = recipe.data.evaluate
    rows = evaluated.model_copy(update={"samples": evaluated.samples or ROWS})
    forms = dict.fromkeys(form for target in measured for form in candidates.float_forms(target))
    return recipe.model_copy(
        update={
            "data": recipe.data.model_copy(update={"evaluate": rows}),
            "baselines": tuple(forms) if recipe.baselines is None else recipe.baselines,
            "benchmark": recipe.benchmark.model_copy(update=timed),
        }
    )
