"""`quick: true`: the same models, measured less."""

from __future__ import annotations

from typing import Any

from octobert.config.measuring import Benchmark
from octobert.config.recipe import Recipe
from octobert.evaluation import candidates

# Evaluation rows: the interval of an accuracy is some seven points to either side. Rounds: enough for a median. Seconds: four
# turns, the fewest that give an interval.
ROWS, ROUNDS, SECONDS = 128, 12, 4.0


def shortened(recipe: Recipe, measured: list[str]) -> Recipe:
    """A recipe with the settings that `quick: true` stands for; without it, the recipe itself.

    Args:
        recipe: of the run.
        measured: its targets that can run here.
    """
    if not recipe.quick:
        return recipe
    evaluated = recipe.data.evaluate
    rows = evaluated.model_copy(update={"samples": min(evaluated.samples or ROWS, ROWS)})
    forms = dict.fromkeys(form for target in measured for form in candidates.float_forms(target))
    return recipe.model_copy(
        update={
            "data": recipe.data.model_copy(update={"evaluate": rows}),
            "baselines": tuple(forms) if recipe.baselines is None else recipe.baselines,
            "benchmark": benchmark(recipe.benchmark),
        }
    )


def benchmark(full: Benchmark) -> Benchmark:
    """A benchmark of one batch size in fewer rounds."""
    timed: dict[str, Any] = {"batch": (min(full.batch),), "repeats": min(full.repeats, ROUNDS)}
    if full.seconds is not None or full.goal == "throughput":
        timed["seconds"] = min(full.seconds or SECONDS, SECONDS)
    return full.model_copy(update=timed)
