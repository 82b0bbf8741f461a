"""What a run shows while it goes on: bars in a terminal, lines elsewhere, the best model of a search."""

from __future__ import annotations

import io
import os
import sys
import time
from typing import Any

import pytest

from octobert.core.progress import ProgressEvent
from octobert.report import progress
from octobert.report.choices import best_so_far
from octobert.report.progress import ProgressBar
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


def drawn(bar: ProgressBar) -> list[str]:
    """The lines of the steps at work, as far as they say something."""
    return [task.description for task in bar._drawn.tasks if task.visible]


def test_what_is_at_work_has_a_line_and_a_bar() -> None:
    with ProgressBar() as bar:
        bar(PLANNED)
        bar(step("data", "reused"))
        bar(step("capture", "started", left_seconds=60.0))
        bar(step("capture", "running", detail="capturing", done=1, total=2))
        assert drawn(bar) == ["1 of 13 steps", "capture capturing 1/2"]
        whole, capture = bar._drawn.tasks
        assert (whole.completed, whole.total) == (1, 13)
        assert (capture.completed, capture.total) == (1, 2)
        bar(step("capture", "finished", seconds=1.0))
        assert drawn(bar) == ["1 of 13 steps"]
        bar(step("observe", "started"))
        assert drawn(bar) == ["2 of 13 steps", "observe"]


def test_of_many_steps_at_work_the_last_ones_are_shown() -> None:
    with ProgressBar() as bar:
        for name in PLAN:
            bar(step(name, "started", planned=False))
        assert drawn(bar) == list(PLAN)[-4:]
        bar(step("report", "finished", planned=False))
        bar(step("benchmark", "running", planned=False, detail="timing"))
        assert drawn(bar) == [*list(PLAN)[-5:-2], "benchmark timing"]


def test_a_search_is_told_until_the_final_run() -> None:
    with ProgressBar() as bar:
        bar(searching("openvino-cpu int8", 12, 190.0))
        assert drawn(bar)[0].startswith("best so far: openvino-cpu int8, 3.5 ×")
        bar(PLANNED)
        assert drawn(bar) == ["0 of 13 steps"]


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


def test_a_log_says_what_is_at_work_though_the_step_tells_nothing(monkeypatch) -> None:
    now = [0.0]
    monkeypatch.setattr(progress.time, "perf_counter", lambda: now[0])
    bar = ProgressBar()
    bar(PLANNED)
    bar(step("capture", "started"))
    now[0] = 90.0
    assert bar._reminders() == ["still working on capture (1:30)"]
    bar(step("capture", "running", detail="capturing", done=1, total=2))
    assert bar._reminders() == ["still working on capture (1:30): capturing 1/2"]
    bar(step("capture", "finished", seconds=91.0))
    assert bar._reminders() == []
    bar(searching("ort-cpu int8", 3, 30.0))
    bar(step("judge/ort-cpu int8", "started", planned=False))
    search, judge = bar._reminders()
    assert search.startswith("best so far: ort-cpu int8")
    assert judge == "still working on judge/ort-cpu int8 (0:00)"


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
    done = 1 if ended == "interrupted" else 2
    assert f"{done} of 13 steps in 0:00" in last
