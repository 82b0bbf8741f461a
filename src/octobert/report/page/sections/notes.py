"""Sentences on every model, and on what was left out: details of the first screen."""

from __future__ import annotations

from octobert.report import summary
from octobert.report.page.runs import Run
from octobert.report.page.sections import Section

PLACE = 30


def section(run: Run) -> Section | None:
    """All sentences that do not change what the first screen says."""
    sentences = [*summary.verdicts(run.report), *summary.limitations(run.report)]
    return Section("", {"sentences": sentences}) if sentences else None
