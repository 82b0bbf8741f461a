"""How the models were made: model, data, calibration, machine, steps, recipe."""

from __future__ import annotations

from octobert.config.loading import as_yaml
from octobert.config.recipe import Recipe
from octobert.report.page.runs import Run
from octobert.report.page.sections import Section

PLACE = 140


def section(run: Run) -> Section | None:
    """Sources of everything on the page."""
    recipe = as_yaml(Recipe.model_validate(run.report.recipe))
    return Section("How this was made", {"recipe": recipe})
