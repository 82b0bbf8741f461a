"""How trainings went: loss and learning rate of each step."""

from __future__ import annotations

from octobert.report import summary
from octobert.report.page.runs import Run
from octobert.report.page.sections import Section

PLACE = 120

TITLES = {"finetune": "Fine-tuning", "prune.recover": "Training after pruning", "qat": "Quantization-aware training"}


def section(run: Run) -> Section | None:
    """The sentences, and the curves where the steps are known."""
    sentences, curves = summary.trainings(run.report), [curve for curve in run.evidence.curves if curve.steps]
    drawn = [{"title": TITLES.get(each.name, each.name), **each.model_dump()} for each in curves]
    values = {"sentences": sentences, "curves": curves}
    return Section("Training", values, {"curves": drawn} if drawn else None) if sentences or curves else None
