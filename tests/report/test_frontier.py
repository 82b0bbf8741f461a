"""The chart of candidates as data, what decides who wins in it, and its section of the page."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest

from octobert.core.estimate import Estimate
from octobert.core.limits import Limit
from octobert.core.results import Report
from octobert.core.selection import Selection
from octobert.report.page.sections.frontier import Frontier, Point, frontier
from octobert.report.verdict import Verdict
from tests.support.columns import columns, with_columns
from tests.support.pages import markup_of, page_of
from tests.support.selections import figure, found, selection

REFERENCE = found("ort-cpu f32", 76.8, 0.0, 0.0, 418.0, "admissible")


@pytest.fixture
def report(finished: Any) -> Report:
    return finished[2]


def drawn(report: Report, choice: Selection | None = None) -> Frontier:
    """The chart of a search, or of a run."""
    chart = frontier(
        report.model_copy(update={"choice": choice}),
        Verdict("ship", "", use=choice.winner if choice else ""),
    )
    assert chart is not None
    return chart


def named(chart: Frontier) -> dict[str, Point]:
    return {point.name: point for point in chart.points}


def test_boxes_are_the_intervals_and_losses_point_down(report) -> None:
    choice = selection()
    points = named(drawn(report, choice))
    for each in choice.found:
        point = points[each.variant.name]
        assert point.x == (each.time_ms,)
        if not each.drops:
            assert point.y is None
            continue
        drop = each.drops["f1"]
        assert point.y is not None
        assert (point.y.value, point.y.low, point.y.high) == pytest.approx(
            (-100 * drop.value, -100 * drop.high, -100 * drop.low)
        )


def test_the_frontier_is_that_of_the_search_and_is_named(report) -> None:
    choice = selection()
    chart = drawn(report, choice)
    best = {each.variant.name for each in choice.found if each.on_frontier}
    assert {point.name for point in chart.points if point.front[0]} == best
    assert {point.name for point in chart.points if point.named} == best | {choice.reference}


def test_what_is_far_below_everything_that_matters_is_outside_and_the_limits_are_inside(
    report,
) -> None:
    chart = drawn(report, selection())
    assert chart.y.limit == pytest.approx(-1.0)
    assert -6 < chart.y.low < -2.9
    timed = drawn(report, selection(limits=(Limit(of="latency", at_most=40),)))
    assert (timed.x[0].limit, timed.y.limit) == (40.0, None)


def test_times_of_different_magnitude_are_on_a_logarithmic_axis(report) -> None:
    assert not drawn(report, selection()).x[0].logarithmic
    slow = found("openvino-cpu f32", 310.0, 0.0, 0.0, 418.0, "admissible")
    assert (
        drawn(
            report,
            selection(found("ort-cpu int8", 20.0, 0.5, 0.3, 109.0, "chosen"), REFERENCE, slow),
        )
        .x[0]
        .logarithmic
    )


@pytest.mark.parametrize(
    ("goal", "title", "more"),
    [
        ("latency@p90", "p90 latency in ms", False),
        ("size", "size in MB", False),
        ("memory", "peak memory in MB", False),
        ("metric", "latency in ms", False),
        ("throughput", "throughput in rows/s", True),
    ],
)
def test_the_axis_is_that_of_the_goal(report, goal: str, title: str, more: bool) -> None:
    choice = selection(goal=goal)
    rates = tuple(
        each.model_copy(update={"figures": {**each.figures, "throughput": each.time_ms}})
        if each.time_ms
        else each
        for each in choice.found
    )
    axis = drawn(report, choice.model_copy(update={"found": rates})).x[0]
    assert (axis.title, axis.more) == (title, more)


@pytest.mark.parametrize(
    ("limits", "winner"),
    [
        ({}, "openvino-cpu int8"),
        ({"y": -3.0}, "openvino-cpu int8 matmul-attention"),
        ({"y": -0.1}, "ort-cpu int8 dynamic"),
        ({"x": 20.0}, None),
    ],
)
def test_the_limits_name_the_winner(report, limits: dict[str, float], winner: str | None) -> None:
    """The chosen one stays where another is faster within the noise only; a stricter limit names a slower one."""
    chart = drawn(report, selection())
    moved = {"x": chart.x[0], "y": chart.y}
    for name, value in limits.items():
        moved[name] = type(chart.y)(**{**moved[name].__dict__, "limit": value})
    best = Frontier((moved["x"],), moved["y"], chart.points, chart.order).winner()
    assert (best and best.name) == winner


def test_a_variant_that_misses_a_limit_which_is_not_in_the_chart_never_wins(report) -> None:
    large = found("ort-cpu int8 all", 10.0, 0.1, 0.1, 900.0, "excluded").model_copy(
        update={"reason": "size is 900 MB"}
    )
    chart = drawn(
        report, selection(found("ort-cpu int8", 20.0, 0.5, 0.3, 109.0, "chosen"), REFERENCE, large)
    )
    assert "ort-cpu int8 all" not in {chart.points[n].name for n in chart.order[0]}


def test_a_metric_that_is_undefined_is_not_drawn(report) -> None:
    """The correlation of equal predictions is undefined."""
    choice = selection()
    undefined = choice.found[1].model_copy(update={"drops": {"f1": figure(float("nan"), 0.0)}})
    chart = drawn(
        report, choice.model_copy(update={"found": (choice.found[0], undefined, *choice.found[2:])})
    )
    assert named(chart)[undefined.variant.name].y is None
    assert all(math.isfinite(end) for end in (chart.y.low, chart.y.high))


def test_nothing_to_draw(report) -> None:
    for choice in (
        selection(metric=None, limits=()),
        selection(REFERENCE.model_copy(update={"state": "chosen"})),
    ):
        assert frontier(report.model_copy(update={"choice": choice}), Verdict("no", "")) is None
    empty = with_columns(
        report, {"footprints": (), "latencies": (), "comparisons": (), "scores": {}}
    )
    assert frontier(empty, Verdict("unmeasured", "")) is None


def test_a_run_shows_its_targets_and_baselines_at_each_shape(report) -> None:
    chart = drawn(report)
    assert {point.name for point in chart.points} == {
        each.candidate for each in columns(report).footprints
    }
    assert [axis.name.endswith("data") for axis in chart.x] == sorted(
        (axis.name.endswith("data") for axis in chart.x), reverse=True
    )
    for point in chart.points:
        for n, axis in enumerate(chart.x):
            (timed,) = [
                each
                for each in columns(report).latencies
                if each.candidate == point.name and str(each.shape) == axis.name
            ]
            assert point.x[n].value == pytest.approx(timed.percentile_ms(50))  # type: ignore[union-attr]
            assert point.x[n].low <= point.x[n].value <= point.x[n].high  # type: ignore[union-attr]
    compared = {each.candidate: each for each in columns(report).comparisons}
    ours = named(chart)["openvino-cpu"].y
    assert ours == Estimate(
        value=100 * compared["openvino-cpu"].difference,
        low=100 * compared["openvino-cpu"].low,
        high=100 * compared["openvino-cpu"].high,
    )
    assert named(chart)["ort-f32"].y == figure(0.0, 0.0)


def test_without_labels_agreement_takes_the_place_of_the_metric(report) -> None:
    unlabelled = tuple(
        each.model_copy(update={"metric": None, "difference": None, "low": None, "high": None})
        for each in columns(report).comparisons
    )
    bare = with_columns(
        report,
        {"comparisons": unlabelled, "task": report.task.model_copy(update={"primary": None})},
    )
    chart = drawn(bare)
    assert chart.y.title == "agreement with the float model in %"
    assert (
        "The data has no labels: agreement with the float model takes the place of accuracy"
        in chart.note
    )
    undefined = tuple(each.model_copy(update={"fidelity": float("nan")}) for each in unlabelled)
    wrong = drawn(with_columns(bare, {"comparisons": undefined}))
    assert (wrong.y.more, wrong.y.low) == (False, 0.0)


def test_the_page_shows_the_choice_first(report) -> None:
    choice = selection(
        sentence="Use it & <b>nothing else</b>.", simulated={"ONEDNN_MAX_CPU_ISA": "AVX2"}
    )
    page = markup_of(page_of(report.model_copy(update={"choice": choice})))
    assert page.index("Use it &amp; &lt;b&gt;nothing else&lt;/b&gt;.") < page.index(
        "evaluation rows</h2>"
    )
    assert (
        page.index('class="verdict"') < page.index('class="frontier"') < page.index('class="notes"')
    )
    for each in choice.found:
        assert re.search(rf"<td>([→•] )?{re.escape(each.variant.name)}</td>", page)
        assert each.reason in page
    assert "0.283 [0.280, 0.285]" in page
    assert "ONEDNN_MAX_CPU_ISA=AVX2" in page
