"""Sections of the page, from the top. A function gives what a section shows of a run, `<name>.html` shows it.

The function returns None where the run has nothing to show. `<name>.html` is a Jinja template of the section's values (also its
data, `run` and `report`), after its own `<style>`, where it has one, and before its scripts, which register how to draw data:
`page.draw("<name>", (root, data) => …)`, with the section's element in the document.
"""

from collections.abc import Callable

from octobert.report.page.runs import Section, ShownRun
from octobert.report.page.sections import (
    frontier,
    inside,
    outcome,
    rows,
)

SECTIONS: dict[str, Callable[[ShownRun], Section | None]] = {
    "verdict": outcome.verdict,
    "frontier": frontier.section,
    "notes": outcome.notes,
    "speed": outcome.speed,
    "quality": outcome.quality,
    "rows": rows.section,
    "choice": outcome.choice,
    "layers": inside.layers,
    "executed": inside.executed,
    "ranges": inside.ranges,
    "training": outcome.training,
    "trials": outcome.trials,
    "how": outcome.how,
}
