"""A run as the page shows it."""

from __future__ import annotations

from dataclasses import dataclass, field

from octobert.core.evidence import Evidence
from octobert.core.results import Report


@dataclass(frozen=True)
class Run:
    """What is known of a run.

    Args:
        name: that tells it from the other runs of a page; for people.
        report: `report.json`.
        evidence: `evidence.json`; empty for runs of octobert 0.1.
        folder: output directory as the user wrote it, for commands that the page shows.
    """

    name: str
    report: Report
    evidence: Evidence = field(default_factory=Evidence)
    folder: str = "OUT"
