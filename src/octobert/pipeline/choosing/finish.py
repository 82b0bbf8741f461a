"""A recipe with `choose` or `search`: the search, then the run of the winner's recipe, published as `best` and `best.yaml`."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from octobert import targets
from octobert.config import loading, paths
from octobert.config.choosing import UNITS, Choose, Search, figure_named
from octobert.config.recipe import Recipe
from octobert.core import environment
from octobert.core.errors import RecipeError, TargetError, did_you_mean
from octobert.core.files import atomic_write, storage_errors
from octobert.core.results import Report
from octobert.core.selection import BEST, Found, Selection, Variant
from octobert.core.settings import GOALS
from octobert.pipeline import planner
from octobert.pipeline.choosing import choose, listed, space
from octobert.pipeline.choosing.trials import Trials
from octobert.pipeline.executors import Executor, local
from octobert.pipeline.facts import RunFacts, facts_of
from octobert.pipeline.output import publish_run
from octobert.pipeline.publishing import HIDDEN, check_output
from octobert.pipeline.stages import report as report_stage
from octobert.pipeline.store import Artifact
from octobert.pipeline.work import Listener, Silent, Work, at_work
from octobert.report import choices
from octobert.report.reasons import Words

RECIPE = f"{BEST}.yaml"
# File with the trials of `search`, in the hidden folder of the output directory.
STUDY = "study.log"


def run(recipe: Recipe, out: Path, listener: Listener | None = None, executor: Executor = local.run) -> Report:
    """Carry out a recipe with `choose` or `search`.

    Args:
        out: the output directory: report, the package `best`, its recipe `best.yaml`, and the store.
        executor: where stages run.

    Raises:
        OctobertError: whatever went wrong; the same command resumes once it is mended.
    """
    listener = listener or Silent()
    written, recipe = loading.as_written(recipe), _with_targets(recipe)
    settings = recipe.choose or recipe.search
    assert settings is not None
    if recipe.search is not None:
        listed.check(recipe)
    facts = facts_of(recipe, tune=True)
    _check_figures(facts, settings)
    names = dict.fromkeys(recipe.targets, BEST)
    check_output(planner.steps_for(facts), out, names=names)
    with at_work(recipe, out, listener, executor) as (work, notes):
        selection, trials = _selected(facts, written, out, work, listener)
        winner = selection.best.variant
        facts = _final_facts(trials, winner)
        steps = planner.steps_for(facts)
        listener.planned(steps)
        made: dict[str, Artifact] = {}
        for step in steps:
            # The packages say why they were chosen, which the report tells.
            if step.stage == "package":
                break
            made[step.name] = work.carry_out(step, made)
        report = work.results(made)["report"].read(report_stage.REPORT, Report)
        told = choices.sentence(selection, settings.limits, report)
        selection = selection.model_copy(update={"sentence": told})
        report = report.model_copy(update={"choice": selection})
        for step in planner.package_steps(facts, chosen=selection.sentence):
            made[step.name] = work.carry_out(step, made)
        # The recipe lies in another folder than the one that its paths were given from.
        pages = {RECIPE: loading.as_file(paths.with_absolute_paths(facts.recipe))}
        with storage_errors(out):
            notes += publish_run(facts.recipe, steps, work.results(made), report, out, work.hold, names=names, pages=pages)
    return report


def _with_targets(recipe: Recipe) -> Recipe:
    """The recipe with all targets that a search may take: those that it names, or with `choose` every target on this CPU.

    Raises:
        TargetError: none of them can run here.
    """
    if recipe.search is not None:
        # `listed.check` says what is wrong with them.
        return recipe.model_copy(update={"targets": tuple(recipe.search.space.get("targets", recipe.targets))})
    named = "targets" in recipe.model_fields_set
    wanted = recipe.targets if named else targets.names()
    modules = {name: targets.load(name) for name in wanted}
    missing = {name: problem for name, module in modules.items() if (problem := module.probe().missing)}
    able = tuple(
        name for name, module in modules.items() if name not in missing and (named or module.CAPABILITIES.device == "CPU")
    )
    if named and missing:
        got = "; ".join(f"{name}: {why}" for name, why in missing.items())
        raise TargetError("a model cannot be chosen for a target that cannot run here", where="targets", got=got)
    return recipe.model_copy(update={"targets": able})


def _check_figures(facts: RunFacts, settings: Choose | Search) -> None:
    """Check that there are all figures that goals and limits name.

    Raises:
        RecipeError: there is no such figure.
    """
    key = "choose" if isinstance(settings, Choose) else "search"
    known = ("metric", *facts.scored.build().metrics, *UNITS)
    named = {"goal" if key == "choose" else "goals": settings.goals, "limits": [limit.of for limit in settings.limits]}
    for place, names in named.items():
        for name in names:
            if figure_named(name).name not in known:
                raise RecipeError(f'there is no figure "{name}"', where=f"{key}.{place}", fix=did_you_mean(name, known))


def _selected(facts: RunFacts, written: dict[str, Any], out: Path, work: Work, listener: Listener) -> tuple[Selection, Trials]:
    """Search.

    Args:
        written: the recipe as the user gave it.
    """
    recipe = facts.recipe
    settings = recipe.choose or recipe.search
    assert settings is not None
    reference = space.first(recipe)[0]
    goals = settings.goals
    trials = Trials(facts, work, reference, goals=goals, wanted=settings.limits)

    def tell(best: Found | None, done: int, total: int) -> None:
        if best is not None:
            text = loading.as_file(paths.with_absolute_paths(space.recipe_of(recipe, best.variant)))
            with storage_errors(out), atomic_write(out / HIDDEN / RECIPE) as partial:
                partial.write_text(text, encoding="utf-8")
        listener.searched(best, done, total, trials.seconds, settings.minutes)

    tell(None, 0, 0)
    if isinstance(settings, Choose):
        found, ended = choose.choose(trials, settings, tell)
    else:
        found, ended = listed.search(trials, settings, out / HIDDEN / STUDY, tell)
    winner = found[0]
    words = Words(goals[0], trials.metric, trials.found(reference))
    selection = Selection(
        how="choose" if recipe.choose else "search",
        goal=goals[0],
        limits=tuple(words.limit(limit) for limit in settings.limits),
        metric=trials.metric,
        rows=trials.rows,
        reference=reference.name,
        winner=winner.variant.name,
        met=winner.state == "chosen",
        sentence="",
        found=tuple(found),
        minutes=settings.minutes,
        seconds=trials.seconds,
        ended=ended,
        load=trials.load,
        environment=facts.here,
        simulated={name: os.environ[name] for name in environment.SIMULATING if name in os.environ},
        recipe=written,
        **words.lines(settings.limits),
    )
    return selection, trials


def _final_facts(trials: Trials, winner: Variant) -> RunFacts:
    """The facts of the run of the winner's recipe."""
    facts, settings = trials.recipe_facts(winner), trials.facts.recipe.choose
    absent = {name: why for name, why in facts.absent.items() if name not in trials.facts.recipe.targets}
    recipe, goal = facts.recipe, figure_named(settings.goal).name if settings else ""
    if settings is not None and settings.tune and goal in GOALS:
        recipe = recipe.model_copy(update={"tune": (goal,)})
    return replace(facts, recipe=recipe, absent=absent)
