"""The trials of the accuracy-aware search."""

from __future__ import annotations

from octobert.report.page.runs import Run
from octobert.report.page.sections import Section


def section(run: Run) -> Section | None:
    """The trials of each target, where there was a search."""
    return Section("Search for layers that stay in float") if run.report.searches else None
