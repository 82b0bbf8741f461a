"""Targets whose device is not here: what their plans answer on the CPU."""

from __future__ import annotations

from dataclasses import dataclass

from octobert.core import wording
from octobert.core.measurements import Comparison, Score
from octobert.core.results import Report

# How the figures were made.
HOW = "simulated on the CPU, not run on the device"


@dataclass(frozen=True)
class SimulatedResult:
    """What the file of a target answers on the CPU, because its device is not here.

    Args:
        name: with that it was simulated.
        precision: of the arithmetic; 8 bits come first.
        scores: metrics with confidence intervals.
        comparison: with the float baseline.
        quantized, footprint: as of a model that was measured.
    """

    name: str
    precision: str
    scores: tuple[Score, ...]
    comparison: Comparison
    quantized: bool = True
    footprint: None = None


def results(report: Report) -> list[SimulatedResult]:
    """Return the results of the targets that were simulated."""
    return [
        SimulatedResult(
            f"{compared.candidate} (simulated)",
            report.plans[compared.candidate].precision("f32"),
            report.scores[compared.candidate],
            compared,
        )
        for compared in report.comparisons
        if compared.simulated and compared.candidate in report.plans
    ]


def names(report: Report) -> list[str]:
    """Return the targets that were simulated."""
    return [result.comparison.candidate for result in results(report)]


def sentences(report: Report) -> list[str]:
    """Return a sentence on each, compared with its float baseline."""
    return [
        f"{result.comparison.candidate}, {HOW}: {wording.quality_text(result.comparison)}."
        for result in results(report)
    ]
