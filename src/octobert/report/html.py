"""A report as one self-contained HTML page: no scripts, no network, readable when printed."""

from __future__ import annotations

from typing import Any

from jinja2 import Environment, PackageLoader, select_autoescape

from octobert.recipe import as_yaml, parse
from octobert.report import summary
from octobert.report.terminal import quantizer_text


def page(report: dict[str, Any]) -> str:
    """The page as text."""
    environment = Environment(
        loader=PackageLoader("octobert", "report"),
        autoescape=select_autoescape(default=True),
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["quantizer"] = quantizer_text
    environment.filters["score"] = summary.score_text
    lines = summary.lines(report)
    return environment.get_template("page.html").render(
        report=report,
        lines=lines,
        shapes=summary.shapes(report),
        metrics=list(dict.fromkeys(s.metric for line in lines for s in line.scores)),
        verdicts=summary.verdicts(report),
        warnings=summary.warnings(report),
        counts={target: _counts(plan) for target, plan in report["plans"].items()},
        recipe=as_yaml(parse(report["recipe"])),
        labels=report["task"]["labels"],
    )


def _counts(plan: dict[str, Any]) -> list[tuple[str, int, int]]:
    table: dict[str, list[int]] = {}
    for decision in plan["decisions"]:
        entry = table.setdefault(decision["site"]["role"], [0, 0])
        entry[0] += decision["quantizer"] is not None
        entry[1] += 1
    return [(role, done, total) for role, (done, total) in table.items()]
