"""A report as one HTML page: no scripts, no network access, readable when printed."""

from __future__ import annotations

from jinja2 import Environment, PackageLoader, select_autoescape

from octobert.config.loading import as_yaml
from octobert.config.recipe import Recipe
from octobert.core.results import Report
from octobert.report import choices, frontier, summary, times
from octobert.report.plans import quantizer_text
from octobert.report.reasons import Words


def page(report: Report) -> str:
    """Return the page of a report."""
    environment = Environment(
        loader=PackageLoader("octobert", "report"),
        autoescape=select_autoescape(default=True),
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["quantizer"] = quantizer_text
    environment.filters["score"] = summary.score_text
    environment.filters["ms"] = times.ms
    environment.filters["speedup"] = times.speedup_text
    environment.filters["strongest"] = times.strongest
    environment.filters["search"] = summary.search_text
    environment.filters["state"] = choices.state_of
    choice = report.choice
    chosen = (
        {
            "choice": choice,
            "words": Words.of(choice),
            "variants": choices.in_order(choice),
            "speed_of": choices.speed_of,
            "drop_title": choices.drop_title(choice),
            "search_facts": choices.facts(choice),
            "frontier": frontier.svg(choice),
        }
        if choice is not None
        else {}
    )
    recipe, models = Recipe.model_validate(report.recipe), summary.model_results(report)
    return environment.get_template("page.html").render(
        **chosen,
        report=report,
        models=models,
        timings=[*(model.timing for model in models), *summary.throughputs(report)],
        shown=times.SHOWN,
        how=times.how(recipe.benchmark, report.throughputs),
        shapes=times.shapes(report.latencies),
        metrics=summary.metrics(report),
        main_metrics=summary.main_metrics(report),
        verdicts=summary.verdicts(report),
        warnings=summary.warnings(report),
        trainings=summary.trainings(report),
        counts={t: {r: c for r, c in plan.counts().items() if c[0]} for t, plan in report.plans.items()},
        recipe=as_yaml(recipe),
    )
