"""A browser, and pages in it that may do nothing but show themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from octobert.report.page import ShownRun, page
from tests.support.chromium import chromium
from tests.support.reports import rich_run

Open = Callable[..., Any]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything here needs a browser."""
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker(pytest.mark.needs_browser)


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """The system's Chromium; the tests are skipped where there is none."""
    api = pytest.importorskip(
        "playwright.sync_api", reason="Playwright is not installed (pip install octobert[browser])"
    )
    found = chromium()
    if found is None:
        pytest.skip("there is no Chromium or Chrome (OCTOBERT_BROWSER names its program)")
    with api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture
def page_at(browser: Any) -> Iterator[Open]:
    """`page_at(file, width=1280, dark=False, …)` → the page of a file, drawn, in a context of its own.

    The test fails if a page writes an error into the console, raises one, or asks for anything but its file.
    """
    contexts, mistakes = [], []

    def opened(
        file: Path,
        *,
        width: int = 1280,
        height: int = 900,
        dark: bool = False,
        drawn: bool = True,
        **options: Any,
    ) -> Any:
        context = browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme="dark" if dark else "light",
            accept_downloads=True,
            **options,
        )
        contexts.append(context)
        shown = context.new_page()
        own = file.resolve().as_uri()
        shown.on(
            "console",
            lambda message: (
                mistakes.append(message.text) if message.type in ("error", "warning") else None
            ),
        )
        shown.on("pageerror", lambda error: mistakes.append(f"error: {error}"))
        shown.on(
            "request",
            lambda request: (
                mistakes.append(f"asks for {request.url}")
                if not _is_own(request.url, own)
                else None
            ),
        )
        shown.on(
            "dialog",
            lambda dialog: (mistakes.append(f"dialog: {dialog.message}"), dialog.dismiss()),
        )
        shown.goto(own)
        if drawn:
            shown.wait_for_selector("html[data-drawn]", state="attached")
        return shown

    yield opened
    for context in contexts:
        context.close()
    assert mistakes == []


def _is_own(url: str, file: str) -> bool:
    return url.split("#")[0] == file or url.startswith(("blob:", "data:"))


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """`written(run, …)` → a file with the page of runs."""

    def write(*runs: ShownRun) -> Path:
        file = tmp_path_factory.mktemp("page") / "report.html"
        file.write_text(page(runs), encoding="utf-8")
        return file

    return write


@pytest.fixture(scope="session")
def rich(written: Callable[..., Path]) -> Path:
    """The page of a run with everything in it."""
    return written(rich_run())
