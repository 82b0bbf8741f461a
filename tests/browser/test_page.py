"""The page of a report as a whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

SCROLLS = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


@pytest.mark.parametrize("width", [360, 768, 2560])
def test_no_width_scrolls_sideways(page_at, rich: Path, width: int) -> None:
    shown = page_at(rich, width=width)
    assert shown.evaluate(SCROLLS) == 0


def test_the_theme_follows_the_system(page_at, rich: Path) -> None:
    def luminance(shown: Any) -> int:
        return shown.evaluate(
            "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).slice(0, 3).reduce((a, b) => a + +b, 0)"
        )

    assert luminance(page_at(rich)) == 3 * 255
    assert luminance(page_at(rich, dark=True)) < 150
