"""Everybody can read the page: axe finds nothing serious, in both themes and both widths."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from tests.support.reports import rich_run

# Of WCAG 2.2, as axe names its levels.
RULES = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]}


def violations(shown: Any) -> list[str]:
    """What axe calls serious or critical, with where it is."""
    from axe_playwright_python.sync_playwright import Axe

    found = Axe().run(shown, options=RULES).response["violations"]
    return [
        f"{each['id']}: {node['target']} {node['failureSummary']}"
        for each in found
        if each["impact"] in ("serious", "critical")
        for node in each["nodes"]
    ]


@pytest.fixture(scope="module")
def two(written) -> Path:
    """The page of two runs, which has tabs."""
    return written(rich_run("laptop"), rich_run("server", kind="question-answering"))


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (360, True)])
def test_axe_finds_nothing_serious(page_at, rich: Path, width: int, dark: bool) -> None:
    shown = page_at(rich, width=width, dark=dark, bypass_csp=True)
    shown.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    shown.wait_for_timeout(300)
    assert "\n".join(violations(shown)) == ""


def test_axe_finds_nothing_serious_in_several_runs(page_at, two: Path) -> None:
    shown = page_at(two, bypass_csp=True)
    assert "\n".join(violations(shown)) == ""


def test_the_skip_link_is_the_first_stop(page_at, rich: Path) -> None:
    shown = page_at(rich)
    shown.keyboard.press("Tab")
    assert shown.evaluate("document.activeElement.className") == "skip"
    assert shown.locator("a.skip").bounding_box()["x"] >= 0


def test_headings_have_an_order(page_at, rich: Path) -> None:
    found = page_at(rich).evaluate(
        "[...document.querySelectorAll('h1, h2, h3, h4')].map((e) => [+e.tagName[1], e.textContent])"
    )
    assert found[0][0] == 1
    assert [after for before, after in itertools.pairwise(found) if after[0] - before[0] > 1] == []
