"""What is 8-bit in each package, and why the rest is not."""

from __future__ import annotations

from octobert.report.page.runs import Run
from octobert.report.page.sections import Section


def section(run: Run) -> Section | None:
    """The decisions of each plan."""
    plans = run.report.plans
    counts = {target: {role: done for role, done in plan.counts().items() if done[0]} for target, plan in plans.items()}
    return Section("Plans", {"counts": counts}) if plans else None
