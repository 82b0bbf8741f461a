"""What the page of a report shows beyond the figures, from the results of a run's steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from octobert.core.evidence import ChangedRows, Evidence
from octobert.core.results import Report
from octobert.data.tokenization import EncodedTexts
from octobert.evaluation.changes import changed_rows
from octobert.pipeline.contract import StepResult
from octobert.pipeline.stages import _inside
from octobert.tasks import Outputs, Task


@dataclass(frozen=True)
class Evaluated:
    """The evaluation rows, and what all candidates answered.

    Args:
        encoded: the texts, and what models read of them.
        gold: expected value of each item; empty without labels.
        outputs: candidate → outputs by name.
    """

    encoded: EncodedTexts
    gold: list[Any]
    outputs: Mapping[str, Outputs]


def gather(report: Report, steps: Mapping[str, StepResult], task: Task, evaluated: Evaluated | None) -> Evidence:
    """Gather the evidence of a run.

    Args:
        report: of the run.
        steps: results of all steps.
        task: of the run.
        evaluated: None where nothing was evaluated.
    """
    lengths = [sum(len(row) for row in rows) for rows in evaluated.encoded.rows] if evaluated is not None else []
    observed = _inside.statistics(steps)
    return Evidence(
        changed=_changed(report, task, evaluated) if evaluated is not None else (),
        lengths=tuple(lengths),
        activations=_inside.activations(observed, report.plans),
        observed=len(observed),
        smoothed=_inside.smoothed(steps),
        curves=_inside.curves(steps),
        executions=_inside.executions(steps),
    )


def _changed(report: Report, task: Task, evaluated: Evaluated) -> tuple[ChangedRows, ...]:
    """The rows with another answer, of each quantized model."""
    quantized = [comparison for comparison in report.comparisons if comparison.candidate in report.plans]
    return changed_rows(task, quantized, evaluated.outputs, evaluated.encoded, evaluated.gold)
