"""The list of rows that changed: filters, pages, marks in texts of any script, files, commands."""

from __future__ import annotations

import csv
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from octobert.core.evidence import Answer, ChangedRow, ChangedRows, Evidence, Mark
from octobert.report.page import ShownRun
from tests.support.reports import rich_run

CONTEXT = "👩‍👩‍👧 Ada e\u0301crivait 東京 <img src=x onerror=alert(1)> 🏳️‍🌈 fin"
ODD = 'it\'s "$HOME"\n`x` 🙂'


def mark(text: str, index: int = 1, label: str = "") -> Mark:
    return Mark(
        text=index, start=CONTEXT.index(text), end=CONTEXT.index(text) + len(text), label=label
    )


def answer(text: str, **more: Any) -> Answer:
    return Answer(text=text, score=0.5, marks=(mark(text),), **more)


def with_rows(
    run: ShownRun, *rows: ChangedRow, candidates: tuple[str, ...] = ("ort-cpu",)
) -> ShownRun:
    changed = [
        ChangedRows(candidate=name, reference="ort-f32", total=len(own), rows=own)
        for name, own in (
            (name, rows[: len(rows) - place]) for place, name in enumerate(candidates)
        )
    ]
    return replace(run, evidence=Evidence(changed=tuple(changed)))


def test_answers_are_marked_by_characters_and_no_text_is_markup(
    page_at: Callable[..., Any], written: Callable[..., Path]
) -> None:
    said = ("Ada e\u0301crivait", "東京 <img src=x onerror=alert(1)>")
    row = ChangedRow(
        row=4,
        texts=("qui 🙂?", CONTEXT),
        expected="fin",
        before=answer(said[0]),
        after=answer(said[1]),
        outcome="lost",
        marks=(mark("fin"),),
    )
    shown = page_at(written(with_rows(rich_run(kind="question-answering"), row)))
    list_ = shown.locator("ol.changes")
    assert list_.locator("mark.before").all_inner_texts() == [said[0]]
    assert list_.locator("mark.after").all_inner_texts() == [said[1]]
    assert list_.locator("mark.expected").all_inner_texts() == ["fin"]
    assert list_.locator(".text").nth(1).text_content() == "context" + CONTEXT
    assert list_.locator("img").count() == 0


def test_entities_have_labels_and_those_that_differ_are_filled(
    page_at: Callable[..., Any], written: Callable[..., Path]
) -> None:
    both, old = mark("Ada", 0, "PER"), mark("東京", 0, "LOC")
    row = ChangedRow(
        row=0,
        texts=(CONTEXT,),
        expected="PER 2–2",
        before=Answer(text="PER 2–2, LOC 4–4", marks=(both, old)),
        after=Answer(text="PER 2–2", marks=(both,)),
        outcome="gained",
        marks=(both,),
    )
    shown = page_at(written(with_rows(rich_run(kind="token-classification"), row)))
    assert shown.locator(".answer.before mark").all_inner_texts() == ["AdaPER", "東京LOC"]
    assert shown.locator("mark.differs").all_inner_texts() == ["東京LOC"]


@pytest.fixture(scope="session")
def many(written: Callable[..., Path]) -> Path:
    """120 rows of one model, 119 of another."""
    rows = tuple(
        ChangedRow(
            row=i,
            texts=("first " * (i % 7 + 1), "-h" if i == 3 else f"second {i}"),
            expected="yes",
            before=Answer(text="yes", score=0.6, scores={"yes": 0.6, "no": 0.4}),
            after=Answer(text="no", score=0.7, scores={"no": 0.7, "yes": 0.3}),
            outcome="lost" if i % 3 else "gained",
            change=1 - i / 100,
            transitions=(("yes", "no") if i % 2 else ("no", "yes"),),
            whole=i != 5,
        )
        for i in range(120)
    )
    return written(
        with_rows(rich_run(folder="my 'out'"), *rows, candidates=("ort-cpu", "openvino-cpu"))
    )


def heads(shown: Any) -> list[int]:
    return [
        int(each.split()[1])
        for each in shown.locator("ol.changes > li .head span:nth-child(2)").all_inner_texts()
    ]


def test_rows_come_in_pages_of_fifty_by_keyboard(page_at: Callable[..., Any], many: Path) -> None:
    shown = page_at(many)
    status = shown.locator(".rows [role=status]")
    assert status.inner_text() == "120 rows, 1 to 50 shown"
    assert heads(shown) == [*range(1, 51)]
    shown.locator("ol.changes").focus()
    shown.keyboard.press("ArrowRight")
    shown.keyboard.press("ArrowRight")
    shown.keyboard.press("ArrowRight")
    assert status.inner_text() == "120 rows, 101 to 120 shown"
    assert shown.locator("[data-step='1']").is_disabled()
    shown.locator("[data-step='-1']").click()
    assert heads(shown) == [*range(51, 101)]


def test_rows_are_filtered_ordered_and_saved(
    page_at: Callable[..., Any], many: Path, tmp_path: Path
) -> None:
    shown = page_at(many)
    own = shown.locator("section.rows")
    status = own.locator("[role=status]")
    own.get_by_label("outcome").select_option("gained")
    assert status.inner_text() == "40 of 120 rows"
    own.get_by_label("kind of change").select_option("yes → no")
    assert status.inner_text() == "20 of 120 rows"
    own.get_by_label("order").select_option("best")
    assert heads(shown)[:2] == [118, 112]
    own.get_by_label("search").fill("SECOND 11")
    assert heads(shown) == [118, 112]
    for name, count in (("CSV of these rows", 2), ("CSV of all", 120)):
        with shown.expect_download() as saving:
            own.get_by_role("button", name=name, exact=True).click()
        saving.value.save_as(tmp_path / "rows.csv")
        assert saving.value.suggested_filename == "changed-ort-cpu.csv"
        with (tmp_path / "rows.csv").open(encoding="utf-8-sig", newline="") as file:
            lines = list(csv.DictReader(file))
        assert len(lines) == count
        assert lines[0]["ort-f32"] == "yes"
        assert lines[0]["ort-cpu score"] == "0.7"
        assert {line["outcome"] for line in lines} == (
            {"better"} if count == 2 else {"worse", "better"}
        )
    own.get_by_label("search").fill("nowhere")
    assert status.inner_text() == "0 of 120 rows"
    own.get_by_label("model").select_option("openvino-cpu")
    own.get_by_label("search").fill("")
    assert status.inner_text() == "40 of 119 rows"


def test_a_row_is_shown_as_a_command_that_a_shell_reads_back(
    page_at: Callable[..., Any], written: Callable[..., Path], many: Path
) -> None:
    shown = page_at(many)
    fourth = shown.locator("ol.changes > li").nth(3)
    fourth.get_by_role("button", name="as command").click()
    command = shlex.split(fourth.locator("pre code").inner_text())
    assert command == [
        "octobert",
        "predict",
        "my 'out'/ort-cpu",
        "--pair",
        "--",
        "first " * 4,
        "-h",
    ]
    # Its texts were cut, so that it would be another row.
    assert (
        shown.locator("ol.changes > li").nth(5).get_by_role("button", name="as command").count()
        == 0
    )
    row = ChangedRow(
        row=0,
        texts=(ODD, CONTEXT),
        expected="",
        before=answer("Ada"),
        after=answer("fin"),
        outcome="other",
    )
    asked = page_at(written(with_rows(rich_run(kind="question-answering", folder="OUT"), row)))
    asked.get_by_role("button", name="as command").click()
    command = shlex.split(asked.locator("ol.changes pre code").text_content())
    assert command == [
        "octobert",
        "predict",
        "OUT/ort-cpu",
        f"--question={ODD}",
        f"--context={CONTEXT}",
    ]
