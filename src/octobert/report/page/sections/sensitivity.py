"""The error that each quantized value makes alone."""

from __future__ import annotations

from octobert.report.page.runs import Run
from octobert.report.page.sections import Section


def section(run: Run) -> Section | None:
    """The most sensitive values, where they were measured."""
    return Section("Sensitivity") if run.report.sensitivities else None
