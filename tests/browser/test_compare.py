"""`octobert compare` in a browser: asked, rows that grow and are cancelled, two tabs, hostile texts, packages that go away."""

from __future__ import annotations

import csv
import http.client
import io
import json
import re
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import pytest

import octobert
from octobert_compare.server import Server
from tests.support.cli import PROGRAM
from tests.support.enemies import ENEMIES
from tests.support.flips import prefer
from tests.support.runs import TARGETS, pairs_of_sentences

HOSTILE = "".join(ENEMIES[:3])
FIRST, SECOND = "he was good", "she was good in it"
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


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """The address of a server in this process."""
    server = Server(folder)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        yield server.address
    finally:
        server.stop()
        thread.join(PATIENCE_MS / 1000)


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
        connection.request(
            "POST",
            f"{parts.path}rows?model=ort-cpu&name=rows.csv",
            rows_of(50_000).encode(),
            headers,
        )
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
        context = browser.new_context(
            viewport=viewport, color_scheme="dark" if dark else "light", accept_downloads=True
        )
        contexts.append(context)
        shown = context.new_page()
        shown.set_default_timeout(PATIENCE_MS)
        shown.on(
            "console",
            lambda message: (
                mistakes.append(message.text) if message.type in ("error", "warning") else None
            ),
        )
        shown.on("pageerror", lambda error: mistakes.append(str(error)))
        shown.on("dialog", lambda dialog: (mistakes.append(dialog.message), dialog.dismiss()))
        own = (address, "blob:", "data:")
        shown.on(
            "request",
            lambda request: None if request.url.startswith(own) else mistakes.append(request.url),
        )
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


def test_a_text_is_answered_by_both_models_as_predict_answers_it(
    tab, folder: Path, address: str
) -> None:
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
    assert shown.evaluate("window.x") is None
    with shown.expect_download() as download:
        shown.click("#changed .csv")
    saved = Path(download.value.path()).read_text(encoding="utf-8-sig").splitlines()
    assert len(saved) == number + 1
    assert saved[0] == "row,text 1,text 2,expected,float,8 bits,float score,8-bit score"


def test_cancel_ends_the_work(tab) -> None:
    shown = tab()
    shown.set_input_files(
        "#file", [{"name": "many.csv", "mimeType": "text/csv", "buffer": rows_of(50_000).encode()}]
    )
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
    # What a screen reader reads is the chart, and not a square of its legend.
    assert shown.locator("#lengths svg[role=img]").bounding_box()["width"] > 500
    shown.select_option("#model", TARGETS[0])
    assert shown.is_hidden("#times")
    assert shown.input_value("#field-text") == FIRST
    assert TARGETS[0] in shown.inner_text("#about")


def test_what_is_wrong_is_said(tab, folder: Path) -> None:
    shown = tab()
    shown.fill("#field-text", "")
    shown.click("#question button")
    shown.locator(
        "#ask-error", has_text="the input, text 1 of 2: the text is empty; write at least one word."
    ).wait_for()
    shown.click("#start")
    shown.locator("#rows-error", has_text="There are no rows").wait_for()
    shown.fill("#pasted", "a,b\n1,2")
    shown.click("#start")
    shown.locator("#rows-error", has_text="pasted.csv: no column is recognized as text").wait_for()
    shown.click("#measure")
    shown.locator("#lengths-error", has_text="the input, text 1 of 2: the text is empty").wait_for()
    package = folder / "ort-cpu"
    package.rename(folder.parent / "gone")
    try:
        shown.fill("#field-text", FIRST)
        shown.fill("#field-second", SECOND)
        shown.click("#question button")
        shown.locator("#ask-error", has_text="the package is not there any more").wait_for()
    finally:
        (folder.parent / "gone").rename(package)
    (package / "octobert.json").write_bytes((package / "octobert.json").read_bytes())
    ask(shown)
    assert shown.is_hidden("#ask-error")


def test_an_error_stands_beside_its_button_and_no_older_answer_below_it(tab) -> None:
    shown = tab()
    ask(shown)
    shown.fill("#field-text", "")
    shown.click("#question button")
    shown.locator("#ask-error", has_text="the text is empty").wait_for()
    assert shown.locator("#sides article").count() == 0
    assert shown.is_hidden("#read")
    assert shown.inner_text("#sentence") == ""
    shown.fill("#pasted", rows_of(20))
    shown.click("#start")
    shown.locator("#rows-status", has_text="All 20 rows").wait_for()
    shown.fill("#pasted", "")
    shown.click("#start")
    shown.locator("#rows-error", has_text="There are no rows").wait_for()
    assert shown.is_hidden("#tiles")
    for button, error in (("#question button", "#ask-error"), ("#start", "#rows-error")):
        above, below = shown.locator(button).bounding_box(), shown.locator(error).bounding_box()
        assert 0 < below["y"] - above["y"] < 100


def test_the_model_is_named_and_open_before_the_first_question(tab) -> None:
    shown = tab()
    shown.locator("#opened", has_text="Open: ort-f32 and ort-cpu.").wait_for()
    # The checkpoint of the run is a folder of this name.
    assert shown.inner_text("h1") == "bert-sequence-classification: float against INT8, live"
    assert shown.title() == "bert-sequence-classification – octobert compare"


def test_times_stand_at_their_lengths(tab) -> None:
    """A short and a long text have no median in common."""
    shown = tab()
    ask(shown)
    ask(shown, "he was good " * 20)
    assert "median" not in shown.locator("#times svg").last.text_content()
    # One large mark for each model at each length.
    marks = shown.locator("#times svg [data-mark=dot] circle")
    assert marks.count() == 4
    assert len({round(float(each.get_attribute("cx"))) for each in marks.all()}) == 2


def test_tokens_of_a_long_text_are_folded_and_scroll(tab) -> None:
    shown = tab()
    ask(shown, "he was good " * 300)
    assert "the text was cut, the model reads" in shown.inner_text("#read summary")
    assert shown.is_hidden("#read .tokens")
    shown.click("#read summary")
    assert shown.locator("#read .tokens").bounding_box()["height"] < 300


@pytest.mark.parametrize("enemy", [*ENEMIES, "=cmd|'/C calc'!A0"], ids=range(len(ENEMIES) + 1))
def test_nothing_that_is_asked_or_answered_becomes_markup(
    browser, finished, tmp_path: Path, enemy: str
) -> None:
    """Texts, names of labels, of columns, of files and of models, tags of rows, and errors that repeat them."""
    name = "".join(each for each in enemy if each.isprintable() and each != "/")[:100]
    package = tmp_path / f"ort {name}"
    shutil.copytree(finished[1] / "ort-cpu", package)
    manifest = json.loads((package / "octobert.json").read_text())
    manifest["task"]["labels"] = [f"no {enemy}", f"yes {enemy}"]
    manifest["recipe"]["model"] = f"a/b/{enemy}"
    (package / "octobert.json").write_text(json.dumps(manifest))
    prefer(package, 0)
    mistakes: list[str] = []
    with serving(package) as own, closing(browser.new_context(accept_downloads=True)) as context:
        shown = context.new_page()
        shown.set_default_timeout(PATIENCE_MS)
        shown.on("dialog", lambda dialog: (mistakes.append(dialog.message), dialog.dismiss()))
        shown.on("pageerror", lambda error: mistakes.append(str(error)))
        shown.on(
            "console",
            lambda message: mistakes.append(message.text) if message.type == "error" else None,
        )
        shown.on(
            "request",
            lambda request: (
                None
                if request.url.startswith((own, "data:", "blob:"))
                else mistakes.append(request.url)
            ),
        )
        shown.goto(
            f"{own}#{urlencode({'text': enemy, 'second': enemy, 'model': enemy, 'prompt': enemy})}"
        )
        shown.wait_for_selector("html[data-ready]", state="attached")
        ask(shown, f"he {enemy}", f"she {enemy}")
        shown.click("#read summary")
        shown.click("#measure")
        shown.locator("#lengths-status", has_text="lengths are timed").wait_for()
        rows = [
            ("sentence1", "sentence2", "label"),
            *[(f"{a} {enemy}", b, f"yes {enemy}") for a, b, _ in pairs_of_sentences(20)],
        ]
        text = io.StringIO()
        csv.writer(text).writerows(rows)
        content = text.getvalue().encode("utf-8", "replace")
        shown.set_input_files(
            "#file", [{"name": f"rows {name}.csv", "mimeType": "text/csv", "buffer": content}]
        )
        shown.click("#start")
        shown.locator("#rows-status", has_text="All 20 rows").wait_for()
        shown.set_input_files(
            "#file", [{"name": f"rows.{name}", "mimeType": "text/csv", "buffer": content}]
        )
        shown.click("#start")
        shown.locator("#rows-error:not(:empty)").wait_for()
        shown.set_input_files(
            "#file",
            [{"name": "rows.csv", "mimeType": "text/csv", "buffer": f"{name},b\n1,2".encode()}],
        )
        shown.click("#start")
        shown.locator("#rows-error", has_text="no column is recognized").wait_for()
        assert shown.evaluate("window.x") is None
        for kind in (
            "img",
            "iframe",
            "svg:not(figure svg)",
            "main script",
            "[onload], [onerror]",
            "a[href^=javascript]",
            "base",
        ):
            assert shown.locator(kind).count() == 0, kind
        assert shown.locator("script").count() == 4
        if enemy.isprintable():
            assert enemy in shown.text_content("#sides")
    assert mistakes == []


@pytest.mark.parametrize(
    ("dark", "width"), [(False, 1280), (True, 1280), (False, 360), (False, 2560)]
)
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
    assert [
        (each["id"], each["nodes"][0]["html"])
        for each in found
        if each["impact"] in ("serious", "critical")
    ] == []
