"""The search over listed values of recipe keys (`study`), on trials that are made, timed and judged here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from octobert.config.choosing import Search, figure_named
from octobert.core.errors import RecipeError
from octobert.core.selection import Found
from octobert.pipeline.choosing import limits, space, study
from octobert.pipeline.choosing.claims import Values
from octobert.pipeline.choosing.trials import Trials
from octobert.report.reasons import Words


def search(
    trials: Trials, settings: Search, place: Path, tell: Callable[[Found | None, int, int], None]
) -> tuple[list[Found], str]:
    """Search.

    Args:
        trials: of the recipe's variants.
        settings: of the recipe.
        place: file for the trials, unless the settings name a storage.
        tell: called with the best so far, how many variants were tried, and how many there are.

    Returns:
        As `choose.choose`.

    Raises:
        RecipeError: the space is wrong, or none of its combinations can be made.
    """
    facts, metric = trials.facts, trials.metric
    best: list[Found] = []

    def values(found: Found) -> Values:
        figures = [limits.figure_of(found, goal, metric) for goal in settings.goals]
        known = tuple(figure.value for figure in figures if figure is not None)
        misses = sum(excess for _, excess in limits.missed(settings.limits, found, trials.found(trials.reference), metric))
        return Values(known if len(known) == len(figures) else None, misses)

    def best_of(found: Sequence[Found]) -> Found:
        # The best that keeps the limits, or else the nearest.
        return min(found, key=lambda each: (values(each).misses, _rank(each)))

    def _rank(found: Found) -> tuple[float, ...]:
        known = values(found).goals or ()
        more = [figure_named(goal).more_is_better for goal in settings.goals]
        return tuple(-value if each else value for value, each in zip(known, more, strict=False))

    def told(found: Found, done: int, total: int) -> None:
        best[:] = [best_of([*best, found])]
        tell(best[0], done, total)

    searched = study.search(
        facts.recipe,
        trials.find,
        variant_of=lambda changes: space.variant_of(facts.recipe, changes),
        rules=study.Rules(values=values, best=best_of),
        inputs={"model": facts.model.digest[:16], "rows": trials.rows_digest[:16]},
        machine=facts.here,
        place=place,
        seconds=lambda: trials.seconds,
        tell=told,
    )
    made = [found for found in searched.found if values(found).goals is not None]
    if not made:
        raise RecipeError("none of the combinations can be made", where="search.space", got=searched.found[0].reason)
    chosen = best_of(made)
    words = Words(settings.goals[0], metric, trials.found(trials.reference))
    state = {"state": "chosen", "reason": "the best that keeps all limits"} if chosen.state == "admissible" else {}
    rest = [each for each in searched.found if each.variant != chosen.variant]
    rest = [
        each.model_copy(update={"reason": words.behind(each, chosen)}) if each.state == "admissible" else each for each in rest
    ]
    if not any(each.variant == trials.reference for each in (chosen, *rest)):
        trials.find(trials.reference)
        rest.append(trials.found(trials.reference))
    return limits.with_frontier([chosen.model_copy(update=state), *rest], metric), searched.ended
