"""The first screen and the charts of speed, as a reader uses them."""

from __future__ import annotations

import csv
import itertools
import shlex
from pathlib import Path
from typing import Any

import pytest

from octobert.report.page import ShownRun, headline
from tests.support.columns import columns, with_columns
from tests.support.reports import rich_report, rich_run
from tests.support.selections import found, selection

WIDE = "name".join(["long"] * 40)


@pytest.fixture(scope="module")
def searched(written: Any) -> Path:
    """The page of a search of 18 variants, whose winner keeps F1 within a point."""
    report = rich_report(kind="question-answering")
    choice = selection(recipe=report.recipe)
    return written(ShownRun("searched", report.model_copy(update={"choice": choice})))


def winner(shown: Any) -> str:
    return shown.locator(".winner b").inner_text()


def test_the_first_screen_answers(page_at, rich: Path) -> None:
    shown = page_at(rich, width=1280, height=800)
    assert shown.locator(".banner .state").inner_text().endswith("Should I ship this? Yes.")
    assert (
        shown.locator(".banner .answer")
        .inner_text()
        .startswith("Ship openvino-cpu: 2.7 × faster than openvino-f32 (2.7–2.8), 3.9 × smaller")
    )
    for part in (".banner", ".numbers", ".badges", ".frontier svg", ".limits", ".winner"):
        box = shown.locator(part).first.bounding_box()
        assert box["y"] + box["height"] <= 800, part
        assert box["x"] + box["width"] <= 1280, part
    assert shown.locator("details.notes").get_attribute("open") is None


def test_the_head_says_what_it_is_about(page_at, written) -> None:
    report = rich_report()
    report = report.model_copy(
        update={"recipe": report.recipe | {"model": "/home/ada/checkpoints/minilm-mrpc"}}
    )
    shown = page_at(written(ShownRun(headline(report), report)))
    assert shown.locator("h1").inner_text() == "minilm-mrpc in 8 bits"
    assert shown.locator(".facts").inner_text().split("\n") == [
        "task mrpc",
        "data glue, 408 evaluation rows",
        "measured 23 November 2026",
        "model /home/ada/checkpoints/minilm-mrpc",
    ]


def test_every_button_for_a_file_has_a_name_of_its_own(page_at, rich: Path) -> None:
    names = page_at(rich).locator("button:visible", has_text="CSV").all_inner_texts()
    assert len(names) > 8
    assert len(names) == len(set(names))


def test_long_commands_are_whole(page_at, written) -> None:
    run = rich_run(folder="/a/long/folder/of/somebody" * 12)
    shown = page_at(written(run))
    for box in shown.locator("pre.command").all():
        assert box.evaluate(
            "(e) => [e.scrollHeight - e.clientHeight, e.scrollWidth - e.clientWidth]"
        ) == [0, 0]


@pytest.mark.parametrize("near", [1.0, 1.02])
def test_the_cost_chart_fits_its_data_and_its_names_stand_apart(
    page_at, written, near: float
) -> None:
    """Also where all models cost almost the same."""
    report = rich_report(slower=7.0)
    if near != 1.0:
        first, same = (
            columns(report).latencies[0],
            [each for each in columns(report).latencies if each.candidate == "ort-f32"],
        )
        names = [each.candidate for each in columns(report).footprints]
        latencies = tuple(
            each.model_copy(
                update={
                    "candidate": name,
                    "samples_ms": tuple(near**n * ms for ms in each.samples_ms),
                }
            )
            for n, name in enumerate(names)
            for each in same
        )
        assert first in latencies
        report = with_columns(report, {"latencies": latencies})
    shown = page_at(written(ShownRun("model", report)))
    chart = shown.locator("figure.cost svg").last
    known = [ms for each in columns(report).latencies if each.batch == 1 for ms in each.samples_ms]
    ticks = [
        float(text)
        for text in chart.locator("[data-mark='y-axis tick label'] text").all_text_contents()
        if text
    ]
    assert min(known) / 3 < min(tick for tick in ticks if tick)
    assert max(ticks) < 2 * max(known)
    boxes = [text.bounding_box() for text in chart.locator("[data-mark=text] text").all()]
    assert len(boxes) == 4
    tops = sorted(box["y"] for box in boxes)
    assert min(below - above for above, below in itertools.pairwise(tops)) >= 12
    title = chart.locator("[data-mark='y-axis label'] text").bounding_box()
    first_tick = chart.locator("[data-mark='y-axis tick label'] text").last.bounding_box()
    assert title["y"] + title["height"] <= first_tick["y"] + 1


def test_a_phone_has_no_box_that_scrolls_in_the_page(page_at, rich: Path) -> None:
    shown = page_at(rich, width=360, height=800)
    changes = shown.locator("ol.changes")
    assert changes.evaluate("(e) => e.scrollHeight - e.clientHeight") == 0
    assert changes.locator("li").count() == 10
    # Of a table that scrolls sideways, what a row is about stays.
    table = shown.locator(".quality .scroll.wide")
    table.wait_for()
    before = table.locator("tbody td").first.bounding_box()["x"]
    table.evaluate("(e) => { e.scrollLeft = 400; }")
    assert table.locator("tbody td").first.bounding_box()["x"] == before


@pytest.mark.parametrize("width", [1440, 1280, 390])
def test_names_in_the_chart_stand_apart(page_at, rich: Path, searched: Path, width: int) -> None:
    for page in (rich, searched):
        shown = page_at(page, width=width)
        names = shown.locator(".frontier [data-mark=text] text").all()
        boxes = [name.bounding_box() for name in names]
        assert len(boxes) >= 4
        for a, b in itertools.combinations(boxes, 2):
            across = min(a["x"] + a["width"], b["x"] + b["width"]) - max(a["x"], b["x"])
            down = min(a["y"] + a["height"], b["y"] + b["height"]) - max(a["y"], b["y"])
            # A box has the stroke around letters, which the page's colour gives.
            assert across <= 8 or down <= 8, (page, [name.inner_html() for name in names])
        assert all(box["x"] >= 0 and box["x"] + box["width"] <= width for box in boxes)


def test_a_limit_that_nobody_set_has_no_line(page_at, rich: Path) -> None:
    lines = page_at(rich).locator(".frontier")
    assert lines.locator(".limit-of-cost").count() == 0
    assert lines.locator(".limit-of-quality").count() == 1


def test_dragging_a_limit_names_another_winner(page_at, searched: Path) -> None:
    shown = page_at(searched)
    assert winner(shown) == "openvino-cpu int8"
    box = shown.locator(".frontier .chart").bounding_box()
    line = shown.locator(".frontier .limit-of-quality line").bounding_box()
    shown.mouse.move(box["x"] + 300, line["y"])
    shown.mouse.down()
    shown.mouse.move(box["x"] + 300, line["y"] + 120, steps=4)
    shown.mouse.up()
    assert winner(shown) == "openvino-cpu int8 matmul-attention"
    command = shlex.split(shown.locator(".winner pre code").inner_text())
    assert command[:2] == ["octobert", "quantize"]
    assert command[command.index("--target") + 1] == "openvino-cpu"


def test_sliders_and_the_keyboard_do_the_same(page_at, searched: Path) -> None:
    shown = page_at(searched)
    quality, cost = shown.locator(".limits input").all()
    quality.focus()
    for _ in range(200):
        shown.keyboard.press("ArrowRight")
    assert "at least" in quality.get_attribute("aria-valuetext")
    assert winner(shown) == "no candidate keeps this"
    quality.fill("-2")
    slow = winner(shown)
    quality.fill(quality.get_attribute("min"))
    assert shown.locator(".limits output").first.inner_text() == "F1: any"
    assert winner(shown) not in (slow, "no candidate keeps this")
    cost.fill(cost.get_attribute("min"))
    assert shown.locator(".limits output").last.inner_text().startswith("latency: at most ")
    shown.locator(".frontier .chart").focus()
    shown.keyboard.press("ArrowRight")
    said = shown.locator(".frontier figure .hidden")
    first = said.inner_text()
    shown.keyboard.press("ArrowRight")
    assert said.inner_text() not in ("", first)
    assert shown.locator(".frontier svg :is([aria-label=tip], [data-mark=tip])").count() > 0
    shown.keyboard.press("Escape")
    assert said.inner_text() == ""


def test_a_pointer_shows_what_is_known(page_at, rich: Path) -> None:
    shown = page_at(rich)
    mark = shown.locator(".frontier svg [data-mark=dot] path").last.bounding_box()
    shown.mouse.move(mark["x"] + mark["width"] / 2, mark["y"] + mark["height"] / 2)
    tip = shown.locator(".frontier svg :is([aria-label=tip], [data-mark=tip])").first
    tip.locator("text").first.wait_for()
    assert "openvino-cpu" in tip.text_content()
    assert "accuracy −0.1 points" in tip.text_content()


def test_the_shape_is_chosen(page_at, rich: Path) -> None:
    shown = page_at(rich)
    before = shown.locator(".winner .muted").inner_text()
    shown.locator(".limits select").select_option("8 rows of 128 tokens")
    assert shown.locator(".winner .muted").inner_text() != before
    assert winner(shown) == "openvino-cpu"


def test_samples_are_files(page_at, rich: Path, tmp_path: Path) -> None:
    shown = page_at(rich)
    report = rich_run().report
    for place, name, rows in (
        (".limits", "candidates.csv", 4 * 4),
        (
            ".distributions",
            "times.csv",
            sum(len(each.samples_ms) for each in columns(report).latencies),
        ),
        (".costs", "cost-by-length.csv", 4 * (60 + 1)),
    ):
        with shown.expect_download() as download:
            shown.locator(place).get_by_role("button", name="CSV").first.click()
        assert download.value.suggested_filename == name
        download.value.save_as(tmp_path / name)
        with (tmp_path / name).open(encoding="utf-8-sig", newline="") as file:
            assert len(list(csv.DictReader(file))) == rows


def test_variants_are_folded_and_sort(page_at, searched: Path) -> None:
    shown = page_at(searched, width=360)
    table = shown.locator("table.variants")
    assert not table.is_visible()
    shown.locator("section.choice summary").click()
    # The page is told of a new width after the next frame.
    shown.locator("section.choice .scroll.wide").wait_for()
    assert shown.locator("section.choice .scroll").get_attribute("tabindex") == "0"
    table.get_by_role("button", name="ms", exact=True).click()
    times = [
        float(text.split()[0])
        for text in table.locator("tbody td:nth-child(2)").all_inner_texts()
        if text
    ]
    assert times == sorted(times)


@pytest.mark.parametrize("width", [360, 2560])
def test_hostile_and_long_names_stay_inside(page_at, written, width: int) -> None:
    name = f"<script>alert(1)</script><img src=x onerror=alert(1)> {WIDE}"
    enemy = found(f"openvino-cpu {name}", 21.7, 0.1, 0.1, 110.0, "chosen")
    reference = found("ort-cpu f32", 76.8, 0.0, 0.0, 418.0, "admissible")
    choice = selection(enemy, reference, sentence=f"Use {name}.")
    shown = page_at(
        written(ShownRun(name, rich_report().model_copy(update={"choice": choice}))), width=width
    )
    assert shown.locator(".winner b").inner_text() == enemy.variant.name
    assert shown.locator("img").count() == 0
    assert (
        shown.evaluate(
            "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        )
        == 0
    )
