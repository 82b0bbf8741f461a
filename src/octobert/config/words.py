"""Phrases on a variant of a search: the names of its figures, the limit that it misses, its distance from the best one.

Differences of a metric whose values are between 0 and 1 are percentage points. A difference whose interval includes 0, and a
ratio whose interval includes 1, are within the noise. No text ends with a full stop.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from octobert.config.choosing import UNITS, Limit, metric_named, objective_named
from octobert.core.estimate import Estimate
from octobert.core.measurements import Comparison, score_named
from octobert.core.results import Report
from octobert.core.selection import Selection, Variant, VariantResult
from octobert.core.wording import fidelity_text, points, rows_text, signed, times_text

NOT_TRIED = "the search ended before it was tried"
_NAMES = {"memory": "peak memory", "load": "load time"}
# Goals that are costs beside time → the words for more, and for as much.
COSTS = {
    "size": ("larger", "as small"),
    "memory": ("more memory", "as little memory"),
    "load": ("longer to load", "as quick to load"),
}


@dataclass(frozen=True)
class Phrasing:
    """The wording of one search.

    Args:
        goal: what is optimized.
        metric: the main metric; None for data without labels.
        reference: the result of the float model.
    """

    goal: str
    metric: str | None
    reference: VariantResult

    @staticmethod
    def about(metric: str | None, values: Mapping[str, float], name: str = "") -> Phrasing:
        """The wording where no search was made.

        Args:
            values: metric → value of the float model.
            name: of the float model.
        """
        variant = Variant(name=name, target=name, precision="f32")
        return Phrasing(
            "latency",
            metric,
            VariantResult(variant=variant, state="admissible", reason="", values=dict(values)),
        )

    @staticmethod
    def from_selection(choice: Selection) -> Phrasing:
        """The wording of a finished search."""
        reference = next(
            result for result in choice.found if result.variant.name == choice.reference
        )
        return Phrasing(choice.goal, choice.metric, reference)

    def name(self, figure: str) -> str:
        """The name of a figure: `p90 latency`, `F1`."""
        key = self.key(figure)
        if key.startswith("latency@"):
            return f"{key.removeprefix('latency@')} latency"
        return _NAMES.get(key) or re.sub(r"\bf1\b", "F1", key.replace("_", " "))

    def in_points(self, metric: str) -> bool:
        """True where differences of a metric are percentage points."""
        return 0 <= self.reference.values.get(metric, 0.0) <= 1

    def scale(self, metric: str) -> float:
        """The factor that puts a difference of a metric in its unit."""
        return 100.0 if self.in_points(metric) else 1.0

    def signed(self, metric: str, difference: float) -> str:
        """A difference of a metric with its sign, without its unit: `−1.4`."""
        return signed(self._number(metric, difference))

    def unit(self, metric: str) -> str:
        """The unit of differences of a metric, after a space; empty where they have none."""
        return " points" if self.in_points(metric) else ""

    def amount(self, metric: str, value: float) -> str:
        """A difference of a metric without its sign: `1.4 points`."""
        return f"{self._number(metric, abs(value))}{self.unit(metric)}"

    def _number(self, metric: str, difference: float) -> str:
        """A difference of a metric, without its unit."""
        return points(difference) if self.in_points(metric) else f"{difference:.3g}"

    def drop(self, metric: str, figure: Estimate) -> str:
        """A drop with its interval: `1.4 points (0.8 to 2.0)`; a rise has a minus sign."""
        amount = self.amount(metric, figure.value)
        sign = "−" if figure.value < 0 and float(amount.split()[0]) else ""
        return f"{sign}{amount}{self.interval(metric, figure)}"

    def change(self, metric: str, drop: Estimate) -> str:
        """A drop as a change of the metric, with its interval: `F1 −1.4 points (−2.0 to −0.8)`."""
        value, low, high = (self.signed(metric, -end) for end in (drop.value, drop.high, drop.low))
        interval = "" if drop.low == drop.high else f" ({low} to {high})"
        return f"{self.name(metric)} {value}{self.unit(metric)}{interval}"

    def interval(self, metric: str, figure: Estimate) -> str:
        """The interval of a drop in brackets; empty where it has none."""
        if figure.low == figure.high:
            return ""
        return (
            f" ({self._number(metric, figure.low)} to {self._number(metric, figure.high)})".replace(
                "-", "−"
            )
        )

    def drop_cell(self, metric: str, figure: Estimate) -> str:
        """A drop for a table, without its unit: `1.4 [0.8, 2.0]`."""
        value, low, high = (
            self._number(metric, end) for end in (figure.value, figure.low, figure.high)
        )
        return value if figure.low == figure.high else f"{value} [{low}, {high}]"

    def limit(self, limit: Limit) -> str:
        """A limit: `F1 drops by at most 1 point`."""
        name, unit, parts = self.name(limit.of), _unit(limit.of), []
        if limit.max_drop == 0:
            parts.append(f"{name} does not drop")
        elif limit.max_drop is not None:
            parts.append(f"{name} drops by at most {self.allowance(limit)}")
        if limit.at_least is not None:
            parts.append(f"{name} is at least {limit.at_least:g}{unit}")
        if limit.at_most is not None:
            parts.append(f"{name} is at most {limit.at_most:g}{unit}")
        if limit.min_gain is not None:
            parts.append(f"{name} improves by at least {limit.min_gain:g} %")
        return " and ".join(parts)

    def allowance(self, limit: Limit) -> str:
        """The largest accepted drop: `1 point`, `1 % of its float value`."""
        hundredths = f"{100 * (limit.max_drop or 0.0):.4g}"
        if limit.relative:
            return f"{hundredths} % of its float value"
        if not self.in_points(self.key(limit.of)):
            return f"{limit.max_drop:g}"
        return f"{hundredths} point{'' if hundredths == '1' else 's'}"

    def misses_drop(self, limit: Limit, drop: Estimate) -> str:
        """A phrase on a variant whose metric drops by more than `max_drop`.

        Args:
            drop: metric of the float model minus metric of the variant.
        """
        metric = self.key(limit.of)
        more = self.amount(metric, drop.value - self.accepted_drop(limit))
        return (
            f"{self.name(limit.of)} drops by {self.drop(metric, drop)}, {more} more than the limit"
        )

    def misses_value(self, limit: Limit, value: Estimate) -> str:
        """A phrase on a variant that misses `at_least` or `at_most`.

        Args:
            value: of the figure, in its unit.
        """
        is_above = limit.at_most is not None and value.value > limit.at_most
        if is_above or limit.at_least is None:
            bound, more = limit.at_most, "more"
        else:
            bound, more = limit.at_least, "less"
        unit = _unit(limit.of)
        ends = f" ({value.low:.4g} to {value.high:.4g})".replace("inf", "∞")
        interval = "" if value.low == value.high else ends
        missed = f"{abs(value.value - (bound or 0.0)):.2g}{unit} {more} than the limit"
        return f"{self.name(limit.of)} is {value.value:.4g}{unit}{interval}, {missed}"

    def misses_gain(self, limit: Limit, gain: Estimate) -> str:
        """A phrase on a variant that improves by less than `min_gain`.

        Args:
            gain: in percent.
        """
        verb, sign = ("improves", 1) if gain.value >= 0 else ("gets worse", -1)
        change, missed = gain.times(sign), (limit.min_gain or 0.0) - gain.value
        interval = ""
        if gain.low != gain.high:
            interval = f" ({change.low:.0f} to {change.high:.0f})".replace("-", "−")
        return f"{self.name(limit.of)} {verb} by {abs(gain.value):.0f} %{interval}, {missed:.2g} % less than the limit"

    def behind(self, result: VariantResult, best: VariantResult, *, named: bool = True) -> str:
        """The distance of a variant from the best one: `1.2 × slower than openvino-cpu int8`.

        Args:
            named: with the name of the best one.
        """
        than = f" than {best.variant.name}" if named else ""
        as_ = f" as {best.variant.name}" if named else ""
        goal = objective_named(self.goal).name
        if goal in COSTS:
            more, equal = COSTS[goal]
            ratio = (cost_of(result, goal) or 1) / (cost_of(best, goal) or 1)
            return f"{times_text(ratio)} × {more}{than}" if ratio > 1.005 else f"{equal}{as_}"
        if goal not in UNITS:
            lost = self._loses(result, best, self.key(goal))
            return f"worse by {lost}{than}" if lost else f"as good{as_} within the noise"
        ratio_of_times = relative(result, best)
        if ratio_of_times is None:
            return "not timed"
        if self.tied(result, best):
            lost = self._loses(result, best, self.metric or "")
            return f"as fast{as_} within the noise" + (f", and loses {lost} more" if lost else "")
        slower = ratio_of_times.value > 1
        ratio = ratio_of_times.value if slower else 1 / ratio_of_times.value
        return f"{times_text(ratio)} × {'slower' if slower else 'faster'}{than}"

    def tied(self, result: VariantResult, best: VariantResult) -> bool:
        """True where the goal is time, and that of a variant cannot be told from that of the best one."""
        goal, ratio = objective_named(self.goal).name, relative(result, best)
        by_time = goal in UNITS and goal not in COSTS
        return by_time and ratio is not None and ratio.low <= 1 <= ratio.high

    def dropped(self, result: VariantResult, best: VariantResult) -> str:
        """Why a variant was dropped before its accuracy was known."""
        rounds = f" after {result.rounds} rounds" if result.rounds else ""
        return f"{self.behind(result, best, named=False)}{rounds}; its accuracy was not judged"

    def accepted_drop(self, limit: Limit) -> float:
        """The largest drop that a limit accepts."""
        return limit.accepted_drop(self.reference.values.get(self.key(limit.of), 0.0)) or 0.0

    def lines(self, limits: Sequence[Limit]) -> dict[str, float]:
        """Limits as lines of the chart: the fields `accepted_drop` and `accepted_ms` of a `Selection`."""
        drops, times = [], []
        for limit in limits:
            value = self.reference.values.get(self.metric or "")
            if self.key(limit.of) == self.metric:
                if limit.max_drop is not None:
                    drops.append(self.accepted_drop(limit))
                if limit.at_least is not None and value is not None:
                    drops.append(value - limit.at_least)
            elif limit.of == self.goal and limit.at_most is not None:
                times.append(limit.at_most)
            if self.reference.time_ms is not None and limit.of in (self.goal, "speedup"):
                reference_ms = self.reference.time_ms.value
                if limit.of == self.goal and limit.min_gain is not None:
                    times.append(reference_ms * (1 - limit.min_gain / 100))
                if limit.of == "speedup" and limit.at_least:
                    times.append(reference_ms / limit.at_least)
        bounds = {
            "accepted_drop": min(drops, default=None),
            "accepted_ms": min(times, default=None),
        }
        return {name: value for name, value in bounds.items() if value is not None}

    def key(self, figure: str) -> str:
        """The name of a figure in records: that of the main metric for `metric`."""
        return metric_named(figure, self.metric)

    def _loses(self, result: VariantResult, best: VariantResult, metric: str) -> str:
        """The larger loss in a metric of a variant; empty where it does not."""
        ours, theirs = (variant.drops.get(metric) for variant in (result, best))
        return (
            self.amount(metric, ours.value - theirs.value)
            if ours and theirs and ours.value > theirs.value
            else ""
        )


def relative(result: VariantResult, best: VariantResult) -> Estimate | None:
    """The time of a variant divided by that of the chosen one, with the interval of their race."""
    if result.ratio is None or best.ratio is None:
        return None
    if result.ratio == Estimate.exactly(1.0):
        # The reference: the interval is that of the chosen one.
        return result.ratio.over(best.ratio)
    return result.ratio.times(1 / best.ratio.value)


def cost_of(result: VariantResult, goal: str) -> float | None:
    """The figure of a goal in `COSTS`, in its unit; None where it is not known."""
    if goal == "load":
        return result.figures[goal].value if goal in result.figures else None
    size = result.size_bytes if goal == "size" else result.peak_memory_bytes
    return None if size is None else size / 1e6


def loss(words: Phrasing, compared: Comparison | None, rows: int) -> list[str]:
    """The loss of a model on the evaluation rows: `F1 −0.1 points (−0.6 to +0.3) on your 408 rows`.

    Args:
        compared: with the float model; None where it was not.
        rows: evaluation rows.
    """
    if compared is None:
        return []
    on = f"on your {rows_text(rows)}"
    undefined = compared.difference is None or not math.isfinite(compared.difference)
    if undefined or compared.low is None or compared.high is None or compared.metric is None:
        if not math.isfinite(compared.fidelity):
            return [f"{compared.fidelity_name} undefined {on}"]
        return [
            f"{compared.fidelity_name} {fidelity_text(compared)} with {compared.reference} {on}"
        ]
    name = words.name(compared.metric)
    figures = (compared.difference or 0.0, compared.low, compared.high)
    value, low, high = (words.signed(compared.metric, figure) for figure in figures)
    return [f"{name} {value}{words.unit(compared.metric)} ({low} to {high}) {on}"]


def _unit(figure: str) -> str:
    unit = UNITS.get(objective_named(figure).name)
    return f" {unit}" if unit else ""


def words_of(report: Report) -> Phrasing:
    """The wording of a report: by its search, or by its task and the float model."""
    if report.choice is not None:
        return Phrasing.from_selection(report.choice)
    name = next((comparison.reference for comparison in report.comparisons), "")
    score = score_named(report.task.primary, report.scores.get(name, ()))
    metric = next(
        (comparison.metric for comparison in report.comparisons if comparison.metric is not None),
        report.task.primary,
    )
    return Phrasing.about(
        metric, {} if score is None or metric is None else {metric: score.value}, name
    )
