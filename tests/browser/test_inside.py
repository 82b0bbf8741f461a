"""The inside of models in a browser: maps by pointer and by keys, histograms, curves, trials, and their CSV files."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import pytest

from tests.support.reports import LAYERS, PARTS, TARGETS, rich_run


def downloaded(shown: Any, button: Any) -> list[list[str]]:
    with shown.expect_download() as download:
        button.click()
    return list(
        csv.reader(io.StringIO(Path(download.value.path()).read_text(encoding="utf-8-sig")))
    )


def test_maps_stand_side_by_side_and_say_more_under_the_pointer(page_at, rich: Path) -> None:
    shown = page_at(rich)
    maps = shown.locator("section.layers .maps figure")
    assert maps.count() == 3
    assert len({round(maps.nth(i).bounding_box()["y"]) for i in range(3)}) == 1
    last = maps.nth(2).locator("svg")
    box = last.bounding_box()
    last.hover(position={"x": box["width"] - 20, "y": 50})
    said = shown.locator("section.layers .cell").text_content()
    assert f"Layer {LAYERS - 1}, query: 8-bit" in said
    assert "linear layers are 8-bit" in said


def test_keys_move_from_cell_to_cell_and_reasons_are_read_out(page_at, rich: Path) -> None:
    shown = page_at(rich)
    shown.locator("section.layers select").select_option("ort-cpu")
    shown.locator("section.layers .row").focus()
    said = shown.locator("section.layers [aria-live]")
    for key, place in (
        ("ArrowRight", "Layer 0, query"),
        ("ArrowRight", "Layer 1, query"),
        ("ArrowDown", "Layer 1, key"),
    ):
        shown.keyboard.press(key)
        assert place in said.text_content()
    for key in ("ArrowRight", *["ArrowDown"] * 6):
        shown.keyboard.press(key)
    assert "Layer 2, ffn_down: float" in said.text_content()
    assert "fell back to float: too sensitive" in said.text_content()


def test_a_histogram_is_chosen_by_search_and_click(page_at, rich: Path) -> None:
    shown = page_at(rich)
    section = shown.locator("section.ranges")
    section.get_by_label("Search").fill("layer.3 value")
    rows = section.locator(".list tbody tr:visible")
    assert rows.count() == 1
    rows.get_by_role("button").click()
    assert "encoder.layer.3.value" in section.locator(".histogram figcaption").text_content()
    assert "clips 0.04 %" in section.locator(".histogram svg").text_content()


def test_types_of_operators_are_drawn_by_their_share(page_at, rich: Path) -> None:
    shown = page_at(rich)
    chart = shown.locator("section.executed svg").first
    assert "FullyConnected" in chart.text_content()
    widths = chart.locator("[data-mark=bar] rect").evaluate_all(
        "found => found.map(each => each.getBBox().width)"
    )
    assert widths[0] == pytest.approx(4 * widths[1], rel=0.01)


def test_the_loss_is_drawn_in_either_scale(page_at, rich: Path) -> None:
    shown = page_at(rich)
    section = shown.locator("section.training")
    path = section.locator("svg [data-mark=line] path").first
    linear = path.get_attribute("d")
    section.get_by_label("logarithmic loss").check()
    assert path.get_attribute("d") != linear


@pytest.mark.parametrize(
    ("section", "rows"),
    [
        ("layers", len(TARGETS) * LAYERS * (len(PARTS) + 1)),
        ("ranges", LAYERS * len(PARTS) * 64),
        ("training", 50),
        ("trials", 4),
    ],
)
def test_raw_samples_are_saved(page_at, rich: Path, section: str, rows: int) -> None:
    shown = page_at(rich)
    saved = downloaded(shown, shown.locator(f"section.{section} button.csv").first)
    assert len(saved) == 1 + rows
    assert len({len(row) for row in saved}) == 1


def test_the_first_and_last_points_of_a_curve_are_in_its_file(page_at, rich: Path) -> None:
    shown = page_at(rich)
    saved = downloaded(shown, shown.locator("section.training button.csv").first)
    curve = rich_run().evidence.curves[0]
    assert saved[0] == ["step", *curve.values]
    assert [float(each) for each in saved[1]] == [
        curve.steps[0],
        *(values[0] for values in curve.values.values()),
    ]
    assert [float(each) for each in saved[-1]] == [
        curve.steps[-1],
        *(values[-1] for values in curve.values.values()),
    ]
