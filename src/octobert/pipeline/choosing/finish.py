"""A recipe with `choose` or `search`: the search, then the run of the winner's recipe, published as `best` and `best.yaml`."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from octobert import targets
from octobert.config import checks, loading
from octobert.config.choosing import UNITS, Choose, Search, objective_named
from octobert.config.recipe import Recipe
from octobert.config.words import Words, words_of
from octobert.core import environment
from octobert.core.errors import RecipeError, TargetError, did_you_mean
from octobert.core.files import atomic_write, storage_errors
from octobert.core.frozen import FrozenModel
from octobert.core.results import Report
from octobert.core.selection import BEST, Found, Selection
from octobert.evaluation import candidates
from octobert.pipeline import planner, quick
from octobert.pipeline.choosing import choose, listed, space
from octobert.pipeline.choosing.trials import Trials
from octobert.pipeline.executors import Executor, local
from octobert.pipeline.facts import RunFacts, facts_of
from octobert.pipeline.output import publish_run
from octobert.pipeline.publishing import HIDDEN, check_output
from octobert.pipeline.stages import report as report_stage
from octobert.pipeline.work import Listener, Silent, Work, at_work
from octobert.report import choices

RECIPE = f"{BEST}.yaml"
# File with the trials of `search`, in the hidden folder of the output directory.
STUDY = "study.log"
# Name of the decision in the store.
DECISION = "choose"


class Decision(FrozenModel):
    """What a search has decided.

    Args:
        selection: without its sentence, which has figures of the final run.
        tunes: whether the final run looks for the fastest options of the runtime.
        lean: whether it measures less, to keep the time limit.
    """

    selection: Selection
    tunes: bool
    lean: bool


def run(
    recipe: Recipe, out: Path, listener: Listener | None = None, executor: Executor = local.run
) -> Report:
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
        decided, trials = _decided(facts, written, out, work, listener)
        selection, winner = decided.selection, decided.selection.best.variant
        facts = _final_facts(trials, decided)
        steps = planner.steps_for(facts)
        listener.planned(steps)
        # The packages say why they were chosen, which the report tells.
        made = work.carry_out_all(
            step for step in steps if step.stage not in ("package", "archive")
        )
        report = work.results(made)["report"].read(report_stage.REPORT, Report)
        # A float32 model is what a drop is compared with.
        limits = [
            each for each in settings.limits if winner.precision != "f32" or each.max_drop is None
        ]
        checked = checks.check(limits, words_of(report), report, winner.target)
        selection = selection.model_copy(update={"checks": checked})
        selection = selection.model_copy(
            update={"sentence": choices.sentence(selection, settings.limits, report)}
        )
        report = report.model_copy(update={"choice": selection})
        made = work.carry_out_all(planner.package_steps(facts, chosen=selection.sentence), made)
        # The recipe lies in another folder than the one that its paths were given from.
        pages = {RECIPE: loading.as_file(loading.with_absolute_paths(facts.recipe))}
        with storage_errors(out):
            notes += publish_run(
                facts.recipe,
                steps,
                work.results(made),
                report,
                out,
                work.hold,
                names=names,
                pages=pages,
            )
    return report


def _with_targets(recipe: Recipe) -> Recipe:
    """The recipe with all targets that a search may take: those that it names, or with `choose` every target on this CPU.

    Raises:
        TargetError: none of them can run here.
    """
    if recipe.search is not None:
        # `listed.check` says what is wrong with them.
        return recipe.model_copy(
            update={"targets": tuple(recipe.search.space.get("targets", recipe.targets))}
        )
    named = "targets" in recipe.model_fields_set
    wanted = recipe.targets if named else targets.names()
    modules = {name: targets.load(name) for name in wanted}
    missing = {
        name: problem for name, module in modules.items() if (problem := module.probe().missing)
    }
    able = tuple(
        name
        for name, module in modules.items()
        if name not in missing and (named or module.CAPABILITIES.device == "CPU")
    )
    if named and missing:
        got = "; ".join(f"{name}: {why}" for name, why in missing.items())
        raise TargetError(
            "a model cannot be chosen for a target that cannot run here", where="targets", got=got
        )
    return recipe.model_copy(update={"targets": able})


def _check_figures(facts: RunFacts, settings: Choose | Search) -> None:
    """Check that there are all figures that goals and limits name.

    Raises:
        RecipeError: there is no such figure.
    """
    key = "choose" if isinstance(settings, Choose) else "search"
    known = ("metric", *facts.scored.build().metrics, *UNITS)
    named = {
        "goal" if key == "choose" else "goals": settings.goals,
        "limits": [limit.of for limit in settings.limits],
    }
    for place, names in named.items():
        for name in names:
            if objective_named(name).name not in known:
                raise RecipeError(
                    f'there is no figure "{name}"',
                    where=f"{key}.{place}",
                    fix=did_you_mean(name, known),
                )


def _decided(
    facts: RunFacts, written: dict[str, Any], out: Path, work: Work, listener: Listener
) -> tuple[Decision, Trials]:
    """Search, or take what the same search has decided before: later figures and a later clock do not change what is published.

    Args:
        written: the recipe as the user gave it.
    """
    recipe = facts.recipe
    settings = recipe.choose or recipe.search
    assert settings is not None
    reference = space.first(recipe)[0]
    goals = settings.goals
    trials = Trials(facts, work, reference, goals=goals, wanted=settings.limits)
    earlier = work.remembered(DECISION, trials.key, Decision)
    if earlier is not None:
        selection = earlier.selection
        tried = sum(result.number > 0 for result in selection.found)
        listener.searched(
            selection.best, tried, len(selection.found), selection.seconds, selection.minutes
        )
        return earlier, trials

    def tell(best: Found | None, done: int, total: int) -> None:
        if best is not None:
            text = loading.as_file(
                loading.with_absolute_paths(space.recipe_of(recipe, best.variant))
            )
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
    lines = words.lines(settings.limits)
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
        accepted_drop=lines.get("accepted_drop"),
        accepted_ms=lines.get("accepted_ms"),
    )
    decided = Decision(selection=selection, tunes=trials.tunes, lean=trials.lean)
    # Trials in a storage are shared, and others may have added to them.
    if isinstance(settings, Choose) and not trials.killed:
        work.remember(DECISION, trials.key, decided)
    return decided, trials


def _final_facts(trials: Trials, decided: Decision) -> RunFacts:
    """The facts of the run of the winner's recipe."""
    facts, settings = (
        trials.recipe_facts(decided.selection.best.variant),
        trials.facts.recipe.choose,
    )
    absent = {
        name: why for name, why in facts.absent.items() if name not in trials.facts.recipe.targets
    }
    recipe = facts.recipe
    if settings is not None and decided.tunes:
        recipe = recipe.model_copy(update={"tune": (objective_named(settings.goal).name,)})
    if decided.lean and recipe.baselines is None:
        measured = {*recipe.targets, *candidates.float_forms(recipe.targets[0])}
        absent |= {
            name: "left out to keep the time limit"
            for name in facts.candidates
            if name not in measured
        }
        facts = replace(facts, candidates=tuple(filter(measured.__contains__, facts.candidates)))
    benchmark = quick.benchmark(facts.benchmark) if decided.lean else facts.benchmark
    return replace(facts, recipe=recipe, absent=absent, benchmark=benchmark)
