"""A recipe with `choose` or `search` becomes the recipe of the model that wins, which is run like any other."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from octobert import targets
from octobert.config import loading
from octobert.config.choosing import Choose, Search
from octobert.config.recipe import PlainRecipe, Recipe
from octobert.core import environment
from octobert.core.errors import RecipeError, TargetError, did_you_mean
from octobert.core.files import atomic_write, storage_errors
from octobert.core.frozen import FrozenModel
from octobert.core.limits import UNITS, objective_named
from octobert.core.selection import BEST, Selection, VariantResult
from octobert.engine.publishing import HIDDEN
from octobert.engine.work import Work
from octobert.evaluation import candidates
from octobert.pipeline.choosing import choose, listed, space
from octobert.pipeline.choosing.trials import VariantTrials
from octobert.pipeline.resolve import quick_benchmark, resolve
from octobert.pipeline.run import Run

RECIPE = f"{BEST}.yaml"
# Name of the decision in the store.
DECISION = "choose"


class SearchDecision(FrozenModel):
    """What a search has decided.

    Args:
        selection: without sentences, which have figures of the final run.
        tunes: whether the final run looks for the fastest options of the runtime.
        lean: whether it measures less, to keep the time limit.
    """

    selection: Selection
    tunes: bool
    lean: bool


def searched_run(recipe: Recipe) -> Run:
    """The run of a recipe with `choose` or `search`, checked.

    Raises:
        OctobertError: as `resolve`, or the search cannot be carried out.
    """
    recipe = _with_targets(recipe)
    if recipe.search is not None:
        listed.check(recipe)
    run = resolve(recipe, tune=True)
    _check_figures(run, _settings(run))
    return run


# Called with the best variant until now, how many were tried and are known, seconds, and the time limit in minutes.
Tell = Callable[[VariantResult | None, int, int, float, float | None], None]


def search(run: Run, written: PlainRecipe, out: Path, work: Work, tell: Tell) -> Run:
    """Search, or take what the same search has decided before, and return the run of the winner.

    Args:
        run: see `searched_run`.
        written: the recipe as the user gave it.
        out: the output directory, whose hidden folder has the recipe of the best so far.
        tell: called as the search goes on.
    """
    decision, trials = _decided(run, written, out, work, tell)
    return _final_run(trials, decision)


def _settings(run: Run) -> Choose | Search:
    settings = run.recipe.searches
    assert settings is not None
    return settings


def _with_targets(recipe: Recipe) -> Recipe:
    """The recipe with all targets that a search may take: those that it names, or with `choose` every target on this CPU.

    Raises:
        TargetError: none of them can run here.
    """
    if recipe.search is not None:
        # `listed.check` says what is wrong with them.
        return recipe.replaced(targets=tuple(recipe.search.space.get("targets", recipe.targets)))
    named = "targets" in recipe.model_fields_set
    modules = (
        {name: targets.load(name) for name in recipe.targets} if named else dict(targets.each())
    )
    missing = {
        name: problem for name, module in modules.items() if (problem := module.probe().missing)
    }
    able = tuple(
        name
        for name, module in modules.items()
        if name not in missing and (named or module.capabilities.device == "CPU")
    )
    if named and missing:
        raise TargetError(
            "a model cannot be chosen for a target that cannot run here",
            where="targets",
            got="; ".join(f"{name}: {why}" for name, why in missing.items()),
        )
    return recipe.replaced(targets=able)


def _check_figures(run: Run, settings: Choose | Search) -> None:
    """Check that there are all figures that goals and limits name.

    Raises:
        RecipeError: there is no such figure.
    """
    key = "choose" if isinstance(settings, Choose) else "search"
    figures = ("metric", *run.scored.build().metrics, *UNITS)
    named = {
        "goal" if key == "choose" else "goals": settings.goals,
        "limits": [limit.of for limit in settings.limits],
    }
    for place, names in named.items():
        for name in names:
            if objective_named(name).name not in figures:
                raise RecipeError(
                    f'there is no figure "{name}"',
                    where=f"{key}.{place}",
                    fix=did_you_mean(name, figures),
                )


def _decided(
    run: Run, written: PlainRecipe, out: Path, work: Work, tell: Tell
) -> tuple[SearchDecision, VariantTrials]:
    """Search, or take what the same search has decided before: later figures and a later clock do not change what is published.

    Args:
        written: the recipe as the user gave it.
    """
    recipe, settings = run.recipe, _settings(run)
    reference = space.first(recipe)[0]
    goals = settings.goals
    trials = VariantTrials(run, work, reference, goals=goals, limits=settings.limits)
    earlier = work.remembered(DECISION, trials.key, SearchDecision)
    if earlier is not None:
        selection = earlier.selection
        tried = sum(result.number > 0 for result in selection.found)
        tell(selection.best, tried, len(selection.found), selection.seconds, selection.minutes)
        return earlier, trials

    def found(best: VariantResult | None, done: int, total: int) -> None:
        if best is not None:
            text = loading.as_file(
                loading.with_absolute_paths(space.recipe_of(recipe, best.variant))
            )
            with storage_errors(out), atomic_write(out / HIDDEN / RECIPE) as partial:
                partial.write_text(text, encoding="utf-8")
        tell(best, done, total, trials.seconds, settings.minutes)

    found(None, 0, 0)
    if isinstance(settings, Choose):
        results, ended = choose.choose(trials, settings, found)
    else:
        results, ended = listed.search(trials, settings, found)
    winner = results[0]
    selection = Selection(
        how="choose" if recipe.choose else "search",
        goal=goals[0],
        limits=settings.limits,
        metric=trials.metric,
        rows=trials.rows,
        reference=reference.name,
        winner=winner.variant.name,
        met=winner.state == "chosen",
        found=tuple(results),
        minutes=settings.minutes,
        seconds=trials.seconds,
        ended=ended,
        load=trials.load,
        environment=run.here,
        simulated={name: os.environ[name] for name in environment.SIMULATING if name in os.environ},
        recipe=written,
    )
    decided = SearchDecision(selection=selection, tunes=trials.tunes, lean=trials.lean)
    if not trials.killed:
        work.remember(DECISION, trials.key, decided)
    return decided, trials


def _final_run(trials: VariantTrials, decided: SearchDecision) -> Run:
    """The run of the winner's recipe."""
    run = trials.run_of(decided.selection.best.variant)
    settings = trials.run.recipe.choose
    recipe, absent = run.recipe, dict(run.absent)
    if settings is not None and decided.tunes:
        recipe = recipe.replaced(tune=(objective_named(settings.goal).name,))
    if decided.lean and recipe.baselines is None:
        measured = {*recipe.targets, *candidates.float_forms(recipe.targets[0])}
        absent |= {
            name: "left out to keep the time limit"
            for name in run.candidates
            if name not in measured
        }
        run = replace(run, candidates=tuple(filter(measured.__contains__, run.candidates)))
    benchmark = quick_benchmark(run.benchmark) if decided.lean else run.benchmark
    return replace(run, recipe=recipe, absent=absent, benchmark=benchmark, choice=decided.selection)
