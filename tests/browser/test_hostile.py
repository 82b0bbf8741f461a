"""Texts, labels, file names and model names are data: none becomes markup or script, whatever stands in them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from octobert.core.evidence import Evidence
from octobert.core.results import Report
from octobert.report.page import ShownRun
from tests.support.enemies import ENEMIES
from tests.support.reports import MODELS, rich_run

# Of these only a few words are valid.
KEPT = {
    "date",
    "outcome",
    "sequence",
    "quantizer",
    "float_parts",
    "problem",
    "kind",
    "fidelity_kind",
}
# Keys that are names, and not fields of records.
NAMES = {*(name for name, *_ in MODELS), "equivalent", "not"}


def spoiled(value: Any, enemy: str) -> Any:
    """Plain data with an enemy behind every text and every name."""
    if isinstance(value, str):
        return f"{value}{enemy}"
    if isinstance(value, list):
        return [spoiled(each, enemy) for each in value]
    if not isinstance(value, dict):
        return value
    return {
        f"{key}{enemy}" if key in NAMES else key: each if key in KEPT else spoiled(each, enemy)
        for key, each in value.items()
    }


def hostile_run(enemy: str) -> ShownRun:
    """A run whose names, labels, reasons and texts all end in the enemy."""
    run = rich_run(changed=4)
    report = run.report.model_dump(mode="json", by_alias=True)
    recipe = {**report["recipe"], "model": f"{report['recipe']['model']}{enemy}"}
    return ShownRun(
        f"name{enemy}",
        Report.model_validate({**spoiled(report, enemy), "recipe": recipe}),
        Evidence.model_validate(spoiled(run.evidence.model_dump(mode="json"), enemy)),
        f"folder{enemy}",
    )


@pytest.mark.parametrize("number", range(len(ENEMIES)))
def test_nothing_becomes_markup_or_script(page_at, written, rich: Path, number: int) -> None:
    """The page has the same elements as that of a harmless run, runs no script of the data, and stays in its width."""
    enemy = ENEMIES[number]
    harmless = page_at(written(rich_run(changed=4)))
    count = "(kind) => document.querySelectorAll(kind).length"
    for width in (1280, 360):
        shown = page_at(written(hostile_run(enemy)), width=width)
        shown.evaluate(
            "document.querySelectorAll('details').forEach((each) => { each.open = true; })"
        )
        assert shown.evaluate("window.x") is None
        for kind in (
            "script",
            "img",
            "iframe",
            "textarea",
            "style:not(figure *)",
            "form",
            "object",
            "a[href^=javascript]",
            "[onload], [onerror]",
        ):
            assert shown.evaluate(count, kind) == harmless.evaluate(count, kind), kind
        assert (
            shown.evaluate(
                "document.documentElement.scrollWidth - document.documentElement.clientWidth"
            )
            <= 0
        )
    if enemy.isprintable() and len(enemy) < 100:
        assert enemy in shown.locator("h1").text_content()
        assert enemy in shown.locator(".rows").inner_text()


def test_a_page_of_several_hostile_runs(page_at, written) -> None:
    shown = page_at(written(hostile_run(ENEMIES[0]), rich_run(ENEMIES[1])))
    assert shown.evaluate("window.x") is None
    assert shown.get_by_role("tab").all_text_contents() == [f"name{ENEMIES[0]}", ENEMIES[1]]
    shown.get_by_role("tab").last.click()
    assert shown.locator("#run-2 h1").text_content() == ENEMIES[1]


def test_a_file_of_values_has_no_formulas(page_at, written) -> None:
    """A spreadsheet would run `=1+1` in a text of a row."""
    run = rich_run(changed=1)
    (rows, *others), row = run.evidence.changed, run.evidence.changed[0].rows[0]
    evil = row.model_copy(update={"texts": ("=cmd|'/C calc'!A0", '+1+1,"quoted"\nsecond line')})
    changed = rows.model_copy(update={"rows": (evil,)})
    evidence = run.evidence.model_copy(update={"changed": (changed, *others)})
    shown = page_at(written(ShownRun("model", run.report, evidence)))
    with shown.expect_download() as download:
        shown.locator(".rows button", has_text="CSV").last.click()
    text = Path(download.value.path()).read_text(encoding="utf-8-sig")
    assert "'=cmd|" in text
    assert ",=cmd" not in text
    assert '"\'+1+1,""quoted""\nsecond line"' in text
