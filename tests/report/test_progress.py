"""What a search for the best model shows while it runs."""

from __future__ import annotations

import io
from typing import Any

from octobert.report.choices import best_so_far
from octobert.report.console import PlainConsole
from octobert.report.progress import ProgressBar, ProgressEvent
from tests.support.selections import found, selection

CHOICE = selection()


def searching(name: str, done: int, seconds: float) -> ProgressEvent:
    """How far a search is, as its listener says it."""
    best = next((each for each in CHOICE.found if each.variant.name == name), None)
    detail = best_so_far(best, done, 20, seconds, 20)
    return ProgressEvent("search", "searching", detail, done, 20, seconds, left_seconds=1200 - seconds, best=name)


def step(state: Any, number: int = 0) -> ProgressEvent:
    """A step of one of the variants, or of the final run."""
    return ProgressEvent("export/ort-cpu", state, "writing", 1, 3, seconds=2.0, number=number, steps=19 if number else 0)


def live(bar: ProgressBar) -> list[str]:
    """The lines that a terminal shows and moves."""
    console = PlainConsole(file=io.StringIO(), width=100)
    with console.capture() as lines:
        for part in bar._bar.get_renderables():
            console.print(part)
    return lines.get().splitlines()


def test_each_new_best_variant_is_one_line_and_steps_are_none() -> None:
    with ProgressBar() as bar:
        bar._bar.console.file = stream = io.StringIO()
        for name, done in (("", 0), ("ort-cpu int8", 3), ("ort-cpu int8", 5), ("openvino-cpu int8", 12)):
            bar(searching(name, done, 10.0 * done))
            bar(step("started"))
            bar(step("finished"))
        bar(step("started", 5))
        bar(step("finished", 5))
    assert stream.getvalue().splitlines() == [
        "  best so far: ort-cpu int8, 2.9 × (3 of 20 variants, 0:30 of 20:00)",
        "  best so far: openvino-cpu int8, 3.5 × (12 of 20 variants, 2:00 of 20:00)",
        "  5/19 export/ort-cpu                2.0 s",
    ]


def test_the_best_variant_stays_in_sight_while_steps_run() -> None:
    with ProgressBar() as bar:
        bar._bar.console.file = io.StringIO()
        bar(searching("openvino-cpu int8", 12, 190.0))
        bar(step("running"))
        search, now = live(bar)
        assert search == "best so far: openvino-cpu int8, 3.5 × (12 of 20 variants, 3:10 of 20:00)"
        assert now.startswith("export/ort-cpu")
        assert "0:00, about 16:49 left writing 1/3" in now
        bar(step("started", 5))
        assert len(live(bar)) == 1


def test_names_are_not_obeyed() -> None:
    enemy = found("\x1b[31m int8", 21.7, 0.1, 0.1, 110.0, "chosen")
    with ProgressBar() as bar:
        bar._bar.console.file = stream = io.StringIO()
        bar(ProgressEvent("search", "searching", best_so_far(enemy, 1, 2, 1, None), 1, 2, best=enemy.variant.name))
    assert stream.getvalue() == "  best so far: ␛[31m int8, 3.5 × (1 of 2 variants, 0:01)\n"
