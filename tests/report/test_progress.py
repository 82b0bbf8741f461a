"""What a run shows while it goes on: its steps as a graph in a terminal, lines elsewhere, the best model of a search."""

from __future__ import annotations

import io
import os
import random
import sys
import time
from typing import Any

import pytest

from octobert.report import progress
from octobert.report.choices import best_so_far
from octobert.report.events import ProgressEvent
from octobert.report.progress import ASCII, UNICODE, Marks, ProgressBar, View
from tests.support.selections import found, selection

CHOICE = selection()
PLAN = {
    "data": (),
    "capture": (),
    "observe": ("capture", "data"),
    "quantize/ort-cpu": ("observe",),
    "export/ort-cpu": ("quantize/ort-cpu",),
    "quantize/openvino-cpu": ("observe",),
    "export/openvino-cpu": ("quantize/openvino-cpu",),
    "evaluate/ort-f32": ("capture", "data"),
    "evaluate/torch-f32": ("capture", "data"),
    "evaluate/ort-cpu": ("export/ort-cpu", "data"),
    "evaluate/openvino-cpu": ("export/openvino-cpu", "data"),
    "benchmark": ("export/ort-cpu", "export/openvino-cpu"),
    "report": ("benchmark",),
}
PLANNED = ProgressEvent("run", "planned", steps=len(PLAN), plan=PLAN)


class Clock:
    """A clock that is set by hand."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def searching(name: str, done: int, seconds: float) -> ProgressEvent:
    """How far a search is, as its listener says it."""
    best = next((each for each in CHOICE.found if each.variant.name == name), None)
    detail = best_so_far(best, done, 20, seconds, 20)
    return ProgressEvent(
        "search", "searching", detail, done, 20, seconds, left_seconds=1200 - seconds, best=name
    )


def step(name: str, state: Any, **facts: Any) -> ProgressEvent:
    """A step of the plan, or of a variant of a search."""
    number = 1 + list(PLAN).index(name) if facts.pop("planned", True) else 0
    return ProgressEvent(name, state, number=number, steps=len(PLAN) if number else 0, **facts)


def run_until(view: View, clock: Clock, last: str) -> None:
    """The planned run up to the start of a step; each took a second, and the first is reused."""
    view.take(PLANNED)
    for name in PLAN:
        view.take(step(name, "started", left_seconds=60.0))
        if name == last:
            return
        clock.now += 1
        view.take(step(name, "finished" if name != "data" else "reused", seconds=1.0))


def plain(view: View, width: int = 79, height: int = 24) -> list[str]:
    return [line.plain for line in view.lines(width, height)]


def test_the_steps_of_a_run_are_a_graph(golden) -> None:
    clock = Clock()
    view = View(UNICODE, clock)
    run_until(view, clock, "export/openvino-cpu")
    clock.now += 2
    view.take(step("export/openvino-cpu", "running", detail="writing", done=0, total=300))
    clock.now += 5
    view.take(step("export/openvino-cpu", "running", detail="writing", done=60, total=300))
    golden("\n".join(plain(view)))
    view.fail()
    assert [line.plain for line in view.summary(79)][2:] == [
        "├ openvino-cpu  quantize ✓ 1.0s → export ✗ → evaluate ·",
        "├ evaluate      ort-f32 ·, torch-f32 ·",
        "└ benchmark · → report ·",
        "6 of 13 steps in 0:13",
    ]


def test_an_encoding_without_the_marks_gets_ascii() -> None:
    assert Marks.for_encoding("utf-8") is UNICODE
    assert (
        Marks.for_encoding("latin-1")
        is Marks.for_encoding(None)
        is Marks.for_encoding("no such encoding")
        is ASCII
    )
    clock = Clock()
    view = View(ASCII, clock)
    run_until(view, clock, "observe")
    lines = plain(view)
    assert all(line.isascii() for line in lines)
    assert lines[:2] == [
        "data = > capture + 1.0s > observe |",
        "|- ort-cpu       quantize . > export . > evaluate .",
    ]


@pytest.mark.parametrize(("height", "count"), [(24, 7), (7, 5), (5, 2), (2, 1), (1, 1)])
def test_a_small_terminal_shows_less(height: int, count: int) -> None:
    clock = Clock()
    view = View(UNICODE, clock)
    run_until(view, clock, "benchmark")
    lines = plain(view, 79, height)
    assert len(lines) == count
    assert any("benchmark 0:00" in line for line in lines)
    assert ("├ ort-cpu 3/3, openvino-cpu 3/3, evaluate 2/2" in lines) == (height == 7)


def test_the_view_never_leaves_the_terminal() -> None:
    chance = random.Random(0)
    names = [*PLAN, "evaluate/" + "x" * 90, "a\nb\x1b[2J", "表/日本語"]
    for _ in range(40):
        clock = Clock()
        view = View(chance.choice([UNICODE, ASCII]), clock)
        for _ in range(chance.randrange(1, 30)):
            clock.now += chance.random() * 9
            name, state = (
                chance.choice(names),
                chance.choice(["started", "running", "finished", "reused"]),
            )
            numbered = ProgressEvent(
                name,
                state,
                "a\ndetail " * chance.randrange(9),
                chance.randrange(9),
                chance.randrange(9),
                number=1,
            )
            view.take(
                chance.choice(
                    [
                        PLANNED,
                        searching("", 3, 1.0),
                        searching("openvino-cpu int8", 3, 1.0),
                        *[numbered] * 6,
                    ]
                )
            )
        for width, height in ((1, 1), (9, 3), (40, 5), (79, 24), (200, 50)):
            lines = view.lines(width, height)
            assert len(lines) <= max(1, min(14, height - 1))
            assert all(
                line.cell_len <= width and "\n" not in line.plain and "\x1b" not in line.plain
                for line in lines
            )
            assert all(line.cell_len <= width for line in view.summary(width))


def test_what_a_search_has_made_is_reused_by_the_final_run(golden) -> None:
    view = View(UNICODE, Clock())
    view.take(searching("openvino-cpu int8", 12, 190.0))
    view.take(step("export/ort-cpu", "running", planned=False, detail="writing", done=1, total=3))
    search, now, clock = plain(view, 100)
    golden(search)
    assert now == "⠋ export/ort-cpu 0:00  writing 1/3 ━━━───────"
    assert clock == "  0:00, about 16:50 left"
    assert plain(view, 60)[:2] == [
        "best so far: openvino-cpu int8, 3.5 ×, drop 0.1 points (12",
        "  of 20 variants, 3:10 of 20:00)",
    ]
    view.take(PLANNED)
    view.take(step("evaluate/ort-cpu", "started"))
    assert plain(view)[:2] == [
        "data ↺ → capture ↺ → observe ↺",
        "├ ort-cpu       quantize ↺ → export ↺ → evaluate ⠋",
    ]


def test_each_new_best_variant_is_one_line_and_steps_are_none(golden, capsys) -> None:
    with ProgressBar() as bar:
        for name, done in (
            ("", 0),
            ("ort-cpu int8", 3),
            ("ort-cpu int8", 5),
            ("openvino-cpu int8", 12),
        ):
            bar(searching(name, done, 10.0 * done))
            bar(step("export/ort-cpu", "started", planned=False))
            bar(step("export/ort-cpu", "finished", planned=False))
        bar(PLANNED)
        bar(step("export/ort-cpu", "started"))
        bar(step("export/ort-cpu", "finished", seconds=2.0))
    shown = capsys.readouterr()
    assert shown.out == ""
    golden(shown.err)


def test_a_log_says_what_is_at_work_though_the_step_tells_nothing(golden) -> None:
    clock = Clock()
    view = View(ASCII, clock)
    run_until(view, clock, "capture")
    clock.now += 90
    assert view.reminders() == ["still working on capture (1:30)"]
    view.take(step("capture", "running", detail="capturing", done=1, total=2))
    assert view.reminders() == ["still working on capture (1:30): capturing 1/2"]
    view.take(step("capture", "finished", seconds=91.0))
    assert view.reminders() == []
    view.take(searching("ort-cpu int8", 3, 30.0))
    view.take(step("judge/ort-cpu int8", "started", planned=False))
    golden("\n".join(view.reminders()))


def test_a_log_is_told_again_and_again_until_the_end(capsys, monkeypatch) -> None:
    monkeypatch.setattr(progress, "_REMIND_S", 0.01)
    with ProgressBar() as bar:
        bar(ProgressEvent("qat", "started"))
        seen = ""
        while seen.count("  still working on qat (0:0") < 2:
            seen += capsys.readouterr().err
            time.sleep(0.01)
        bar(ProgressEvent("qat", "finished", seconds=1.0))
    time.sleep(0.05)
    assert capsys.readouterr().err.splitlines()[-1] == "  qat                                1.0 s"


def test_names_are_not_obeyed(golden, capsys) -> None:
    enemy = found("\x1b[31m int8", 21.7, 0.1, 0.1, 110.0, "chosen")
    with ProgressBar() as bar:
        bar(
            ProgressEvent(
                "search",
                "searching",
                best_so_far(enemy, 1, 2, 1, None),
                1,
                2,
                best=enemy.variant.name,
            )
        )
    golden(capsys.readouterr().err)


@pytest.mark.skipif(sys.platform == "win32", reason="no pseudo-terminals")
@pytest.mark.parametrize(
    ("term", "ended"), [("xterm", "finished"), ("xterm", "interrupted"), ("dumb", "finished")]
)
def test_a_real_terminal(term: str, ended: str, monkeypatch) -> None:
    """The cursor is hidden while the view is drawn, and comes back however the run ends; a dumb terminal gets lines only."""
    import pty

    for name in (
        "FORCE_COLOR",
        "NO_COLOR",
        "COLUMNS",
        "LINES",
        "TTY_COMPATIBLE",
        "TTY_INTERACTIVE",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", term)
    outer, inner = pty.openpty()
    with io.TextIOWrapper(
        os.fdopen(inner, "wb", 0), encoding="utf-8", write_through=True
    ) as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        try:
            with ProgressBar() as bar:
                bar(PLANNED)
                bar(step("data", "started"))
                bar(step("data", "finished", seconds=1.0))
                bar(step("capture", "started"))
                time.sleep(0.15)  # a few pictures
                if ended == "interrupted":
                    raise KeyboardInterrupt
                bar(step("capture", "finished", seconds=2.0))
        except KeyboardInterrupt:
            assert ended == "interrupted"
        monkeypatch.undo()
        stream.write("\0")
        read = b""
        while not read.endswith(b"\0"):
            read += os.read(outer, 100_000)
    os.close(outer)
    seen = read.decode().removesuffix("\0")
    if term == "dumb":
        assert seen.split() == ["1/13", "data", "1.0", "s", "2/13", "capture", "2.0", "s"]
        return
    assert seen.count("\x1b[?25l") == seen.count("\x1b[?25h") == 1
    last = seen[seen.index("\x1b[?25h") :]
    assert ("capture ✗" in last) == (ended == "interrupted")
    assert "of 13 steps in 0:00" in last
