"""Values of keys that a recipe leaves out, where they depend on its method and its targets."""

from __future__ import annotations

from octobert.config.recipe import Choice, PlainRecipe, Recipe
from octobert.core import plugins


def defaults_of(raw: PlainRecipe) -> PlainRecipe:
    """Return keys with the values that they have where a recipe does not set them.

    Nothing is transformed or corrected where weights are trained or nothing is quantized, and nothing is transformed where no
    target has an interval of 8 bits for many tokens: outlier channels disturb only their own token; nor where a target cannot
    run what smoothing writes. Where a target is no CPU,
    there are no token scales: they part what is one kernel there, and their cost is not measured. Smoothing does not reach
    what residual adds read: the calibrator `mse` clips the outliers of few tokens there.

    Args:
        raw: of a recipe without mistakes in `quantize` and `targets`, plugins in their full spelling.
    """
    fields = Recipe.model_fields
    choice = Choice.model_validate(raw.get("quantize", fields["quantize"].default))
    method = plugins.values_of("methods").make(choice)
    targets = plugins.values_of("targets")
    tables = [
        targets.load(name).capabilities for name in raw.get("targets", fields["targets"].default)
    ]
    found: PlainRecipe = {}
    if any(kind.startswith("residual.") for kind in method.observed_kinds(tables)):
        found["calibrate"] = Choice(name="mse")
    if choice.name == "float" or raw.get("qat") is not None:
        return {**found, "transforms": (), "corrections": ()}
    takes_all = all(table.rewrites.smoothed for table in tables)
    if not takes_all or not any(method.smoothed(table) for table in tables):
        return {**found, "transforms": ()}
    if any(table.device != "CPU" for table in tables):
        everywhere = fields["transforms"].default
        found["transforms"] = [each for each in everywhere if each.name != "token-scales"]
    return found
