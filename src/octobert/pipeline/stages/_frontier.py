"""Which pruned models are tried, and which one is taken: pure functions over what was judged."""

from __future__ import annotations

from collections.abc import Sequence

from octobert.config.training import Prune
from octobert.core.pruning import PrunedModel
from octobert.core.trials import Trials
from octobert.quantization.pruning.budget import fast_enough

# Speedups that are tried where the largest drop decides; finer steps are within the noise of the metric.
GRID = (1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7, 1.8, 1.9, 2.0)


def speedups(settings: Prune) -> tuple[float, ...]:
    """The speedups that may be tried, ascending.

    Example:
        >>> speedups(Prune(speedup=1.25, max_drop=0.01))
        (1.1, 1.2, 1.25)
    """
    if settings.speedup is None:
        return GRID
    below = GRID if settings.max_drop is not None else ()
    return (*(step for step in below if step < settings.speedup), settings.speedup)


def keeps(settings: Prune, model: PrunedModel, whole: float) -> bool:
    """Whether a model keeps the largest drop.

    Args:
        whole: metric of the whole model.
    """
    return all(limit.accepts(model.metric, whole) for limit in settings.limits)


def search(
    settings: Prune, whole: float, trials: Trials[float, PrunedModel | None]
) -> tuple[PrunedModel | None, list[PrunedModel]]:
    """Find the fastest model that keeps the largest drop: first the fastest of all where a speedup is asked for, then by
    bisection, as a slower model drops less.

    Args:
        whole: metric of the whole model.
        trials: of models of a speedup; a trial has no model where none is that fast.

    Returns:
        (The model to take, or None; all models that were judged, in order of speed).
    """
    grid, best = speedups(settings), None
    low, high = 0, len(grid)
    place = len(grid) - 1 if settings.speedup is not None else len(grid) // 2
    while low < high:
        model = trials.result(grid[place])
        if model is not None and keeps(settings, model, whole):
            best, low = model, place + 1
        else:
            high = place
        place = (low + high) // 2
    models = [model for model in trials.results.values() if model is not None]
    return best, sorted(models, key=lambda model: model.speedup.value)


def reason(
    settings: Prune,
    metric: str,
    whole: float,
    best: PrunedModel | None,
    tried: Sequence[PrunedModel],
    fastest: float | None = None,
) -> str:
    """Why a model was taken, or none, in one sentence.

    Args:
        metric: its name.
        whole: of the whole model.
        best: the model that was taken.
        tried: all that were judged.
        fastest: speedup of the fastest model that was timed; None where none was.
    """
    if best is not None:
        noise = f"95 % interval {best.speedup.low:.2f} to {best.speedup.high:.2f}"
        what = f"measured {best.speedup.value:.2f} × as fast as the whole model in 8 bits ({noise}); {metric} {_drop(best)}"
        speedup = settings.speedup
        asked = settings.max_drop is None or (
            speedup is not None and fast_enough(speedup, best.speedup)
        )
        return what if asked else f"{what}: the fastest that keeps a drop of {_allowed(settings)}"
    if not tried:
        timed = "" if fastest is None else f"; the fastest that was timed is {fastest:.2f} ×"
        return f"left whole: no model with fewer heads and neurons is {settings.speedup or GRID[0]:g} × as fast{timed}"
    nearest = min(tried, key=lambda model: model.drop.value)
    costs = f"{nearest.speedup.value:.2f} × costs {nearest.drop.value:.4f} of {metric} {whole:.4f}"
    return f"left whole: the model has nothing to spare. Already {costs}, more than {_allowed(settings)}"


def _allowed(settings: Prune) -> str:
    share = " of the whole model's" if settings.relative else ""
    return f"{settings.max_drop:g}{share}"


def _drop(model: PrunedModel) -> str:
    drop = model.drop
    change = (
        f"drops by {drop.value:.4f}"
        if drop.value > 0
        else f"rises by {-drop.value:.4f}"
        if drop.value < 0
        else "stays"
    )
    low, high = round(drop.low, 4) + 0.0, round(drop.high, 4) + 0.0  # not -0.0
    return f"{change} on the tuning rows (95 % interval of the drop {low:+.4f} to {high:+.4f})"
