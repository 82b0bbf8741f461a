"""How long parts of the final run of a search take, about: from the time of the float model for one row."""

from __future__ import annotations

import itertools

from octobert.pipeline.resolve import quick_benchmark
from octobert.pipeline.run import Run
from octobert.pipeline.stages import tune

# What the time of a final run is predicted from: seconds to open a model, those of all that no model runs in, at most for the
# models at one shape (`latency.measure`), rows that tuning runs for a setting, and tokens of a usual row.
_OPENED, _REST, _PER_SHAPE, _TUNED_ROWS, _USUAL_TOKENS = 3.0, 15.0, 60.0, 112, 64
# Float models that a lean final run measures.
_LEAN_FLOATS = 2


def measuring_seconds(run: Run, row: float, rows: int, *, lean: bool) -> float:
    """Seconds to evaluate and time all models.

    Args:
        run: of the search.
        row: seconds of the float model for one row.
        rows: that are evaluated.
        lean: measure less.
    """
    models = 1 + (
        _LEAN_FLOATS if lean else sum(name not in run.recipe.targets for name in run.candidates)
    )
    settings = quick_benchmark(run.benchmark) if lean else run.benchmark
    seconds = _REST + models * (_OPENED + row * rows)
    for batch, length in itertools.product(settings.batch, settings.sequence):
        one = (
            2 * row * batch * (1 if length == "data" else length / _USUAL_TOKENS)
            + settings.pause_ms / 1000
        )
        seconds += min(_PER_SHAPE, (settings.seconds or settings.repeats * one) * models)
    return seconds + models * _OPENED


def tuning_seconds(run: Run, row: float) -> float:
    """Seconds to search for the fastest options of the runtime; the arguments are those of `measuring_seconds`."""
    trials, minutes = tune.TRIALS[run.recipe.quick], tune.MINUTES[run.recipe.quick]
    return min(60 * minutes, trials * (_OPENED + _TUNED_ROWS * row))
