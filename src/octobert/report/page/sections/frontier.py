"""Speed against quality: every candidate with its intervals, the frontier, the limits, and who wins within those of the reader.

Of a search the candidates are its variants; of another run its targets and float baselines, at each timed shape. What is drawn
is decided here: logarithmic axes, what is far beyond the rest, whose quality was not judged. `frontier.html` draws it and names
the first candidate in the order of preference that keeps the limits of the user.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from octobert.core.estimate import Estimate, quantile
from octobert.core.limits import COSTS, UNITS
from octobert.core.measurements import Comparison, in_order
from octobert.core.results import Report
from octobert.core.selection import Selection, VariantResult
from octobert.report import choices, commands, judged, summary
from octobert.report.page.runs import Content, Section, ShownRun
from octobert.report.verdict import Verdict, verdict
from octobert.report.words import Phrasing, cost_of, loss, words_of, words_of_choice

# Times that span more are on a logarithmic axis.
_WIDE = 10.0
# A loss that is larger than the limit and all that matter by this factor is drawn at the edge.
_FAR = 5.0


@dataclass(frozen=True)
class ChartAxis:
    """One axis of the chart.

    Args:
        name: what a menu calls it; a shape.
        title: with its unit.
        unit: of values.
        more: whether more is better.
        low, high: ends of what is drawn.
        limit: that the recipe sets, or octobert assumes; None where there is none.
        logarithmic: whether equal factors are equally long.
        change: whether values are differences from the float model.
    """

    name: str
    title: str
    unit: str
    more: bool
    low: float
    high: float
    limit: float | None = None
    logarithmic: bool = False
    change: bool = False

    @property
    def sign(self) -> int:
        """A factor for figures, so that less is better: 1 or -1."""
        return -1 if self.more else 1

    def keeps(self, figure: Estimate | None) -> bool:
        """True for a known figure within the limit; `frontier.html` does the same with the limit of the user."""
        if figure is None or self.limit is None:
            return figure is not None
        return self.sign * figure.value <= self.sign * self.limit


@dataclass(frozen=True)
class Point:
    """One candidate.

    Args:
        name: as reports name it.
        state: in one word or two, as tables say it.
        x: its figure on each axis of cost; None where it was not measured.
        y: its quality; None where that was not judged.
        front: for each axis of cost, whether no other one is better in both.
        details: sentences for a reader who points at it.
        command: to use it, or to make it; empty where there is none.
        floating: whether it is a float model.
        keeps: whether a search found that it keeps all limits.
        open: whether it may win; a variant that misses a limit which the chart does not have may not.
        named: whether its name stands in the chart.
    """

    name: str
    state: str
    x: tuple[Estimate | None, ...]
    y: Estimate | None
    details: tuple[str, ...]
    command: str
    floating: bool
    keeps: bool = False
    open: bool = True
    named: bool = False
    front: tuple[bool, ...] = ()


@dataclass(frozen=True)
class Frontier:
    """The chart.

    Args:
        x: the axes of cost; a reader picks one.
        y: the axis of quality.
        points: the candidates.
        order: for each axis of cost, indices of the candidates that may win, the preferred one first.
        note: what the axes mean, and where the intervals come from.
    """

    x: tuple[ChartAxis, ...]
    y: ChartAxis
    points: tuple[Point, ...]
    order: tuple[tuple[int, ...], ...]
    note: str = ""

    def winner(self, axis: int = 0) -> Point | None:
        """The preferred candidate within the limits of the axes; None where nothing keeps them."""
        ordered = (self.points[n] for n in self.order[axis])
        affordable = (point for point in ordered if self.x[axis].keeps(point.x[axis]))
        return next((point for point in affordable if self.y.keeps(point.y)), None)


def section(run: ShownRun) -> Section | None:
    """The chart, where two candidates can be compared."""
    chart = frontier(run.report, verdict(run.report), run.folder)
    if chart is None:
        return None
    cost = chart.x[0].title.removesuffix(f" in {chart.x[0].unit}")
    return Section(
        f"{_title(chart.y.name)} against {cost}",
        {"chart": chart, "winner": chart.winner()},
        _data(chart),
    )


def _title(name: str) -> str:
    """A name at the beginning of a heading: one with capitals of its own, such as nDCG, stays."""
    return name if name != name.lower() else name.capitalize()


def _data(chart: Frontier) -> Content:
    """The chart as the script draws it."""
    points = [
        {
            "name": point.name,
            "state": point.state,
            "x": [_ends(figure) for figure in point.x],
            "y": _ends(point.y),
            "front": point.front,
            "details": point.details,
            "command": point.command,
            "float": point.floating,
            "named": point.named,
        }
        for point in chart.points
    ]
    return {
        "x": [asdict(axis) for axis in chart.x],
        "y": asdict(chart.y),
        "points": points,
        "order": chart.order,
    }


def _ends(figure: Estimate | None) -> tuple[float, float, float] | None:
    return None if figure is None else (figure.value, figure.low, figure.high)


def frontier(report: Report, answer: Verdict, folder: str = "OUT") -> Frontier | None:
    """Return the chart of a report; None where fewer than two candidates can be drawn.

    Args:
        answer: on the report.
        folder: output directory, for the commands.
    """
    choice = report.choice
    points = (
        _of_variants(report, choice, folder) if choice is not None else _of_models(report, folder)
    )
    drawn = [point for point in points if point.y is not None and any(point.x)]
    if len(drawn) < 2:
        return None
    ys = [point.y for point in drawn if point.y is not None]
    matter = ys
    if choice is not None:
        columns = [_cost_axis(choice, points)]
        matter = [point.y for point in drawn if point.y and point.keeps]
    else:
        columns = [
            _axis(str(shape), "median latency", "ms", [point.x[i] for point in points])
            for i, shape in enumerate(in_order(report.times))
        ]
    y = _quality_axis(report, matter or ys, ys)
    points = [
        replace(
            point, front=tuple(_is_ahead(point, points, i, x, y) for i, x in enumerate(columns))
        )
        for point in points
    ]
    order = tuple(_order(points, i, axis, answer.use) for i, axis in enumerate(columns))
    return Frontier(tuple(columns), y, tuple(points), order, _note(report))


def _of_variants(report: Report, choice: Selection, folder: str) -> list[Point]:
    """The variants of a search."""
    words, metric = words_of_choice(choice), choice.metric or ""
    unit, points, limit = words.scale(metric), [], judged.accepted_drop(report)
    for result in choices.in_order(choice):
        drop = _finite(result.drops.get(metric))
        details = [result.reason]
        if drop is not None:
            details.insert(0, f"{words.change(metric, drop)} on {result.rows:,} tuning rows")
        # One that misses a limit on the metric wins where the reader accepts more; any other limit is not in the chart.
        elsewhere = result.state == "excluded" and (
            limit is None or drop is None or drop.value <= limit
        )
        is_measured = bool(result.ratio or result.drops)
        point = Point(
            result.variant.name,
            choices.state_of(result),
            (_finite(_cost(choice, result)),),
            None if drop is None else drop.times(-unit),
            tuple(details),
            commands.of_variant(report, folder, result.variant) if is_measured else "",
            floating=not result.variant.precision.startswith("int"),
            keeps=choices.is_admissible(result),
            open=not elsewhere and result.state != "not tried",
            named=result.on_frontier or result.variant.name in (choice.winner, choice.reference),
        )
        points.append(point)
    return points


def _of_models(report: Report, folder: str) -> list[Point]:
    """The targets and the float baselines of a run."""
    references = {comparison.reference for comparison in report.compared}
    words, points = words_of(report), []
    for figures, footprint in report.timed:
        comparison, precision = figures.against_float, summary.precision(report, figures)
        timed = {latency.shape: latency.samples_ms for latency in figures.times}
        samples = [timed.get(shape) for shape in in_order(report.times)]
        against = (
            f" against {comparison.reference}"
            if comparison is not None and comparison.difference is not None
            else ""
        )
        details = [
            f"{text}{against}" for text in loss(words, comparison, report.data.evaluation_rows)
        ]
        details.append(f"{precision}; {footprint.size_mb:.3g} MB")
        floating = not precision.startswith("int")
        is_reference = figures.model in references or (floating and not figures.scores)
        point = Point(
            figures.model,
            "float" if floating else "8-bit",
            tuple(_finite(quantile(times)) if times else None for times in samples),
            _finite(_quality(report, words, comparison, is_reference=is_reference)),
            tuple(details),
            commands.of_candidate(report, folder, figures.model),
            floating,
            named=True,
        )
        points.append(point)
    return points


def _kind(report: Report) -> str:
    """The figure on the axis of quality: the change of the metric, agreement with float, or the error of the outputs."""
    if any(comparison.difference is not None for comparison in report.compared):
        return "metric"
    has_fidelity = any(math.isfinite(comparison.fidelity) for comparison in report.compared)
    return "fidelity" if has_fidelity else "error"


def _quality(
    report: Report, words: Phrasing, compared: Comparison | None, *, is_reference: bool
) -> Estimate | None:
    """The figure of a model on the axis of quality; the float model that others are compared with has no loss."""
    kind = _kind(report)
    if compared is None:
        is_share = any(comparison.is_share for comparison in report.compared[:1])
        same = (100.0 if is_share else 1.0) if kind == "fidelity" else 0.0
        return Estimate.exactly(same) if is_reference else None
    if kind == "error":
        return Estimate.exactly(compared.output_error)
    if kind == "fidelity":
        scale = 100.0 if compared.is_share else 1.0
        return Estimate.exactly(scale * compared.fidelity)
    if compared.difference is None:
        return None
    value = compared.difference
    low, high = (value if end is None else end for end in (compared.low, compared.high))
    return Estimate(value=value, low=low, high=high).times(words.scale(words.metric or ""))


def _quality_axis(report: Report, matter: Sequence[Estimate], ys: Sequence[Estimate]) -> ChartAxis:
    """The axis of quality. What is far below everything that matters would press the rest together."""
    words, limit = words_of(report), judged.accepted_drop(report)
    kind = "metric" if report.choice is not None else _kind(report)
    top, bottom = max(y.high for y in ys), min(y.low for y in ys)
    if kind == "error":
        title = "output error (root mean square), less is better"
        return ChartAxis("quality", title, "", more=False, low=0.0, high=1.08 * top or 1.0)
    if kind == "fidelity":
        first = report.compared[0]
        name, unit, best = first.fidelity_name, *(("%", 100.0) if first.is_share else ("", 1.0))
        margin = 0.1 * ((best - bottom) or 0.01 * best)
        title = f"{name} with the float model{' in %' if unit else ''}"
        return ChartAxis(name, title, unit, more=True, low=bottom - margin, high=best + margin)
    scale = words.scale(words.metric or "")
    limit = None if limit is None else -scale * limit
    edge = _FAR * min([0.0, limit or 0.0, *(y.low for y in matter)])
    bottom, top = min([0.0, *(y.low for y in ys if y.low >= edge)]), max(0.0, top)
    # A limit that octobert assumes is drawn where it is among the points.
    if limit is not None and judged.is_limited(report) and limit >= bottom - (top - bottom):
        bottom = min(bottom, limit)
    margin = 0.06 * ((top - bottom) or 1.0)
    name, unit = words.name("metric"), words.unit(words.metric or "").strip()
    title = f"{name} against float{', points' if scale == 100 else ''}"
    return ChartAxis(name, title, unit, True, bottom - margin, top + margin, limit, change=True)


def _cost(choice: Selection, result: VariantResult) -> Estimate | None:
    """The cost of a variant, by the goal: less is better, but for throughput."""
    if choice.goal in COSTS:
        cost = cost_of(result, choice.goal)
        return None if cost is None else Estimate.exactly(cost)
    return choices.speed_of(choice, result)


def _cost_axis(choice: Selection, points: Sequence[Point]) -> ChartAxis:
    """The axis of the goal of a search; of latency where a metric is the goal."""
    figures = [point.x[0] for point in points]
    if choice.goal == "throughput":
        return _axis("goal", "throughput", "rows/s", figures, more=True)
    shown = choice.goal if choice.goal in COSTS or choice.goal.startswith("latency@") else "latency"
    limit = judged.accepted_ms(choice) if choice.goal not in COSTS else None
    return _axis(
        "goal",
        words_of_choice(choice).name(shown),
        UNITS.get(shown, "ms"),
        figures,
        limit=limit,
    )


def _axis(
    name: str,
    title: str,
    unit: str,
    figures: Sequence[Estimate | None],
    *,
    more: bool = False,
    limit: float | None = None,
) -> ChartAxis:
    """An axis of cost around some figures."""
    ends = [end for figure in figures if figure is not None for end in (figure.low, figure.high)]
    low, high = min(ends, default=0.0), max(ends, default=1.0)
    if limit is not None and low / 2 <= limit <= 2 * high:
        low, high = min(low, limit), max(high, limit)
    logarithmic = low > 0 and high > _WIDE * low
    if logarithmic:
        low, high = low / 1.1, high * 1.1
    else:
        span = (high - low) or high or 1.0
        low, high = max(0.0, low - 0.06 * span), high + 0.06 * span
    return ChartAxis(name, f"{title} in {unit}", unit, more, low, high, limit, logarithmic)


def _is_ahead(point: Point, points: Sequence[Point], i: int, axis: ChartAxis, y: ChartAxis) -> bool:
    """True where no other candidate is better in one figure and no worse in the other."""

    def costs(candidate: Point) -> tuple[float, float] | None:
        cost, quality = candidate.x[i], candidate.y
        if cost is None or quality is None:
            return None
        return axis.sign * cost.value, y.sign * quality.value

    point_costs = costs(point)
    others = filter(None, map(costs, points))
    return point_costs is not None and not any(
        cost <= point_costs[0] and loss <= point_costs[1] and (cost, loss) != point_costs
        for cost, loss in others
    )


def _order(points: Sequence[Point], i: int, axis: ChartAxis, preferred: str) -> tuple[int, ...]:
    """Candidates that may win, the cheapest first; the preferred one before those that are better within the noise only."""
    eligible = [n for n, point in enumerate(points) if point.y is not None and point.open]
    costs = {n: figure for n in eligible if (figure := points[n].x[i]) is not None}
    ranked = sorted(costs, key=lambda n: axis.sign * costs[n].value)
    preferred_index = next((n for n in ranked if points[n].name == preferred), None)
    if preferred_index is None:
        return tuple(ranked)
    # Those that a search found to keep its limits have lost to the preferred one.
    rivals = [n for n in ranked[: ranked.index(preferred_index)] if not points[n].keeps]
    best = costs[preferred_index]
    ahead = [n for n in rivals if costs[n].high < best.low or best.high < costs[n].low]
    return (*ahead, preferred_index, *(n for n in ranked if n not in (*ahead, preferred_index)))


def _note(report: Report) -> str:
    """The note on the chart: its boxes, and the source of their intervals."""
    choice = report.choice
    if choice is not None:
        metric = words_of(report).name("metric")
        return (
            f"Boxes are 95 % intervals: of times over the rounds of the search, of {metric} over {choice.rows:,} tuning rows, "
            f"both compared with {choice.reference}."
        )
    note = "Boxes are 95 % intervals: of the median of the times by its order statistics"
    kind = _kind(report)
    if kind == "metric":
        compared = "Targets are compared with the float model on their own runtime."
        return f"{note}, of the metric over the evaluation rows. {compared}"
    why = (
        "The data has no labels"
        if report.task.primary is None
        else "The metric could not be compared"
    )
    what = (
        "agreement with the float model takes the place of accuracy"
        if kind == "fidelity"
        else "the error of outputs is shown"
    )
    return f"{note}. {why}: {what}, without an interval."


def _finite(figure: Estimate | None) -> Estimate | None:
    """A figure that can be drawn."""
    is_finite = figure is not None and all(
        map(math.isfinite, (figure.value, figure.low, figure.high))
    )
    return figure if is_finite else None
