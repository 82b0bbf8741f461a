"""Representative reports as a reader sees them: all that a terminal shows, and all that the page says."""

from __future__ import annotations

import io
from typing import Any

import pytest

from octobert.core.evidence import Evidence
from octobert.report import terminal
from octobert.report.page import ShownRun, page
from octobert.report.tables import PlainConsole
from tests.support import reports
from tests.support.pages import text_of
from tests.support.reports import rich_report, rich_run
from tests.support.selections import MACHINE, selection

UNMEASURED = {"scores": {}, "comparisons": (), "latencies": (), "footprints": (), "speedups": ()}
OTHER_MACHINE = MACHINE.model_copy(update={"cpu": "Other Processor", "cores": 4})
CASES: dict[str, dict[str, Any]] = {
    "pairs": {},
    "question-answering": {"kind": "question-answering"},
    "token-classification": {"kind": "token-classification"},
    "embedding": {"kind": "embedding"},
    "a search": {"kind": "question-answering", "choice": selection()},
    "few rows": {"rows": 20},
    "nothing was measured": UNMEASURED,
}


@pytest.fixture(autouse=True)
def _three_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as the plan and the search of these reports name; more say nothing else."""
    monkeypatch.setattr(reports, "LAYERS", 3)


@pytest.mark.parametrize("case", CASES)
def test_on_a_terminal(golden, case: str) -> None:
    stream = io.StringIO()
    PlainConsole(file=stream, width=80).print(terminal.render(rich_report(**CASES[case])))
    golden(stream.getvalue())


def test_on_a_page(golden) -> None:
    golden(text_of(page([rich_run()])))


def test_a_search_on_a_page(golden) -> None:
    report = rich_report(
        kind="question-answering", choice=selection(), plans={}, searches={}, sensitivities={}
    )
    golden(text_of(page([ShownRun("model", report, Evidence(), "OUT")])))


def test_two_runs_on_a_page(golden) -> None:
    bare = {"plans": {}, "searches": {}, "sensitivities": {}}
    laptop = rich_report(rows=20, **bare)
    server = rich_report(rows=20, slower=0.5, environment=OTHER_MACHINE, **bare)
    runs = [
        ShownRun(name, report, Evidence(), "OUT")
        for name, report in (("laptop", laptop), ("server", server))
    ]
    golden(text_of(page(runs)))
