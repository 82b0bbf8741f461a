"""Speed against quality: every candidate, the frontier, and who wins within the limits of the reader."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from octobert.core.estimate import Estimate
from octobert.report.frontier import Frontier, frontier
from octobert.report.page.runs import Run, Section
from octobert.report.verdict import verdict


def section(run: Run) -> Section | None:
    """The chart, where two candidates can be compared."""
    chart = frontier(run.report, verdict(run.report), run.folder)
    if chart is None:
        return None
    cost = chart.x[0].title.removesuffix(f" in {chart.x[0].unit}")
    return Section(
        f"{chart.y.name[:1].upper()}{chart.y.name[1:]} against {cost}",
        {"chart": chart, "winner": chart.winner()},
        _data(chart),
    )


def _data(chart: Frontier) -> dict[str, Any]:
    """The chart as the script draws it."""
    points = [
        {
            "name": point.name,
            "state": point.state,
            "x": [_ends(each) for each in point.x],
            "y": _ends(point.y),
            "front": point.front,
            "details": point.details,
            "command": point.command,
            "float": point.floating,
            "named": point.named,
        }
        for point in chart.points
    ]
    return {
        "x": [asdict(axis) for axis in chart.x],
        "y": asdict(chart.y),
        "points": points,
        "order": chart.order,
    }


def _ends(figure: Estimate | None) -> tuple[float, float, float] | None:
    return None if figure is None else (figure.value, figure.low, figure.high)
