"""Phrases on figures and limits: their names, what a model misses, its distance from the best one.

Differences of a metric whose values are between 0 and 1 are percentage points. A difference whose interval includes 0, and a
ratio whose interval includes 1, are within the noise. No text ends with a full stop.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

from octobert.core.estimate import Estimate
from octobert.core.limits import (
    COSTS,
    UNITS,
    Check,
    Limit,
    metric_named,
    objective_named,
    rounds_needed,
)
from octobert.core.measurements import Comparison, score_named
from octobert.core.results import AccuracySearch, Report
from octobert.core.selection import Selection, VariantResult
from octobert.core.wording import (
    between,
    fidelity_text,
    metric_text,
    points,
    rows_text,
    signed,
    times_text,
)

_NAMES = {"memory": "peak memory", "load": "load time"}
# Costs beside time → the words for more, and for as much.
_MORE = {
    "size": ("larger", "as small"),
    "memory": ("more memory", "as little memory"),
    "load": ("longer to load", "as quick to load"),
}


@dataclass(frozen=True)
class Phrasing:
    """The wording of one run.

    Args:
        metric: the main metric; None for data without labels.
        values: metric → value of the float model.
        goal: what a search optimizes.
    """

    metric: str | None
    values: Mapping[str, float] = field(default_factory=dict)
    goal: str = "latency"

    def name(self, figure: str) -> str:
        """The name of a figure: `p90 latency`, `F1`."""
        key = self.key(figure)
        if key.startswith("latency@"):
            return f"{key.removeprefix('latency@')} latency"
        return _NAMES.get(key) or metric_text(key)

    def in_points(self, metric: str) -> bool:
        """True where differences of a metric are percentage points."""
        return 0 <= self.values.get(metric, 0.0) <= 1

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
        return f"{sign}{amount}{between(figure, partial(self._number, metric))}"

    def change(self, metric: str, drop: Estimate) -> str:
        """A drop as a change of the metric, with its interval: `F1 −1.4 points (−2.0 to −0.8)`."""
        figure, signed_ = drop.times(-1), partial(self.signed, metric)
        value = f"{signed_(figure.value)}{self.unit(metric)}"
        return f"{self.name(metric)} {value}{between(figure, signed_)}"

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

    def missed(self, check: Check) -> str:
        """A phrase on a model whose figure is beyond a limit."""
        limit, figure = check.limit, check.figure
        assert figure is not None
        name, off = self.name(limit.of), abs(check.excess)
        if limit.max_drop is not None:
            metric = self.key(limit.of)
            return f"{name} drops by {self.drop(metric, figure)}, {self.amount(metric, off)} more than the limit"
        if limit.min_gain is not None:
            verb, sign = ("improves", 1) if figure.value >= 0 else ("gets worse", -1)
            change = figure.times(sign)
            ends = between(change, "{:.0f}".format)
            return f"{name} {verb} by {change.value:.0f} %{ends}, {off:.2g} % less than the limit"
        unit, more = _unit(limit.of), "more" if limit.at_most is not None else "less"
        value = f"{figure.value:.4g}{unit}{between(figure, '{:.4g}'.format)}"
        return f"{name} is {value}, {off:.2g}{unit} {more} than the limit"

    def reason(self, check: Check, rows: int) -> str:
        """What speaks against a model that should keep a limit; empty where it does.

        Args:
            rows: evaluation rows.
        """
        if check.state == "kept":
            return ""
        if check.figure is None:
            return "the final measurement does not have this figure"
        if check.state == "missed":
            return f"{self.missed(check)}{'' if check.is_clear else ' (the interval includes the limit)'}"
        if math.isinf(check.figure.high):
            least = rounds_needed((check.limit.objective.percentile or 50) / 100)
            return f"too few rounds to tell; set benchmark.repeats to {least} or more"
        if check.limit.objective.name in UNITS or check.limit.min_gain is not None:
            return "the interval of the measurement reaches beyond it"
        enough = "the figure is at the limit"
        if check.rows is not None:
            enough = f"about {check.rows:,} such rows would do"
        return f"{rows_text(rows)} are too few to tell; {enough}"

    def behind(self, result: VariantResult, best: VariantResult, *, named: bool = True) -> str:
        """The distance of a variant from the best one: `1.2 × slower than openvino-cpu int8`.

        Args:
            named: with the name of the best one.
        """
        than = f" than {best.variant.name}" if named else ""
        as_ = f" as {best.variant.name}" if named else ""
        goal = objective_named(self.goal).name
        if goal in COSTS:
            more, equal = _MORE[goal]
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
    return result.figures[goal].value if goal in result.figures else None


def loss(words: Phrasing, compared: Comparison | None, rows: int) -> list[str]:
    """The loss of a model on the evaluation rows: `F1 −0.1 points (−0.6 to +0.3) on your 408 rows`.

    Args:
        compared: with the float model; None where it was not.
        rows: evaluation rows.
    """
    if compared is None:
        return []
    on = f"on your {rows_text(rows)}"
    drop = compared.drop
    if drop is None or not math.isfinite(drop.value) or compared.metric is None:
        if not math.isfinite(compared.fidelity):
            return [f"{compared.fidelity_name} undefined {on}"]
        return [
            f"{compared.fidelity_name} {fidelity_text(compared)} with {compared.reference} {on}"
        ]
    return [f"{words.change(compared.metric, drop)} {on}"]


def _unit(figure: str) -> str:
    unit = UNITS.get(objective_named(figure).name)
    return f" {unit}" if unit else ""


def words_of(report: Report) -> Phrasing:
    """The wording of a report: by its search, or by its task and the float model."""
    if report.choice is not None:
        return words_of_choice(report.choice)
    compared = report.compared
    name = compared[0].reference if compared else ""
    score = score_named(report.task.primary, report.of(name).scores)
    metric = next(
        (comparison.metric for comparison in compared if comparison.metric is not None),
        report.task.primary,
    )
    return Phrasing(metric, {} if score is None or metric is None else {metric: score.value})


def criterion(search: AccuracySearch) -> str:
    """What an accuracy-aware search demands of a plan."""
    return Phrasing(search.metric, {search.metric: search.float_value}).limit(search.criterion)


def words_of_choice(choice: Selection) -> Phrasing:
    """The wording of a finished search."""
    return Phrasing(choice.metric, choice.float_result.values, choice.goal)
