"""How trainings went: loss and learning rate of each step."""

from __future__ import annotations

from octobert.report import summary
from octobert.report.page.runs import Run
from octobert.report.page.sections import Section

TITLES = {"finetune": "Fine-tuning", "qat": "Quantization-aware training"}


def section(run: Run) -> Section | None:
    """The curves, where something was trained."""
    curves = [curve for curve in run.evidence.curves if curve.steps]
    if not curves:
        return None
    data = {"curves": [{"title": TITLES.get(each.name, each.name), **each.model_dump()} for each in curves]}
    return Section("Training", {"sentences": summary.trainings(run.report)}, data)
