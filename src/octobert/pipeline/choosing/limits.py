"""Limits and goals: what a variant misses, which of two is better, and the frontier. Pure functions of `Found`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from octobert.config.checks import EXACT, bounds
from octobert.config.choosing import UNITS, Limit, objective_named
from octobert.config.words import Words
from octobert.core.estimate import Estimate
from octobert.core.selection import Found, Variant

Ratio = Callable[[Variant, Variant], Estimate]
# Relative difference of times, sizes and memory that is not worth another criterion.
SAME = 0.01


def figure_of(found: Found, name: str, metric: str | None) -> Estimate | None:
    """A figure of a variant; None where it was not measured.

    Args:
        name: of the figure; `metric` for the main metric.
        metric: the main metric.
    """
    wanted = objective_named(name).name
    if wanted in UNITS:
        return found.figures.get(name)
    metric = metric if wanted == "metric" else wanted
    value, drop = found.values.get(metric or ""), found.drops.get(metric or "")
    if value is None or drop is None:
        return None
    return Estimate(value=value, low=value + drop.value - drop.high, high=value + drop.value - drop.low)


def missed(limits: Sequence[Limit], found: Found, reference: Found, metric: str | None) -> list[tuple[str, float]]:
    """What a variant misses, among the figures that are known of it.

    Args:
        reference: the float model.
        metric: the main metric.

    Returns:
        For each missed limit a sentence, and by how much it is missed, relative to the limit or to the float model's figure.
    """
    words = Words(limits[0].of if limits else "metric", metric, reference)
    problems: list[tuple[str, float]] = []
    for limit in limits:
        own, theirs = figure_of(found, limit.of, metric), figure_of(reference, limit.of, metric)
        if own is not None and theirs is not None:
            found_bounds = bounds(limit, words, own, found.drops.get(words.key(limit.of)), theirs.value)
            problems += [(each.misses, each.excess / each.scale) for each in found_bounds if each.excess > EXACT]
    return problems


def order(found: Sequence[Found], goals: Sequence[str], metric: str | None, ratio: Ratio) -> list[Found]:
    """Variants from the best to the worst.

    Args:
        found: variants of which the figures of all goals are known.
        goals: figures, the most important one first. The next one decides between variants that are as good as the best one.
        metric: the main metric.
        ratio: the time of one variant divided by that of another, measured in turn.
    """
    rest, ranked = list(found), list[Found]()
    while rest:
        equal = rest
        for goal in goals:
            equal = _best(equal, goal, metric, ratio)
        ranked.append(equal[0])
        rest.remove(equal[0])
    return ranked


def _best(found: Sequence[Found], goal: str, metric: str | None, ratio: Ratio) -> list[Found]:
    """The best variants by one figure, and those that are as good; the best one first."""
    sign = -1.0 if objective_named(goal).more_is_better else 1.0
    known = [(figure.value, each) for each in found if (figure := figure_of(each, goal, metric)) is not None]
    if not known:
        return list(found)
    ranked = [each for _, each in sorted(known, key=lambda pair: sign * pair[0])]
    name, first = objective_named(goal).name, ranked[0]
    if name in ("latency", "throughput", "speedup"):
        first = min(ranked, key=lambda each: ratio(each.variant, first.variant).value)
        return [first, *(each for each in ranked if each != first and as_good(ratio(each.variant, first.variant)))]
    values = {each.variant.name: value for value, each in known}
    # Models are judged on the same rows, so a metric has hardly any noise of its own.
    least = SAME if name in UNITS else EXACT
    best = values[first.variant.name]
    return [each for each in ranked if abs(values[each.variant.name] - best) <= least * max(abs(best), EXACT)]


def as_good(ratio: Estimate) -> bool:
    """Whether a ratio of times says that one model is as fast as another: nearly 1, or 1 within the noise and not far from it.

    Example:
        >>> as_good(Estimate(value=1.02, low=0.99, high=1.05)), as_good(Estimate(value=1.02, low=1.01, high=1.03))
        (True, False)
    """
    return ratio.value <= 1 + SAME or (ratio.low <= 1 and ratio.value <= 1 + 3 * SAME)


def with_frontier(found: Sequence[Found], metric: str | None) -> list[Found]:
    """Variants, those marked that no other one beats in both time and the drop of the main metric."""
    points = {
        each.variant.name: (each.ratio.value, each.drops[metric or ""].value)
        for each in found
        if each.ratio is not None and (metric or "") in each.drops and each.state != "slower"
    }

    def beaten(name: str) -> bool:
        time, drop = points[name]
        others = (other for each, other in points.items() if each != name)
        return any(a <= time and b <= drop and (a < time or b < drop) for a, b in others)

    front = {name for name in points if not beaten(name)}
    return [each.model_copy(update={"on_frontier": each.variant.name in front}) for each in found]


def nearest(found: Sequence[Found], limits: Sequence[Limit], reference: Found, metric: str | None) -> Found:
    """The variant that misses limits by the least, where none keeps them all."""

    def distance(each: Found) -> float:
        return sum(excess for _, excess in missed(limits, each, reference, metric)) or math.inf

    return min(found, key=distance)
