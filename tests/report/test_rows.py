"""The rows that changed, on the page."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from octobert.core.evidence import Answer, ChangedRow, ChangedRows, Evidence, Transition
from octobert.report import terminal
from octobert.report.page import ShownRun
from octobert.report.page.runs import Section
from octobert.report.page.sections.rows import section
from octobert.report.tables import PlainConsole
from tests.support.columns import columns, with_columns
from tests.support.pages import markup_of, page_of
from tests.support.reports import rich_run

ENEMY = "</script><img src=x onerror=alert(1)>"


def shown(run: ShownRun, *changed: ChangedRows) -> Section | None:
    return section(replace(run, evidence=Evidence(changed=changed)))


def row(index: int, outcome: Any = "other", **more: Any) -> ChangedRow:
    plain: dict[str, Any] = {
        "texts": (f"a {index}", "b"),
        "expected": "",
        "before": Answer(text="x"),
        "after": Answer(text="y"),
    }
    return ChangedRow(row=index, outcome=outcome, **{**plain, **more})


def rows_of(*rows: ChangedRow, **more: Any) -> ChangedRows:
    return ChangedRows(
        candidate="ort-cpu", reference="ort-f32", rows=rows, **{"total": len(rows), **more}
    )


@pytest.fixture(scope="module")
def run() -> ShownRun:
    return rich_run()


def test_nothing_is_said_of_what_was_not_looked_at(run: ShownRun) -> None:
    assert shown(run) is None


def test_one_line_says_that_nothing_changed(golden, run: ShownRun) -> None:
    found = shown(run, rows_of())
    assert found is not None
    assert (found.title, found.data) == ("", None)
    markup = markup_of(page_of(run.report, Evidence(changed=(rows_of(),))))
    golden(re.search("No row changed[^<]*", markup).group())
    assert "Rows that changed" not in markup


@pytest.mark.parametrize(
    "changed",
    [
        rows_of(row(0, "lost"), row(1, "gained"), row(2), lost=1, gained=1),
        rows_of(row(0)),
        rows_of(row(0, "lost"), total=9000, lost=9000, sentence="All lost."),
    ],
    ids=["three", "one", "many"],
)
def test_sentences_say_how_many_and_what_stands_out(
    golden, run: ShownRun, changed: ChangedRows
) -> None:
    found = shown(run, changed)
    assert found is not None
    (sentences,) = found.values["sentences"]
    golden("\n".join(sentences))


def test_models_without_changes_are_not_chosen_from(run: ShownRun) -> None:
    other = rows_of(row(0)).model_copy(update={"candidate": "openvino-cpu"})
    found = shown(run, rows_of(), other)
    assert found is not None
    assert found.data is not None
    assert [each["name"] for each in found.data["candidates"]] == ["openvino-cpu"]


def test_the_page_has_sentence_and_transitions_without_script_and_no_texts(run: ShownRun) -> None:
    move = Transition(before=ENEMY, after="y", count=3, lost=2, gained=0)
    changed = rows_of(
        row(0, texts=(ENEMY, "secret")),
        sentence=f"All 3 went from {ENEMY} to y (p < 0.01).",
        transitions=(move,),
    )
    markup = markup_of(page_of(run.report, Evidence(changed=(changed,))))
    assert (
        "&lt;img src=x onerror=alert(1)&gt; → y</td><td>3</td><td>2</td><td>0</td><td>1</td>"
        in markup
    )
    assert "All 3 went from" in markup
    assert "<img" not in markup
    assert "secret" not in markup


def test_texts_are_stored_once_and_neighbours_say_how_they_moved(run: ShownRun) -> None:
    before, after = (
        Answer(
            text=f"rank {place}",
            neighbours=tuple((text, 0.9 - i / 10) for i, text in enumerate(texts)),
        )
        for place, texts in ((1, ("right", "b", "c")), (2, ("b", "right", "d")))
    )
    rows = [row(i, texts=("same",), expected="right", before=before, after=after) for i in range(2)]
    found = shown(run, rows_of(*rows))
    assert found is not None
    data = found.data
    assert data is not None
    assert sorted(data["texts"]) == sorted({"same", "right", "b", "c", "d"})
    (first, _) = data["candidates"][0]["rows"]
    near = [
        [(data["texts"][i], moved, right) for i, _, moved, right in first[side]["near"]]
        for side in ("before", "after")
    ]
    assert near == [
        [("right", "now 2", True), ("b", "now 1", False), ("c", "gone", False)],
        [("b", "was 2", False), ("right", "was 1", True), ("d", "new", False)],
    ]
    assert data["sources"] == ("query",)


def test_the_terminal_says_what_changes_have_in_common(
    run: ShownRun, capsys: pytest.CaptureFixture[str]
) -> None:
    said = "All 8 changes went from equivalent to different (p < 0.01)."
    told = tuple(
        each.model_copy(update={"direction": said if each.candidate == "ort-cpu" else ""})
        for each in columns(run.report).comparisons
    )
    PlainConsole(width=120).print(terminal.render(with_columns(run.report, {"comparisons": told})))
    notes = [line for line in capsys.readouterr().out.splitlines() if line.startswith("• ")]
    assert f"• ort-cpu: {said}" in notes
    PlainConsole(width=120).print(terminal.render(run.report))
    assert "changes went" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("kind", "form", "sources"),
    [
        ("pairs", "pair", ("first text", "second text")),
        ("question-answering", "question", ("question", "context")),
        ("token-classification", "texts", ("sentence",)),
    ],
)
def test_rows_become_commands_as_predict_takes_them(
    kind: Any, form: str, sources: tuple[str, ...]
) -> None:
    found = section(rich_run(kind=kind, folder="my out"))
    assert found is not None
    assert found.data is not None
    assert (found.data["form"], found.data["sources"]) == (form, sources)
    assert found.data["candidates"][0]["command"][:2] == ["octobert", "predict"]
    assert found.data["candidates"][0]["command"][2].startswith("my out/")
