"""Times of all models."""

from __future__ import annotations

from octobert.config.recipe import Recipe
from octobert.report import summary, times
from octobert.report.page.runs import Run
from octobert.report.page.sections import Section


def section(run: Run) -> Section | None:
    """The table of times, where models were timed."""
    report, models = run.report, summary.model_results(run.report)
    if not models:
        return None
    values = {
        "timings": [*(model.timing for model in models), *summary.throughputs(report)],
        "shown": times.SHOWN,
        "how": times.how(Recipe.model_validate(report.recipe).benchmark, report.throughputs),
        "shapes": times.shapes(report.latencies),
    }
    return Section("Speed", values)
