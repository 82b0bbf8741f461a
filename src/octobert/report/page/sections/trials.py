"""Trials of searches as they converged: of the plan that keeps the accuracy, and of the variants of `octobert auto`."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

from octobert.core.results import Search
from octobert.core.selection import Found, Selection
from octobert.report import choices
from octobert.report.page.runs import Run
from octobert.report.page.sections import Section

PLACE = 130


def section(run: Run) -> Section | None:
    """Trial by trial, and the best so far."""
    searches, choice = run.report.searches, run.report.choice
    charts = [_of_plans(target, search) for target, search in searches.items()]
    if choice is not None:
        charts.append(_of_variants(choice))
    # One trial has not converged to anything: its sentence says all.
    charts = [chart for chart in charts if len(chart["trials"]) > 1]
    return Section("Trials of the search", {"searches": searches}, {"charts": charts}) if searches or charts else None


def _of_plans(target: str, search: Search) -> dict[str, Any]:
    """Trials for a plan: more saved time is better, as long as the criterion is met."""
    spent = accumulate(trial.seconds for trial in search.trials)
    trials = [
        {
            "number": number,
            "seconds": seconds,
            "value": trial.saved_ms,
            "met": trial.met,
            "name": f"{search.metric} {trial.value:.4f} ({-trial.drop:+.4f}) on {trial.rows} rows; float: "
            f"{', '.join(trial.fallback) or 'nothing'}",
        }
        for number, (trial, seconds) in enumerate(zip(search.trials, spent, strict=True), start=1)
    ]
    return {
        "title": f"Plan for {target}: {search.criterion}",
        "file": f"trials-{target}.csv",
        "label": "ms saved by 8 bits",
        "more": True,
        "trials": trials,
    }


def _of_variants(choice: Selection) -> dict[str, Any]:
    """Variants that were timed, as they were tried: less time, or more rows per second, is better where the limits are kept."""
    tried = sorted((each for each in choice.found if each.number), key=lambda each: each.number)
    timed = [(each, speed) for each in tried if (speed := choices.speed_of(choice, each)) is not None]
    spent = accumulate(each.seconds for each, _ in timed)
    trials = [
        {
            "number": number,
            "seconds": seconds,
            "value": speed.value,
            "met": _keeps(each),
            "name": f"{each.variant.name}: {choices.state_of(each)}; {each.reason}",
        }
        for number, ((each, speed), seconds) in enumerate(zip(timed, spent, strict=True), start=1)
    ]
    throughput = choice.goal == "throughput"
    return {
        "title": f"Variants, {'; '.join(choice.limits) or 'without limits'}",
        "file": "variants.csv",
        "label": "rows/s" if throughput else "ms",
        "more": throughput,
        "trials": trials,
    }


def _keeps(found: Found) -> bool:
    return found.state in ("chosen", "admissible")
