"""Text of other people on a terminal and in the HTML report: it is shown, and neither obeyed nor run."""

from __future__ import annotations

import io
import json
import logging
import warnings
from pathlib import Path
from typing import Any

import onnx_ir as ir
from pydantic import ValidationError

from octobert.cli import _show
from octobert.core.errors import ModelError
from octobert.core.plain import printable, printable_json
from octobert.core.progress import ProgressEvent
from octobert.core.results import Report
from octobert.graph import operators
from octobert.report.progress import ProgressBar
from octobert.report.tables import PlainConsole, table_of
from tests.support.cli import octobert
from tests.support.pages import markup_of, page_of
from tests.support.selections import selection

# Markup that closes what was never opened, a colour, a new title of the window, a C1 sequence, an override of the direction.
ENEMY = "[/red]\x1b[31m\x1b]0;title\x1b\\\x9b2J\u202egnp.exe"
SHOWN = "[/red]␛[31m␛]0;title␛\\�2J�gnp.exe"


def drawn(*parts: object, terminal: bool = False) -> str:
    stream = io.StringIO()
    console = PlainConsole(file=stream, width=100, force_terminal=terminal)
    for part in parts:
        console.print(part)
    return stream.getvalue()


def test_tables_show_names_as_they_are() -> None:
    table = table_of(ENEMY, (ENEMY, "other"))
    table.add_row(ENEMY, "x", style="bold")
    table.caption = ENEMY
    text = drawn(table, ENEMY)
    assert text.count(SHOWN) == 5
    # Where it is a terminal, the styles of octobert itself are still sent.
    assert "\x1b[1m" in drawn(table, terminal=True)
    assert "\x1b[31m" not in drawn(table, terminal=True)


def test_progress_shows_names_as_they_are(capsys) -> None:
    with ProgressBar() as bar:
        for state in ("started", "running", "finished", "note"):
            bar(ProgressEvent(ENEMY, state, ENEMY, 1, 2))
        bar(ProgressEvent(ENEMY, "started", ENEMY, 1, 2))
        text = capsys.readouterr().err + drawn(bar._drawn)
    assert text.count(SHOWN) == 4
    assert "\x1b" not in text


def test_errors_logs_warnings_and_lines(capsys, monkeypatch) -> None:
    assert str(ModelError("no", where=ENEMY, got="x")) == f"{SHOWN}: no (got x)."
    _show.line(ENEMY)
    handler = _show._LogLines()
    handler.emit(logging.LogRecord("octobert", logging.INFO, "", 0, "%s", (ENEMY,), None))
    shown = capsys.readouterr()
    assert shown.out == f"{SHOWN}\n"
    assert shown.err == f"octobert: {SHOWN}\n"


def test_warnings_of_other_packages(capsys, monkeypatch) -> None:
    from octobert.cli import main

    with warnings.catch_warnings():
        monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
        main._print_warnings_as_notes()
        warnings.showwarning(ENEMY, UserWarning, "file.py", 1)  # type: ignore[arg-type]
    assert SHOWN in capsys.readouterr().err


def test_json_means_the_same() -> None:
    text = printable_json(json.dumps([ENEMY], ensure_ascii=False))
    assert json.loads(text) == [ENEMY]
    assert text.isprintable()


def test_texts_of_all_languages_stay() -> None:
    text = "naïve\tשלום \u200f(1)\u200f مرحبا 你好 👩‍👩‍👧 e\u0301\n"
    assert printable(text) == text
    assert printable("a name of bytes \udcff") == "a name of bytes ?"


def test_checking_a_file_whose_names_are_markup(captured, tmp_path: Path) -> None:
    """`octobert check` names the nodes that a target refuses."""
    model = captured("bert").model.clone()
    for number, node in enumerate(model.graph):
        node.name = f"{ENEMY}{number}"
    operators.save(model, tmp_path / "model.onnx")
    done = octobert("check", tmp_path / "model.onnx", "--target", "qnn")
    assert "Traceback" not in done.stderr
    assert SHOWN in "".join(line.strip() for line in done.stdout.splitlines())
    assert "\x1b" not in done.stdout + done.stderr
    assert ir.load(tmp_path / "model.onnx").graph.node(0).name == f"{ENEMY}0"


SCRIPT = '<script>alert(1)</script><img src=x onerror="alert(1)">'


def keys_in(value: Any) -> set[str]:
    """All keys in plain data; a text may be one of them."""
    if isinstance(value, list):
        return set().union(*map(keys_in, value))
    return (
        {*value, *set().union(*map(keys_in, value.values()))} if isinstance(value, dict) else set()
    )


def hostile(value: Any, path: tuple[int | str, ...], kept: set[Any]) -> Any:
    """Plain data with a script in every text, but at the paths in `kept` and where the text is."""
    if path in kept or (isinstance(value, str) and value in kept):
        return value
    if isinstance(value, str):
        return value + SCRIPT
    if isinstance(value, list):
        return [hostile(item, (*path, i), kept) for i, item in enumerate(value)]
    if isinstance(value, dict):
        return {key: hostile(item, (*path, key), kept) for key, item in value.items()}
    return value


def test_no_text_becomes_a_part_of_the_html_report(finished) -> None:
    report = (
        finished[2]
        .model_copy(update={"choice": selection()})
        .model_dump(mode="json", by_alias=True)
    )
    kept: set[Any] = keys_in(report) | {
        ("recipe", key) for key in report["recipe"] if key != "model"
    }
    for _ in range(5):
        try:
            changed = Report.model_validate(hostile(report, (), kept))
            break
        except ValidationError as error:
            # Names of types, of which there are a few.
            kept |= {mistake["loc"] for mistake in error.errors()}
    page = markup_of(page_of(changed))
    assert page.count("&lt;script&gt;") > 20
    assert "<script" not in page
    assert "<img" not in page
