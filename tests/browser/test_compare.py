"""`octobert compare` in a browser: asked, rows that grow and are cancelled, two tabs, hostile texts, packages that go away."""

from __future__ import annotations

import http.client
import json
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

import octobert
from tests.support.cli import PROGRAM
from tests.support.flips import prefer
from tests.support.runs import TARGETS, pairs_of_sentences

FIRST, SECOND = "he was good", "she was good in it"
HOSTILE = '<img src=x onerror="document.title=1"><script>document.title=2</script>'
SCROLLS = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
# Milliseconds until a busy machine has opened two models and asked them.
PATIENCE_MS = 60_000


@pytest.fixture(scope="module")
def folder(finished, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Packages of the tiny classifier; the float model of ort-cpu always gives the first class."""
    out = tmp_path_factory.mktemp("compare")
    for target in TARGETS:
        shutil.copytree(finished[1] / target, out / target)
    prefer(out / "ort-cpu", 0)
    return out


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[str]:
    """Of the command, which Ctrl-C ends without a trace."""
    command = [*PROGRAM, "compare", str(folder), "--quiet"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    own = process.stdout.readline().strip()
    yield own
    # In the middle of work.
    parts = urlsplit(own)
    with closing(http.client.HTTPConnection(parts.netloc)) as connection:
        headers = {"Origin": f"http://{parts.netloc}"}
        connection.request("POST", f"{parts.path}rows?model=ort-cpu&name=rows.csv", rows_of(50_000).encode(), headers)
        answer = connection.getresponse()
        answer.readline()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=20)
        answer.close()
    assert (process.returncode, out, err) == (0, "", "")


@pytest.fixture
def tab(browser: Any, address: str) -> Iterator[Callable[..., Any]]:
    """`tab(dark=False, width=1280, fragment="")` → the page in a tab of its own, which may ask its own server only."""
    contexts, mistakes = [], []

    def opened(*, dark: bool = False, width: int = 1280, fragment: str = "") -> Any:
        viewport = {"width": width, "height": 900}
        context = browser.new_context(viewport=viewport, color_scheme="dark" if dark else "light", accept_downloads=True)
        contexts.append(context)
        shown = context.new_page()
        shown.set_default_timeout(PATIENCE_MS)
        shown.on("console", lambda message: mistakes.append(message.text) if message.type in ("error", "warning") else None)
        shown.on("pageerror", lambda error: mistakes.append(str(error)))
        shown.on("dialog", lambda dialog: (mistakes.append(dialog.message), dialog.dismiss()))
        own = (address, "blob:", "data:")
        shown.on("request", lambda request: None if request.url.startswith(own) else mistakes.append(request.url))
        shown.goto(address + fragment)
        shown.wait_for_selector("html[data-ready]", state="attached")
        shown.select_option("#model", "ort-cpu")
        return shown

    yield opened
    for context in contexts:
        context.close()
    assert mistakes == []


def rows_of(count: int, first: str = "") -> str:
    lines = [f'"{first or a}","{b}",{label}' for a, b, label in pairs_of_sentences(count, 9000)]
    return "\n".join(["sentence1,sentence2,label", *lines])


def ask(shown: Any, first: str = FIRST, second: str = SECOND) -> str:
    """Ask both models. Returns the sentence."""
    shown.fill("#field-text", first)
    shown.fill("#field-second", second)
    shown.click("#question button")
    shown.locator("#sentence", has_text="Median of 5 rounds").wait_for()
    shown.wait_for_selector("#question button:enabled")
    return shown.inner_text("#sentence")


def test_a_text_is_answered_by_both_models_as_predict_answers_it(tab, folder: Path, address: str) -> None:
    shown = tab()
    ask(shown)
    with octobert.load(folder / "ort-cpu") as model:
        (expected,) = model([(FIRST, SECOND)])
    card = shown.inner_text(".side.of-int8")
    assert expected["label"] in card
    assert f"{expected['score']:.4f}" in card
    assert re.search(r"\d ms \(", shown.inner_text(".side.of-float"))
    assert shown.locator("#times svg [data-mark=dot] path").count() == 12
    ask(shown, "it was good")
    assert shown.locator("#times svg [data-mark=dot] path").count() == 24
    shown.click("#read summary")
    assert "[CLS]" in shown.inner_text("#read .tokens")
    # The address keeps the question, and a link to it has no token.
    fragment = urlsplit(shown.url).fragment
    assert "text=it+was+good" in fragment
    again = tab(fragment=f"#{fragment}")
    assert again.input_value("#field-text") == "it was good"


def test_rows_grow_and_those_that_differ_are_saved(tab) -> None:
    shown = tab()
    shown.fill("#pasted", rows_of(300, HOSTILE.replace('"', '""')))
    shown.click("#start")
    shown.wait_for_selector("#progress[value]")
    shown.locator("#rows-status", has_text="All 300 rows of pasted.csv are done.").wait_for()
    assert "Rows per second" in shown.inner_text("#tiles")
    number = int(re.match(r"(\d+) rows? differ", shown.inner_text("#changed h3"))[1])  # type: ignore[index]
    assert 0 < number <= 300
    assert shown.locator("#changed tbody tr").count() == min(number, 200)
    # What is in the file stays text.
    assert HOSTILE in shown.inner_text("#changed tbody tr:first-child")
    assert shown.locator("main img").count() == 0
    assert shown.title() == "octobert compare"
    with shown.expect_download() as download:
        shown.click("#changed .csv")
    saved = Path(download.value.path()).read_text(encoding="utf-8-sig").splitlines()
    assert len(saved) == number + 1
    assert saved[0] == "row,text 1,text 2,expected,float,8 bits,float score,8-bit score"


def test_cancel_ends_the_work(tab) -> None:
    shown = tab()
    shown.set_input_files("#file", [{"name": "many.csv", "mimeType": "text/csv", "buffer": rows_of(50_000).encode()}])
    shown.click("#start")
    shown.wait_for_selector("#progress[value]")
    shown.click("#cancel")
    shown.locator("#rows-status", has_text="Cancelled.").wait_for()
    assert shown.is_hidden("#cancel")
    assert shown.is_enabled("#start")
    ask(shown)


def test_two_tabs_do_not_mix(tab) -> None:
    one, other = tab(), tab()
    one.fill("#pasted", rows_of(800))
    one.click("#start")
    one.wait_for_selector("#progress[value]")
    # A question is answered between two steps of the other tab.
    other.select_option("#model", TARGETS[-1])
    ask(other, "it was good")
    other.fill("#pasted", rows_of(20))
    other.click("#start")
    other.locator("#rows-status", has_text="All 20 rows").wait_for()
    one.locator("#rows-status", has_text="All 800 rows").wait_for()
    assert "of 800 rows" in one.inner_text("#tiles")


def test_lengths_and_packages_are_switched(tab) -> None:
    shown = tab()
    ask(shown)
    shown.click("#measure")
    shown.wait_for_selector("#stop-lengths", state="hidden")
    status = re.match(r"(\d+) of (\d+) lengths", shown.inner_text("#lengths-status"))
    assert status is not None
    assert status[1] == status[2]
    assert shown.locator("#lengths svg").is_visible()
    shown.select_option("#model", TARGETS[0])
    assert shown.is_hidden("#times")
    assert shown.input_value("#field-text") == FIRST
    assert TARGETS[0] in shown.inner_text("#about")


def test_what_is_wrong_is_said(tab, folder: Path) -> None:
    shown = tab()
    shown.fill("#field-text", "")
    shown.click("#question button")
    shown.locator("[role=alert]", has_text="the text: the text is empty").wait_for()
    shown.click("#start")
    shown.locator("[role=alert]", has_text="There are no rows").wait_for()
    shown.fill("#pasted", "a,b\n1,2")
    shown.click("#start")
    shown.locator("[role=alert]", has_text="pasted.csv: no column is recognized as text").wait_for()
    package = folder / "ort-cpu"
    package.rename(folder.parent / "gone")
    try:
        shown.fill("#field-text", FIRST)
        shown.fill("#field-second", SECOND)
        shown.click("#question button")
        shown.locator("[role=alert]", has_text="the package is not there any more").wait_for()
    finally:
        (folder.parent / "gone").rename(package)
    (package / "octobert.json").write_bytes((package / "octobert.json").read_bytes())
    ask(shown)
    assert shown.is_hidden("#error")


@pytest.mark.parametrize(("dark", "width"), [(False, 1280), (True, 1280), (False, 360), (False, 2560)])
def test_everybody_can_read_it(tab, dark: bool, width: int) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    shown = tab(dark=dark, width=width)
    ask(shown)
    shown.fill("#pasted", rows_of(30))
    shown.click("#start")
    shown.locator("#rows-status", has_text="All 30 rows").wait_for()
    assert shown.evaluate(SCROLLS) == 0
    background = shown.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(json.loads(f"[{background[4:-1]}]")) < 150) == dark
    found = axe.Axe().run(shown).response["violations"]
    assert [(each["id"], each["nodes"][0]["html"]) for each in found if each["impact"] in ("serious", "critical")] == []
