"""The chart of a search, read back from its SVG, and its section of the page."""

from __future__ import annotations

import re
from typing import Any
from xml.etree import ElementTree

import pytest

from octobert.core.selection import Selection
from octobert.report import frontier
from tests.support.pages import page_of
from tests.support.selections import figure, found, selection

SVG = "{http://www.w3.org/2000/svg}"
# Coordinates in the SVG have two digits; half of the last one, in milliseconds and points, with room for the slope.
ROUNDING = 0.02
ENEMY = '<script>alert(1)</script>"&\x1b\x0c\uffff'


def drawn(choice: Selection) -> ElementTree.Element:
    """The chart."""
    return ElementTree.fromstring(frontier.svg(choice))


def scale(root: ElementTree.Element, axis: str) -> tuple[float, float]:
    """(value at 0, value of one unit) of a linear axis, from the numbers beside its first and last tick."""
    anchor, shift = ("middle", 0.0) if axis == "x" else ("end", 4.0)
    texts = [text for text in root.iter(f"{SVG}text") if text.get("text-anchor") == anchor]
    numbers = [
        (float(text.attrib[axis]) - shift, float(text.text.replace("−", "-")))
        for text in texts
        if text.text and re.fullmatch(r"−?[\d.]+", text.text)
    ]
    (at, low), (end, high) = numbers[0], numbers[-1]
    unit = (high - low) / (end - at)
    return low - unit * at, unit


def variants(root: ElementTree.Element) -> dict[str, ElementTree.Element]:
    """Name of each variant → what is drawn of it."""
    groups = [group for group in root.iter(f"{SVG}g") if group.get("class") == "variant"]
    return {str(group.findtext(f"{SVG}title")).split(":")[0]: group for group in groups}


def test_boxes_are_the_intervals() -> None:
    choice = selection()
    root = drawn(choice)
    (x0, dx), (y0, dy) = scale(root, "x"), scale(root, "y")
    groups = variants(root)
    judged = {each.variant.name: each for each in choice.found if each.time_ms and each.drops}
    assert groups.keys() == judged.keys()
    for name, each in judged.items():
        if each.drops["f1"].value > 0.4:
            assert groups[name].find(f"{SVG}polygon") is not None
            continue
        box = groups[name].find(f"{SVG}rect")
        mark = groups[name].find(f"{SVG}circle")
        assert box is not None
        assert mark is not None
        assert each.time_ms
        left, top, width, height = (float(box.attrib[key]) for key in ("x", "y", "width", "height"))
        values = [x0 + dx * left, x0 + dx * (left + width), y0 + dy * (top + height), y0 + dy * top]
        values += [x0 + dx * float(mark.attrib["cx"]), y0 + dy * float(mark.attrib["cy"])]
        time, drop = each.time_ms, each.drops["f1"]
        expected = [time.low, time.high, 100 * drop.low, 100 * drop.high, time.value, 100 * drop.value]
        assert values == pytest.approx(expected, abs=ROUNDING)


def test_what_was_not_judged_is_a_mark_on_the_axis() -> None:
    choice = selection()
    root = drawn(choice)
    x0, dx = scale(root, "x")
    groups = [group for group in root.iter(f"{SVG}g") if group.get("class") == "unjudged"]
    late = [each for each in choice.found if each.state == "slower" and each.time_ms]
    assert [str(group.findtext(f"{SVG}title")) for group in groups] == [f"{e.variant.name}: {e.reason}" for e in late]
    marks = [x0 + dx * float(line.attrib["x1"]) for group in groups for line in group.iter(f"{SVG}line")]
    assert marks == pytest.approx([each.time_ms.value for each in late if each.time_ms], abs=ROUNDING)


def test_the_line_joins_the_frontier_and_the_limit_is_a_line() -> None:
    choice = selection()
    root = drawn(choice)
    (x0, dx), (y0, dy) = scale(root, "x"), scale(root, "y")
    line = root.find(f"{SVG}polyline")
    assert line is not None
    corners = [tuple(map(float, corner.split(","))) for corner in line.attrib["points"].split()]
    best = sorted((e.time_ms.value, 100 * e.drops["f1"].value) for e in choice.found if e.on_frontier and e.time_ms)
    assert [(x0 + dx * x, y0 + dy * y) for x, y in corners] == [pytest.approx(each, abs=0.1) for each in best]
    (limit,) = [each for each in root.iter(f"{SVG}line") if each.get("class") == "limit"]
    assert y0 + dy * float(limit.attrib["y1"]) == pytest.approx(1.0, abs=ROUNDING)
    (vertical,) = [
        each
        for each in drawn(choice.model_copy(update={"accepted_drop": None, "accepted_ms": 40.0})).iter(f"{SVG}line")
        if each.get("class") == "limit"
    ]
    assert x0 + dx * float(vertical.attrib["x1"]) == pytest.approx(40, abs=ROUNDING)


def test_labels_name_the_frontier_and_do_not_cover_each_other() -> None:
    choice = selection()
    labels = [text for text in drawn(choice).iter(f"{SVG}text") if "-cpu" in (text.text or "")]
    named = {each.variant.name for each in choice.found if each.on_frontier} | {choice.reference}
    assert {label.text for label in labels} == named
    (winner,) = [label for label in labels if label.get("font-weight")]
    assert winner.text == choice.winner
    places = [(float(t.attrib["x"]), float(t.attrib["y"]), len(t.text or "")) for t in labels]
    for number, (x, y, letters) in enumerate(places):
        assert frontier.LEFT <= x <= frontier.WIDTH - 6 * letters
        for other_x, other_y, other in places[:number]:
            assert abs(y - other_y) >= 12 or x + 6 * letters < other_x or other_x + 6 * other < x


def test_times_of_different_magnitude_are_on_a_logarithmic_axis() -> None:
    slow = found("torch-cpu f32", 310.0, 0.0, 0.0, 418.0, "admissible")
    choice = selection(
        found("ort-cpu int8", 20.0, 0.5, 0.3, 109.0, "chosen"), found("ort-cpu f32", 76.8, 0, 0, 418, "admissible"), slow
    )
    marks = {name: float(group.find(f"{SVG}circle").attrib["cx"]) for name, group in variants(drawn(choice)).items()}  # type: ignore[union-attr]
    first, second = marks["ort-cpu f32"] - marks["ort-cpu int8"], marks["torch-cpu f32"] - marks["ort-cpu f32"]
    assert first / second == pytest.approx(0.964, abs=0.01)


@pytest.mark.parametrize(
    ("goal", "title"),
    [
        ("latency@p90", "p90 latency in ms"),
        ("size", "size in MB"),
        ("memory", "peak memory in MB"),
        ("metric", "latency in ms"),
    ],
)
def test_the_axis_is_that_of_the_goal(goal: str, title: str) -> None:
    root = drawn(selection(goal=goal))
    assert title in [text.text for text in root.iter(f"{SVG}text")]
    assert root.get("role") == "img"
    assert root.findtext(f"{SVG}title") == f"{title} and F1 drop (points)"
    assert root.findtext(f"{SVG}desc") == "Use openvino-cpu int8."


def test_nothing_to_draw() -> None:
    assert frontier.svg(selection(metric=None, limits=())) == ""
    reference = found("ort-cpu f32", 76.8, 0.0, 0.0, 418.0, "chosen")
    assert frontier.svg(selection(reference)) == ""
    assert drawn(selection(reference, reference)) is not None


def test_a_metric_that_is_undefined_is_not_drawn() -> None:
    """The correlation of equal predictions is undefined."""
    choice = selection()
    undefined = [each.model_copy(update={"drops": {"f1": figure(float("nan"), 0.0)}}) for each in choice.found[1:3]]
    root = drawn(choice.model_copy(update={"found": (choice.found[0], *undefined, *choice.found[3:])}))
    assert "nan" not in ElementTree.tostring(root, encoding="unicode")
    assert undefined[0].variant.name not in variants(root)


def test_texts_of_others_are_only_texts() -> None:
    enemy = found(f"openvino-cpu {ENEMY}", 21.7, 0.1, 0.1, 110.0, "chosen")
    reference = found("ort-cpu f32", 76.8, 0.0, 0.0, 418.0, "admissible")
    choice = selection(enemy.model_copy(update={"reason": ENEMY}), reference, sentence=ENEMY)
    chart = frontier.svg(choice)
    assert "<script" not in chart
    root = ElementTree.fromstring(chart)
    assert root.findtext(f"{SVG}desc") == '<script>alert(1)</script>"&␛␌�'
    assert any("<script>" in (text.text or "") for text in root.iter(f"{SVG}text"))


def test_the_page_shows_the_choice_first(finished: Any) -> None:
    choice = selection(sentence="Use it & <b>nothing else</b>.", simulated={"ONEDNN_MAX_CPU_ISA": "AVX2"})
    page = page_of(finished[2].model_copy(update={"choice": choice}))
    assert page.index("Use it &amp; &lt;b&gt;nothing else&lt;/b&gt;.") < page.index("evaluation rows</h2>")
    for each in choice.found:
        assert f"<td>{each.variant.name}" in page
        assert each.reason in page
    assert "21.7 [21.5, 21.9]" in page
    assert "0.283 [0.280, 0.285]" in page
    assert "ONEDNN_MAX_CPU_ISA=AVX2" in page
