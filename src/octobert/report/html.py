"""A report as one self-contained HTML page: no scripts, no network, readable when printed."""

from __future__ import annotations

from jinja2 import Environment, PackageLoader, select_autoescape

from octobert.config.loading import as_yaml
from octobert.config.recipe import Recipe
from octobert.core.results import Report
from octobert.report import summary
from octobert.report.terminal import quantizer_text


def page(report: Report) -> str:
    """The page as text."""
    environment = Environment(
        loader=PackageLoader("octobert", "report"),
        autoescape=select_autoescape(default=True),
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["quantizer"] = quantizer_text
    environment.filters["score"] = summary.score_text
    environment.filters["ms"] = summary.ms
    environment.filters["searched"] = summary.searched
    lines = summary.lines(report)
    return environment.get_template("page.html").render(
        report=report,
        lines=lines,
        shapes=summary.shapes(report.latencies),
        metrics=summary.metrics(report),
        beside=summary.beside(report),
        verdicts=summary.verdicts(report),
        warnings=summary.warnings(report),
        trainings=summary.trainings(report),
        counts={t: {r: c for r, c in plan.counts().items() if c[0]} for t, plan in report.plans.items()},
        recipe=as_yaml(Recipe.model_validate(report.recipe)),
    )
