"""Limits and goals: what a variant misses, which of two is better, and the list of all with the frontier. Nothing runs here."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from octobert.core.estimate import Estimate
from octobert.core.limits import EXACT, UNITS, Check, Limit, check, metric_named, objective_named
from octobert.core.selection import Variant, VariantResult

# Relative difference of times, sizes and memory that is not worth another criterion.
SAME = 0.01


def figure_of(result: VariantResult, name: str, metric: str | None) -> Estimate | None:
    """A figure of a variant; None where it was not measured.

    Args:
        name: of the figure; `metric` for the main metric.
        metric: the main metric.
    """
    objective = objective_named(name).name
    if objective in UNITS:
        return result.figures.get(name)
    name_of_metric = metric_named(objective, metric)
    value, drop = result.values.get(name_of_metric), result.drops.get(name_of_metric)
    if value is None or drop is None:
        return None
    return Estimate(
        value=value, low=value + drop.value - drop.high, high=value + drop.value - drop.low
    )


def missed(
    limits: Sequence[Limit], result: VariantResult, reference: VariantResult, metric: str | None
) -> tuple[Check, ...]:
    """The limits that a variant misses, among the figures that are known of it.

    Args:
        reference: the float model.
        metric: the main metric.
    """
    checks: list[Check] = []
    for limit in limits:
        figure = figure_of(result, limit.of, metric)
        baseline = figure_of(reference, limit.of, metric)
        if figure is not None and baseline is not None:
            drop = result.drops.get(metric_named(limit.of, metric))
            checks += check(limit, figure, drop=drop, reference=baseline.value)
    return tuple(part for part in checks if part.state == "missed")


def excess(result: VariantResult) -> float:
    """By how much a variant misses limits."""
    return sum(part.relative_excess for part in result.checks)


def nearest(results: Iterable[VariantResult]) -> VariantResult:
    """The variant that misses limits by the least, where none keeps them all."""
    return min(results, key=lambda result: excess(result) or math.inf)


@dataclass(frozen=True)
class Ranking:
    """How the variants of a search compare.

    Args:
        goals: figures, the most important one first. The next one decides between variants that are as good as the best one.
        metric: the main metric.
        ratio: the time of one variant divided by that of another, measured in turn.
    """

    goals: Sequence[str]
    metric: str | None
    ratio: Callable[[Variant, Variant], Estimate]

    def ranked(self, results: Iterable[VariantResult]) -> list[VariantResult]:
        """Variants of which the figures of all goals are known, from the best to the worst."""
        rest, ranked = list(results), list[VariantResult]()
        while rest:
            equal = rest
            for goal in self.goals:
                equal = self._best(equal, goal)
            ranked.append(equal[0])
            rest.remove(equal[0])
        return ranked

    def _best(self, results: list[VariantResult], goal: str) -> list[VariantResult]:
        """The best variants by one figure, and those that are as good; the best one first."""
        objective = objective_named(goal)
        values = [figure_of(result, goal, self.metric) for result in results]
        measured = [
            (value.value, result)
            for value, result in zip(values, results, strict=True)
            if value is not None
        ]
        if not measured:
            return results
        measured.sort(key=lambda pair: -pair[0] if objective.more_is_better else pair[0])
        best, first = measured[0]
        ranked = [result for _, result in measured]
        if objective.name in ("latency", "throughput", "speedup"):
            fastest = min(
                ranked, key=lambda result: self.ratio(result.variant, first.variant).value
            )
            return [
                fastest,
                *(
                    result
                    for result in ranked
                    if result != fastest and as_good(self.ratio(result.variant, fastest.variant))
                ),
            ]
        # Models are judged on the same rows, so a metric has hardly any noise of its own.
        least = SAME if objective.name in UNITS else EXACT
        return [
            result
            for value, result in measured
            if abs(value - best) <= least * max(abs(best), EXACT)
        ]

    def listed(
        self, chosen: VariantResult, others: Iterable[VariantResult], *, keeps: bool
    ) -> list[VariantResult]:
        """All variants, and those marked that no other one beats in both time and the drop of the main metric.

        Args:
            chosen: comes first.
            others: that were tried.
            keeps: whether the chosen one keeps all limits.
        """
        if keeps:
            chosen = chosen.replaced(state="chosen")
        rest = []
        for other in {
            other.variant.name: other for other in others if other.variant != chosen.variant
        }.values():
            result = self._beside(other, chosen)
            if result.state == "not tried" and result.ratio is not None:
                result = result.replaced(state="slower")
            rest.append(result)
        rest.sort(
            key=lambda result: (
                result.state in ("slower", "not tried"),
                result.ratio.value if result.ratio else math.inf,
            )
        )
        return _with_frontier([chosen, *rest], self.metric or "")

    def _beside(self, result: VariantResult, chosen: VariantResult) -> VariantResult:
        """A variant with its times relative to the chosen one, in the last race of both. Others do not compare."""
        if (
            result.ratio in (None, Estimate.exactly(1.0))
            or chosen.ratio is None
            or chosen.time_ms is None
        ):
            return result
        ratio = self.ratio(result.variant, chosen.variant)
        times = {"ratio": chosen.ratio.value, "time_ms": chosen.time_ms.value}
        return result.replaced(**{name: ratio.times(time) for name, time in times.items()})


def as_good(ratio: Estimate) -> bool:
    """Whether a ratio of times says that one model is as fast as another: nearly 1, or 1 within the noise and not far from it.

    Example:
        >>> as_good(Estimate(value=1.02, low=0.99, high=1.05)), as_good(Estimate(value=1.02, low=1.01, high=1.03))
        (True, False)
    """
    return ratio.value <= 1 + SAME or (ratio.low <= 1 and ratio.value <= 1 + 3 * SAME)


def _with_frontier(results: Sequence[VariantResult], metric: str) -> list[VariantResult]:
    """Variants, those marked that no other one beats in both time and the drop of a metric."""
    points = {
        result.variant.name: (result.ratio.value, result.drops[metric].value)
        for result in results
        if result.ratio is not None and metric in result.drops and result.state != "slower"
    }

    def beaten(name: str) -> bool:
        time, drop = points[name]
        return any(a <= time and b <= drop and (a < time or b < drop) for a, b in points.values())

    front = {name for name in points if not beaten(name)}
    return [result.replaced(on_frontier=result.variant.name in front) for result in results]
