"""Sentences on what was found, and warnings on what limits it."""

from __future__ import annotations

from octobert.report import summary
from octobert.report.page.runs import Run
from octobert.report.page.sections import Section


def section(run: Run) -> Section | None:
    """Verdicts and warnings."""
    verdicts, warnings = summary.verdicts(run.report), summary.warnings(run.report)
    return Section("", {"verdicts": verdicts, "warnings": warnings}) if verdicts or warnings else None
