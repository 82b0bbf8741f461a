"""One page of several runs, and pages as PDF."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from octobert.report.page import ShownRun
from tests.support.reports import rich_run

# Tables as lists of their headings.
HEADINGS = "[...document.querySelectorAll('table')].map((t) => [...t.querySelectorAll('th')].map((th) => th.textContent))"


@pytest.fixture(scope="module")
def three(written) -> Path:
    """The page of three runs."""
    return written(
        rich_run("laptop"), rich_run("server", slower=0.5), rich_run("<b>phone</b>", slower=2.0)
    )


def shown_runs(shown: Any) -> list[str]:
    return [
        each.text_content()
        for each in shown.query_selector_all("article.run > h1")
        if each.is_visible()
    ]


def test_one_run_is_shown_at_a_time(page_at, three: Path) -> None:
    shown = page_at(three)
    assert shown.locator("section.comparison h1").text_content() == "3 runs side by side"
    assert shown_runs(shown) == ["laptop"]
    shown.get_by_role("tab", name="server").click()
    assert shown_runs(shown) == ["server"]
    assert shown.get_by_role("tab", selected=True).text_content() == "server"
    # Arrow keys go round; one tab at a time is in the tab order.
    shown.keyboard.press("ArrowRight")
    assert shown_runs(shown) == ["<b>phone</b>"]
    shown.keyboard.press("ArrowRight")
    assert shown_runs(shown) == ["laptop"]
    shown.keyboard.press("End")
    assert shown_runs(shown) == ["<b>phone</b>"]
    assert shown.locator("[role=tab][tabindex='0']").count() == 1


def test_a_link_shows_the_run_that_it_points_to(page_at, three: Path) -> None:
    shown = page_at(three)
    shown.evaluate("location.hash = '#run-2-how'")
    shown.wait_for_function("!document.getElementById('run-2').hidden")
    assert shown_runs(shown) == ["server"]


def test_all_runs_are_printed(page_at, three: Path) -> None:
    shown = page_at(three)
    shown.emulate_media(media="print")
    assert shown_runs(shown) == ["laptop", "server", "<b>phone</b>"]
    # Charts of runs that were hidden are drawn before.
    shown.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert shown.locator("#run-3 figure").count() == shown.locator("#run-3 figure:has(svg)").count()
    shown.evaluate("dispatchEvent(new Event('afterprint'))")
    shown.emulate_media(media="screen")
    assert shown_runs(shown) == ["laptop"]


def test_everything_of_a_page_is_printed(page_at, rich: Path) -> None:
    shown = page_at(rich, width=750)
    headings = shown.evaluate(HEADINGS)
    folded = shown.locator("details:not([open])").count()
    shown.emulate_media(media="print")
    shown.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert shown.evaluate(HEADINGS) == headings
    assert shown.locator("details:not([open])").count() == 0
    for cell in shown.locator("th, td:first-child").all():
        assert not cell.text_content().strip() or cell.inner_text().strip(), cell.inner_html()
    assert (
        shown.locator(".ranges .list td:first-child").first.inner_text() == "encoder.layer.0.ffn_up"
    )
    hints = "[...document.querySelectorAll('.scroll')].map((e) => getComputedStyle(e, '::before').content)"
    assert set(shown.evaluate(hints)) == {"none"}
    assert "Point at a cell" not in shown.inner_text("main")
    assert "scroll sideways" not in shown.inner_text("main")
    assert (
        shown.evaluate(
            "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        )
        <= 0
    )
    shown.evaluate("dispatchEvent(new Event('afterprint'))")
    assert shown.locator("details:not([open])").count() == folded


@pytest.fixture
def other_task(written) -> Path:
    """The page of runs of two tasks, one of which lacks a target."""
    other = rich_run("server", kind="question-answering")
    kept = tuple(each for each in other.report.models if each.model != "ort-cpu")
    lacking = ShownRun(
        "server",
        other.report.replaced(models=kept),
        other.evidence.model_copy(update={"changed": ()}),
    )
    return written(rich_run("laptop"), lacking)


def test_runs_of_different_tasks_are_not_ranked(page_at, other_task: Path) -> None:
    shown = page_at(other_task).locator("section.comparison")
    assert shown.locator("> *").nth(1).inner_text() == (
        "The runs are of different tasks: compare gains within a run, not scores between runs."
    )
    assert "least time" not in shown.inner_text()
    assert "gains most" not in shown.inner_text()
    # Each metric has a table of its own.
    tables = shown.locator("table.sortable")
    assert [table.locator("th").nth(3).inner_text().split()[0] for table in tables.all()] == [
        "accuracy",
        "F1",
    ]
    assert [table.locator("tbody tr").count() for table in tables.all()] == [2, 1]
    # A model that a run lacks has no row in the chart.
    assert shown.locator("figure.speedups g[data-mark=text] text").all_text_contents() == [
        "laptop: ort-cpu",
        "laptop: openvino-cpu",
        "server: openvino-cpu",
    ]


def test_the_chart_has_a_point_for_each_model_of_each_run(page_at, three: Path) -> None:
    chart = page_at(three).locator("figure.speedups")
    assert chart.locator("g[data-mark=dot] circle").count() == 6
    assert chart.locator("g[data-mark=rule] line").count() >= 6
