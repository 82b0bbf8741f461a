"""The page of a report as a whole."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import pytest

from tests.support.columns import columns
from tests.support.reports import MODELS, rich_run

SCROLLS = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
LUMINANCE = "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).slice(0, 3).reduce((sum, each) => sum + +each, 0)"
WHITE = 3 * 255
# A page of 5,000 rows is smaller, so that it can be sent by mail.
LARGEST = 3_000_000
# Chromium writes gigabytes per second and compiles 540 kB of scripts in less; the limit is for machines that do much else.
DRAWN_MS = 3000


def test_the_first_screen_says_whether_to_ship(page_at, rich: Path) -> None:
    """The answer, the figures, the command and the machine are there without scrolling, beside the chart."""
    shown = page_at(rich)
    answer = shown.locator(".verdict .answer")
    assert answer.text_content() == (
        "Ship openvino-cpu: 2.7 × faster than openvino-f32 (2.7–2.8), 3.9 × smaller, accuracy −0.1 points (−0.6 to +0.3) "
        "on your 408 rows."
    )
    for part in (
        ".verdict .answer",
        ".verdict .numbers",
        ".verdict pre.command",
        ".verdict .badges",
        ".frontier svg",
    ):
        box = shown.locator(part).first.bounding_box()
        assert 0 <= box["y"] <= box["y"] + box["height"] <= 900, part
    assert "Some Processor" in shown.locator(".verdict .badges").text_content()
    # On a phone the answer comes before the chart.
    phone = page_at(rich, width=360, height=780)
    box = phone.locator(".verdict .answer").bounding_box()
    assert box["y"] + box["height"] <= 780


def test_the_figures_can_be_read_without_scripts(page_at, rich: Path) -> None:
    shown = page_at(rich, drawn=False, java_script_enabled=False)
    text = shown.locator("main").inner_text()
    for name, *_ in MODELS:
        assert name in text
    assert "Ship openvino-cpu" in text
    assert "JavaScript" in shown.locator("noscript").inner_text()


@pytest.mark.parametrize("width", [360, 768, 2560])
def test_no_width_scrolls_sideways(page_at, rich: Path, width: int) -> None:
    shown = page_at(rich, width=width)
    assert shown.evaluate(SCROLLS) == 0
    # What is folded is not wider either.
    shown.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    assert shown.evaluate(SCROLLS) == 0


def test_the_theme_follows_the_system_and_the_button(page_at, rich: Path) -> None:
    light, dark = page_at(rich), page_at(rich, dark=True)
    assert light.evaluate(LUMINANCE) == WHITE
    assert dark.evaluate(LUMINANCE) < 150
    light.get_by_role("button", name="Dark theme").click()
    assert light.evaluate(LUMINANCE) == dark.evaluate(LUMINANCE)
    # Charts have the colours of the text.
    assert light.evaluate(
        "getComputedStyle(document.querySelector('.frontier svg')).color"
    ) == dark.evaluate("getComputedStyle(document.body).color")
    light.get_by_role("button", name="Light theme").click()
    assert light.evaluate(LUMINANCE) == WHITE


def test_a_dark_page_is_printed_light(page_at, rich: Path) -> None:
    shown = page_at(rich, dark=True)
    shown.get_by_role("button", name="Light theme").click()
    shown.get_by_role("button", name="Dark theme").click()
    shown.emulate_media(media="print")
    assert shown.evaluate(LUMINANCE) == WHITE
    assert not shown.locator("button.theme").is_visible()
    assert not shown.locator("nav.contents").is_visible()
    assert not shown.locator("button.csv").first.is_visible()
    assert shown.locator(".verdict .answer").is_visible()
    assert shown.locator(".frontier svg").first.is_visible()


def test_pointing_at_a_candidate_shows_its_figures(page_at, rich: Path) -> None:
    shown = page_at(rich)
    assert shown.locator(".frontier [aria-label=tip] text").count() == 0
    # The winner is drawn last.
    shown.locator(".frontier [data-mark=dot] > *").last.hover()
    tip = shown.locator(".frontier [aria-label=tip]").filter(has_text="ms").text_content()
    for part in (
        "openvino-cpu",
        "10.7 (9.66 to 11.8) ms",
        "accuracy −0.1 points (−0.6 to +0.3",
        "110 MB",
    ):
        assert part in tip


def frontier(shown: Any) -> tuple[str, str]:
    """The winner within the limits, and its command."""
    section = shown.locator(".frontier .winner")
    command = section.locator("pre.command")
    return section.locator(".within b").text_content(), command.evaluate(
        "(e) => e.firstChild.textContent"
    ) if command.count() else ""


def test_a_limit_that_is_dragged_names_another_winner(page_at, rich: Path) -> None:
    """8-bit models lose something; where nothing may be lost, a float model is the fastest."""
    shown = page_at(rich)
    assert frontier(shown) == ("openvino-cpu", "octobert predict OUT/openvino-cpu 'a text'")
    box = shown.locator(".frontier .chart").bounding_box()
    line = shown.locator(
        ".frontier [data-mark=rule][stroke='var(--accent)'] line"
    ).last.bounding_box()
    shown.mouse.move(box["x"] + box["width"] / 2, line["y"])
    shown.mouse.down()
    # Up, to where the accuracy does not drop.
    zero = shown.locator(".frontier [data-mark=dot] > *").first.bounding_box()
    shown.mouse.move(box["x"] + box["width"] / 2, zero["y"] + zero["height"] / 2, steps=8)
    shown.mouse.up()
    winner, command = frontier(shown)
    assert winner == "openvino-f32"
    assert "OUT/openvino-cpu" not in command


def test_a_limit_is_moved_by_the_keyboard(page_at, rich: Path) -> None:
    shown = page_at(rich)
    shown.get_by_role("slider", name="Limit of median latency in ms").focus()
    shown.keyboard.press("Home")
    assert frontier(shown)[0] == "no candidate keeps this"
    shown.keyboard.press("End")
    assert frontier(shown)[0] == "openvino-cpu"
    accuracy = shown.get_by_role("slider", name="Limit of accuracy")
    accuracy.focus()
    before = accuracy.get_attribute("aria-valuetext")
    for _ in range(60):
        shown.keyboard.press("ArrowRight")
    assert accuracy.get_attribute("aria-valuetext") != before
    assert frontier(shown)[0] != "openvino-cpu"


def test_tables_are_sorted_by_their_headings(page_at, written) -> None:
    shown = page_at(written(rich_run("b"), rich_run("a", slower=0.5)))
    table = shown.locator(".comparison table.sortable")
    heading = table.get_by_role("columnheader", name="ms")
    heading.get_by_role("button").click()
    times = table.locator("tbody td:nth-child(6)").all_text_contents()
    assert times == sorted(times, key=float)
    assert len(set(times)) == 4
    assert heading.get_attribute("aria-sort") == "ascending"
    heading.get_by_role("button").press("Enter")
    assert table.locator("tbody td:nth-child(6)").all_text_contents() == times[::-1]


def saved(shown: Any, button: Any) -> list[list[str]]:
    """The rows of the CSV file that a button saves."""
    with shown.expect_download() as download:
        button.click()
    content = Path(download.value.path()).read_text(encoding="utf-8-sig")
    return list(csv.reader(io.StringIO(content, newline="")))


def test_files_have_the_values_of_the_charts(page_at, rich: Path) -> None:
    """Every sample of every model, with four digits."""
    run = rich_run()
    shown = page_at(rich)
    header, *rows = saved(shown, shown.locator(".speed button.csv").first)
    assert header == ["model", "shape", "sample", "tokens", "ms"]
    for measured in columns(run.report).latencies:
        shape = str(measured.shape)
        own = [row for row in rows if row[:2] == [measured.candidate, shape]]
        assert [float(row[4]) for row in own] == pytest.approx(measured.samples_ms, rel=6e-4)
        assert [int(row[3]) for row in own if row[3]] == list(measured.sample_tokens)
    header, *rows = saved(shown, shown.locator(".frontier button.csv"))
    assert {row[0] for row in rows} == {name for name, *_ in MODELS}


def test_every_chart_has_its_values_as_a_file(page_at, rich: Path) -> None:
    shown = page_at(rich)
    shown.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    without = shown.evaluate(
        "[...document.querySelectorAll('[data-section]')].filter((each) => each.querySelector('figure svg')"
        " && !each.querySelector('button.csv')).map((each) => each.dataset.section)"
    )
    assert without == []


def test_five_thousand_rows(page_at, written) -> None:
    """2,500 changed rows of each of two models: a small file that is drawn at once and does not jump."""
    file = written(rich_run(rows=5000, changed=2500))
    assert file.stat().st_size < LARGEST
    shown = page_at(file)
    assert (
        shown.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime") < 1000
    )
    assert shown.evaluate("performance.now()") < DRAWN_MS
    # Of thousands of rows, those that can be seen are in the document.
    assert shown.locator("*").count() < 12_000
