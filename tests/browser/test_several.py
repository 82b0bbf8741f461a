"""One page of several runs, and pages as PDF."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import octobert
from tests.support.reports import rich_run


@pytest.fixture(scope="module")
def three(written) -> Path:
    """The page of three runs."""
    return written(rich_run("laptop"), rich_run("server", slower=0.5), rich_run("<b>phone</b>", slower=2.0))


def shown_runs(shown: Any) -> list[str]:
    return [each.text_content() for each in shown.query_selector_all("article.run > h1") if each.is_visible()]


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


def test_the_chart_has_a_point_for_each_model_of_each_run(page_at, three: Path) -> None:
    chart = page_at(three).locator("figure.speedups")
    assert chart.locator("g[data-mark=dot] circle").count() == 6
    assert chart.locator("g[data-mark=rule] line").count() >= 6


def test_a_page_is_printed_to_a_file(browser, tmp_path: Path) -> None:
    run = rich_run(rows=20)
    (tmp_path / "report.json").write_text(run.report.model_dump_json())
    (tmp_path / "evidence.json").write_text(run.evidence.model_dump_json())
    page = octobert.page(tmp_path, pdf=tmp_path / "report.pdf")
    content = (tmp_path / "report.pdf").read_bytes()
    assert content.startswith(b"%PDF")
    assert content.rstrip().endswith(b"%%EOF")
    assert content.count(b"/Type /Page\n") > 2
    assert {path.name for path in tmp_path.iterdir()} == {"report.json", "evidence.json", page.name, "report.pdf"}
