"""The limits of a run, checked on its final figures: on rows that no search has seen, with their intervals."""

from __future__ import annotations

import math
from collections.abc import Iterable

from octobert.config.choosing import Accuracy, Speed
from octobert.core.estimate import Estimate, geometric_mean, quantile
from octobert.core.limits import (
    UNITS,
    Check,
    Limit,
    check,
    metric_named,
    objective_named,
    rounds_needed,
)
from octobert.core.measurements import Comparison, at_first_shape, in_order, score_named
from octobert.core.results import Report
from octobert.core.selection import Selection
from octobert.report.words import words_of

# The drop of a metric that is accepted where the recipe does not say: one point.
DEFAULT_DROP = 0.01


def checked(report: Report) -> dict[str, tuple[Check, ...]]:
    """Return target → the checks of what the recipe demands of its model; of a search, those of the winner."""
    choice = report.choice
    targets = tuple(report.plans) if choice is None else (choice.best.variant.target,)
    limits = limits_of(report) if is_limited(report) else ()
    found = {target: _checked(report, limits, target) for target in targets}
    return {target: checks for target, checks in found.items() if checks}


def checks_of(report: Report, name: str) -> tuple[Check, ...]:
    """Return the checks of a model, as reports name it, against the limits of the run."""
    return _checked(report, limits_of(report), name)


def is_limited(report: Report) -> bool:
    """Whether the recipe says which accuracy it wants; else octobert assumes it."""
    return report.choice is not None or report.recipe.get("accuracy") is not None


def limits_of(report: Report) -> tuple[Limit, ...]:
    """Return the limits of the recipe on single figures, or one point (one percent of a metric that is not between 0 and 1)."""
    if report.choice is not None:
        return report.choice.limits
    if (accuracy := report.recipe.get("accuracy")) is not None:
        return (Accuracy.model_validate(accuracy).limit,)
    words = words_of(report)
    return (Limit(max_drop=DEFAULT_DROP, relative=not words.in_points(words.metric or "")),)


def _checked(report: Report, limits: Iterable[Limit], name: str) -> tuple[Check, ...]:
    choice = report.choice
    # A float32 model is what a drop is compared with.
    is_float = choice is not None and choice.best.variant.precision == "f32"
    found = [
        part
        for limit in limits
        for part in _checks(report, limit, name)
        if not is_float or part.limit.max_drop is None
    ]
    return (*found, *speed_checks(report, name))


def _checks(report: Report, limit: Limit, name: str) -> tuple[Check, ...]:
    compared, metric = report.of(name).against_float, words_of(report).metric
    reference = compared.reference if compared else ""
    # Times are those of the float model on the same runtime.
    if limit.objective.name in UNITS and (over := report.of(name).speedups):
        reference = over[0].reference
    figure, theirs = (figure_of(report, model, limit.of, metric) for model in (name, reference))
    return check(
        limit,
        figure,
        drop=None if compared is None else _drop(compared, metric_named(limit.of, metric)),
        reference=None if theirs is None else theirs.value,
        rows=None if limit.objective.name in UNITS else report.data.evaluation_rows,
    )


def speed_checks(report: Report, target: str) -> tuple[Check, ...]:
    """Return the check of the speed over the float baseline, at the timed shape that decides; none where it is not limited."""
    speed = report.recipe.get("speed")
    if speed is None or target not in report.plans:
        return ()
    limit = Speed.model_validate(speed).limit
    over = report.of(target).speedups
    found = [
        part.replaced(shape=str(speedup.shape))
        for speedup in over
        if speedup.reference == over[0].reference
        for part in check(limit, speedup.ratio)
    ]
    return (worst(found) or check(limit, None)[0],)


def worst(checks: Iterable[Check]) -> Check | None:
    """Return the check that decides about a model; None without one."""
    order = ("missed", "unclear", "unmeasured", "kept")
    return min(
        checks,
        key=lambda part: (not part.is_clear, order.index(part.state), -part.excess),
        default=None,
    )


def accepted_drop(report: Report) -> float | None:
    """Return the largest drop of the main metric that the limits accept; None where they do not limit it."""
    words, drops = words_of(report), list[float | None]()
    value = words.values.get(words.metric or "")
    for limit in limits_of(report):
        if words.key(limit.of) == words.metric:
            drops.append(limit.accepted_drop(value or 0.0))
            if limit.at_least is not None and value is not None:
                drops.append(value - limit.at_least)
    return min((drop for drop in drops if drop is not None), default=None)


def accepted_ms(choice: Selection) -> float | None:
    """Return the longest time of the goal's statistic that the limits of a search accept, in milliseconds for one text."""
    times_ms, timed = [], choice.float_result.time_ms
    for limit in choice.limits:
        if limit.of == choice.goal and limit.at_most is not None:
            times_ms.append(limit.at_most)
        if timed is not None and limit.of == choice.goal and limit.min_gain is not None:
            times_ms.append(timed.value * (1 - limit.min_gain / 100))
        if timed is not None and limit.of == "speedup" and limit.at_least:
            times_ms.append(timed.value / limit.at_least)
    return min(times_ms, default=None)


def figure_of(report: Report, name: str, of: str, metric: str | None) -> Estimate | None:
    """A figure of a model in the final measurement, with its interval; None where it was not measured.

    Args:
        of: name of the figure.
        metric: the main metric.
    """
    figure, figures = objective_named(of), report.of(name)
    if figure.name not in UNITS:
        score = score_named(metric_named(of, metric), figures.scores)
        if score is None or score.low is None or score.high is None:
            return None
        return Estimate(value=score.value, low=score.low, high=score.high)
    shape = next(iter(in_order(report.times)), None)
    if figure.name == "speedup":
        return next((over.ratio for over in figures.speedups if over.shape == shape), None)
    if figure.name == "throughput":
        turns = [turn for one in at_first_shape(figures.throughputs) for turn in one.turns]
        return geometric_mean([turn.rows / turn.seconds for turn in turns]) if turns else None
    if figure.name == "latency":
        timed = next((latency for latency in figures.times if latency.shape == shape), None)
        if timed is None:
            return None
        share = (figure.percentile or 50) / 100
        found = quantile(timed.samples_ms, share)
        # All of a few rounds may be below the percentile, which then has no upper end.
        too_few = len(timed.samples_ms) < rounds_needed(share)
        return found.replaced(high=math.inf) if too_few else found
    footprint = figures.footprint
    if footprint is None:
        return None
    costs = {
        "load": footprint.load_ms,
        "size": footprint.size_mb,
        "memory": footprint.peak_memory_mb,
    }
    return Estimate.exactly(costs[figure.name])


def _drop(compared: Comparison, metric: str) -> Estimate | None:
    """How far a metric is below that of the float model, with its interval."""
    if metric == compared.metric:
        return compared.drop
    difference = compared.differences.get(metric)
    return None if difference is None else difference.times(-1)
