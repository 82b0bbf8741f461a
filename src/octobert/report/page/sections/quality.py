"""Scores of all models, and how closely they follow the float model."""

from __future__ import annotations

from octobert.report import summary
from octobert.report.page.runs import Run
from octobert.report.page.sections import Section

PLACE = 50


def section(run: Run) -> Section | None:
    """The tables of scores, where models were measured."""
    report, models = run.report, summary.model_results(run.report)
    if not models:
        return None
    values = {"models": models, "metrics": summary.metrics(report), "main_metrics": summary.main_metrics(report)}
    values["source_bytes"] = report.model.source_bytes
    return Section(f"Quality on {report.data.evaluation_rows} evaluation rows", values)
