"""What a search has found, as a chart: time against the drop of the main metric, with 95 % confidence intervals as boxes.

The chart is an SVG without script, fonts or colours of its own but one: it takes the colour of the text around it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from xml.etree import ElementTree

from octobert.config.choosing import UNITS
from octobert.core.plain import printable
from octobert.core.selection import Figure, Found, Selection
from octobert.report import choices
from octobert.report.reasons import COSTS, Words, cost_of
from octobert.report.times import ms

WIDTH, HEIGHT = 680, 420
# Of the plot inside.
LEFT, RIGHT, TOP, BOTTOM = 58, 14, 16, 52
# Visible on white and on black.
_GREEN = "#2da44e"
# Of the characters of a label, in units of the chart: a little more than the average of common fonts at this size.
_LETTER, _LINE = 6.4, 14.0
# Where a label may stand below its point, and what a unit of that distance counts beside a square unit of overlap.
_LINES, _NEAR = (-6, 10, -20, 24, -34, 38, -48, 52), 4.0
# Times that span more are on a logarithmic axis.
_WIDE = 10.0
# A drop that is larger than all that matter by this factor is drawn at the edge.
_FAR = 2.5


@dataclass(frozen=True)
class Axis:
    """Where values of one figure are drawn.

    Args:
        low, high: values at the ends.
        start, stop: of the ends, in units of the chart.
        logarithmic: whether equal factors are equally long.
    """

    low: float
    high: float
    start: float
    stop: float
    logarithmic: bool = False

    def place(self, value: float) -> float:
        """Where a value is drawn; one outside is drawn at the end."""
        low, value, high = (self._scaled(each) for each in (self.low, min(max(value, self.low), self.high), self.high))
        return self.start + (self.stop - self.start) * (value - low) / (high - low)

    def ticks(self) -> list[float]:
        """Round values between the ends."""
        if self.logarithmic:
            powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            return [d * 10.0**n for n in powers for d in (1, 2, 5) if self.low <= d * 10.0**n <= self.high]
        rough = (self.high - self.low) / 5
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(d * power for d in (1, 2, 2.5, 5, 10) if d * power >= rough)
        return [n * step for n in range(math.ceil(self.low / step), math.floor(self.high / step) + 1)]

    def _scaled(self, value: float) -> float:
        return math.log(value) if self.logarithmic else value


@dataclass(frozen=True)
class Point:
    """A variant in the chart: both figures in the units of the axes."""

    found: Found
    x: Figure
    y: Figure


@dataclass
class _Places:
    """Rectangles (left, top, right, bottom) that labels must not cover."""

    taken: list[tuple[float, float, float, float]] = field(default_factory=list)

    def label(self, text: str, x: float, y: float) -> tuple[float, float]:
        """Take a place for a label next to a point: the nearest free one, from the right to the left."""
        width = _LETTER * len(text)
        sides = [(8.0, dy) for dy in _LINES] + [(-8.0 - width, dy) for dy in _LINES]
        inside = [
            (left, line, abs(line - y))
            for left, line in ((x + dx, y + dy) for dx, dy in sides)
            if left >= LEFT and left + width <= WIDTH and TOP + _LINE - 4 <= line <= HEIGHT - BOTTOM
        ]
        boxes = [(left, line - _LINE + 3, left + width, line + 3) for left, line, _ in inside]
        costs = [
            _NEAR * far + sum(_overlap(box, other) for other in self.taken)
            for box, (*_, far) in zip(boxes, inside, strict=True)
        ]
        best = min(range(len(boxes)), key=costs.__getitem__)
        self.taken.append(boxes[best])
        return inside[best][:2]


def points(choice: Selection) -> list[Point]:
    """Return the variants whose goal and drop are known and finite, in the units of the axes; none without a metric."""
    words, metric = Words.of(choice), choice.metric or ""
    unit = 100.0 if words.in_points(metric) else 1.0
    found = ((each, _cost(choice, each), each.drops.get(metric)) for each in choices.in_order(choice))
    known = [Point(each, x, _scaled(y, unit)) for each, x, y in found if x is not None and y is not None]
    return [point for point in known if all(map(math.isfinite, (*_ends(point.x), *_ends(point.y))))]


def axes(choice: Selection, drawn: Sequence[Point]) -> tuple[Axis, Axis]:
    """Return the axes of the goal and of the drop.

    Args:
        drawn: the variants.
    """
    unit = 100.0 if Words.of(choice).in_points(choice.metric or "") else 1.0
    limit = None if choice.accepted_drop is None else unit * choice.accepted_drop
    # What is far above everything that matters would press the rest together.
    matter = [p.y.high for p in drawn if p.found.state == "admissible" or p.found.variant.name == choice.winner]
    top = max([*(matter or [p.y.high for p in drawn]), _FAR * (limit or 0.0)])
    top = max([top, *(p.y.high for p in drawn if p.y.high <= _FAR * top)])
    bottom = min(0.0, *(p.y.low for p in drawn))
    margin = 0.06 * ((top - bottom) or 1.0)
    y = Axis(bottom - margin, top + margin, HEIGHT - BOTTOM, TOP)
    times = [end for p in drawn for end in (p.x.low, p.x.high)]
    times += [choice.accepted_ms] if choice.accepted_ms is not None and _is_time(choice) else []
    low, high = min(times), max(times)
    if low > 0 and high > _WIDE * low:
        return Axis(low / 1.15, high * 1.3, LEFT, WIDTH - RIGHT, logarithmic=True), y
    span = (high - low) or high or 1.0
    return Axis(max(0.0, low - 0.08 * span), high + 0.16 * span, LEFT, WIDTH - RIGHT), y


def svg(choice: Selection) -> str:
    """Return the chart of a search; an empty text where fewer than two variants can be drawn."""
    drawn = points(choice)
    if len(drawn) < 2:
        return ""
    x, y = axes(choice, drawn)
    attributes = {"role": "img", "aria-labelledby": "frontier-title frontier-desc", "fill": "none", "stroke": "none"}
    root = ElementTree.Element(
        "svg", {"xmlns": "http://www.w3.org/2000/svg", "viewBox": f"0 0 {WIDTH} {HEIGHT}", "class": "frontier", **attributes}
    )
    _child(root, "title", id="frontier-title").text = _plain(f"{_cost_title(choice)} and {choices.drop_title(choice)}")
    _child(root, "desc", id="frontier-desc").text = _plain(choice.sentence)
    _draw_axes(root, choice, x, y)
    _draw_unjudged(root, choice, x)
    for point in reversed(drawn):
        _draw_point(root, choice, point, x, y)
    best = sorted((p for p in drawn if p.found.on_frontier and p.y.value <= y.high), key=lambda p: p.x.value)
    line = " ".join(f"{x.place(p.x.value):.1f},{y.place(p.y.value):.1f}" for p in best)
    _child(root, "polyline", {"class": "best"}, points=line, stroke="currentColor", stroke_width=1.2, stroke_opacity=0.6)
    _draw_labels(root, choice, drawn, x, y)
    return ElementTree.tostring(root, encoding="unicode")


def _draw_axes(root: ElementTree.Element, choice: Selection, x: Axis, y: Axis) -> None:
    """Lines, numbers and titles of both axes, and the limits."""
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    _line(root, LEFT, bottom, right, bottom, 0.5)
    for value in x.ticks():
        _line(root, x.place(value), bottom, x.place(value), bottom + 4, 0.5)
        _text(root, f"{value:g}", x.place(value), bottom + 18, anchor="middle")
    for value in y.ticks():
        _line(root, LEFT, y.place(value), right, y.place(value), 0.45 if value == 0 else 0.12)
        _text(root, f"{value:.4g}".replace("-", "−"), LEFT - 6, y.place(value) + 4, anchor="end")
    _text(root, _cost_title(choice), (LEFT + right) / 2, HEIGHT - 10, anchor="middle")
    middle = (TOP + bottom) / 2
    turned = _text(root, f"{choices.drop_title(choice)}, less is better", 14, middle, anchor="middle")
    turned.set("transform", f"rotate(-90 14 {middle:g})")
    if choice.accepted_drop is not None:
        unit = 100.0 if Words.of(choice).in_points(choice.metric or "") else 1.0
        place = y.place(unit * choice.accepted_drop)
        _line(root, LEFT, place, right, place, 0.8, name="limit", dashes="6 4")
        _text(root, "limit", LEFT + 4, place - 5)
    if choice.accepted_ms is not None and _is_time(choice):
        place = x.place(choice.accepted_ms)
        _line(root, place, TOP, place, bottom, 0.8, name="limit", dashes="6 4")
        _text(root, "limit", place - 5, TOP + 10, anchor="end")


def _draw_point(root: ElementTree.Element, choice: Selection, point: Point, x: Axis, y: Axis) -> None:
    """A variant: a box over both intervals, and a mark at the values."""
    found, is_best = point.found, point.found.variant.name == choice.winner
    kept = found.state in ("chosen", "admissible")
    colour = _GREEN if is_best else "currentColor"
    group = _child(root, "g", {"class": "variant"})
    _child(group, "title").text = _plain(_details(choice, point))
    left, right, top, bottom = x.place(point.x.low), x.place(point.x.high), y.place(point.y.high), y.place(point.y.low)
    strength = 0.28 if is_best else 0.13 if kept else 0.06
    # A size, or the float model's drop of 0, has no interval; a box without a width or a height would not be drawn.
    box = {"x": left, "y": top, "width": max(right - left, 1.0), "height": max(bottom - top, 1.0)}
    rectangle = _child(group, "rect", {name: f"{value:.2f}" for name, value in box.items()}, fill=colour, fill_opacity=strength)
    rectangle.attrib |= {"stroke": colour, "stroke-opacity": f"{2 * strength}"}
    at_x, at_y = x.place(point.x.value), y.place(point.y.value)
    if point.y.value > y.high:
        corners = f"{at_x - 5:.1f},{at_y + 8:.1f} {at_x + 5:.1f},{at_y + 8:.1f} {at_x:.1f},{at_y:.1f}"
        _child(group, "polygon", {"class": "beyond"}, points=corners, fill=colour, fill_opacity=0.5)
        return
    ring = {} if kept else {"fill": "none", "stroke": colour, "stroke-opacity": "0.6", "stroke-width": "1.3"}
    size = 6 if is_best else 4 if found.on_frontier else 3
    _child(group, "circle", {"cx": f"{at_x:.2f}", "cy": f"{at_y:.2f}", "r": str(size), "fill": colour, **ring})


def _draw_unjudged(root: ElementTree.Element, choice: Selection, x: Axis) -> None:
    """Marks on the axis for variants whose accuracy is not known."""
    for found in choice.found:
        cost = _cost(choice, found)
        if cost is not None and (choice.metric or "") not in found.drops and x.low <= cost.value <= x.high:
            group, place, bottom = _child(root, "g", {"class": "unjudged"}), x.place(cost.value), HEIGHT - BOTTOM
            _child(group, "title").text = _plain(f"{found.variant.name}: {found.reason}")
            ends = {"x1": f"{place:.2f}", "y1": f"{bottom - 9}", "x2": f"{place:.2f}", "y2": f"{bottom}"}
            _child(group, "line", ends, stroke="currentColor", stroke_opacity=0.5, stroke_width=2)


def _draw_labels(root: ElementTree.Element, choice: Selection, drawn: Sequence[Point], x: Axis, y: Axis) -> None:
    """The names of the winner, of the frontier and of the reference, where they cover as little as possible."""
    places = _Places([_around(x.place(p.x.value), y.place(p.y.value), 6) for p in drawn])
    for line in root.iter("line"):
        x1, y1, x2, y2 = (float(line.attrib[name]) for name in ("x1", "y1", "x2", "y2"))
        places.taken.append((x1 - 0.5, y1 - 0.5, x2 + 0.5, y2 + 0.5))
    for text in root.iter("text"):
        width = _LETTER * len(text.text or "")
        left = float(text.attrib["x"]) - {"start": 0.0, "middle": 0.5, "end": 1.0}[text.attrib["text-anchor"]] * width
        places.taken.append((left, float(text.attrib["y"]) - _LINE + 3, left + width, float(text.attrib["y"]) + 3))
    for point in drawn:
        name = point.found.variant.name
        if name not in (choice.winner, choice.reference) and not point.found.on_frontier:
            continue
        shown = _shortened(name) + (f" {ms(point.y.value)} ↑" if point.y.value > y.high else "")
        label = _text(root, shown, *places.label(shown, x.place(point.x.value), y.place(point.y.value)))
        if name == choice.winner:
            label.set("font-weight", "600")


def _details(choice: Selection, point: Point) -> str:
    """Everything about a variant, shown where a pointer rests on it."""
    found, words = point.found, Words.of(choice)
    unit = " rows/s" if choice.goal == "throughput" else f" {UNITS.get(choice.goal, 'ms')}"
    parts = [f"{point.x.value:.4g}{unit} ({point.x.low:.4g} to {point.x.high:.4g})"]
    drop = found.drops[choice.metric or ""]
    parts.append(f"{words.name('metric')} drops by {words.drop(choice.metric or '', drop)} on {found.rows:,} rows")
    return f"{found.variant.name}: {'; '.join(parts)}; {found.reason}"


def _cost(choice: Selection, found: Found) -> Figure | None:
    """What a variant costs, by the goal: less is better, but for throughput."""
    if choice.goal in COSTS:
        cost = cost_of(found, choice.goal)
        return None if cost is None else Figure(value=cost, low=cost, high=cost)
    return choices.speed_of(choice, found)


def _cost_title(choice: Selection) -> str:
    if choice.goal == "throughput":
        return "rows per second, more is better"
    shown = choice.goal if choice.goal in COSTS or choice.goal.startswith("latency@") else "latency"
    return f"{Words.of(choice).name(shown)} in {UNITS.get(shown, 'ms')}"


def _is_time(choice: Selection) -> bool:
    return choice.goal not in (*COSTS, "throughput")


def _ends(figure: Figure) -> tuple[float, float, float]:
    return figure.value, figure.low, figure.high


def _plain(text: str) -> str:
    """A text that XML can hold."""
    return printable(text).translate({0xFFFE: "\ufffd", 0xFFFF: "\ufffd"})


def _scaled(figure: Figure, unit: float) -> Figure:
    return Figure(value=unit * figure.value, low=unit * figure.low, high=unit * figure.high)


def _shortened(name: str, most: int = 40) -> str:
    return name if len(name) <= most else f"{name[: most - 1]}…"


def _around(x: float, y: float, size: float) -> tuple[float, float, float, float]:
    return x - size, y - size, x + size, y + size


def _overlap(one: Iterable[float], other: Iterable[float]) -> float:
    (a, b, c, d), (e, f, g, h) = one, other
    return max(0.0, min(c, g) - max(a, e)) * max(0.0, min(d, h) - max(b, f))


def _line(
    root: ElementTree.Element, x1: float, y1: float, x2: float, y2: float, opacity: float, *, name: str = "", dashes: str = ""
) -> None:
    ends = {"x1": f"{x1:.2f}", "y1": f"{y1:.2f}", "x2": f"{x2:.2f}", "y2": f"{y2:.2f}"}
    more = {**({"class": name} if name else {}), **({"stroke-dasharray": dashes} if dashes else {})}
    _child(root, "line", {**ends, **more}, stroke="currentColor", stroke_opacity=opacity)


def _text(root: ElementTree.Element, text: str, x: float, y: float, *, anchor: str = "start") -> ElementTree.Element:
    place = {"x": f"{x:.1f}", "y": f"{y:.1f}", "text-anchor": anchor, "fill": "currentColor", "font-size": "12"}
    element = _child(root, "text", place)
    element.text = _plain(text)
    return element


def _child(
    parent: ElementTree.Element, tag: str, attributes: dict[str, str] | None = None, **more: object
) -> ElementTree.Element:
    named = {name.replace("_", "-"): str(value) for name, value in more.items()}
    return ElementTree.SubElement(parent, tag, {**(attributes or {}), **named})
