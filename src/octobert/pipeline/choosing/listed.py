"""The search over listed values on a recipe's trials: each combination is timed in turn with the float model and judged on the
tuning rows; the best few are timed again, in one race.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path

from octobert.config.choosing import Search, objective_named
from octobert.config.recipe import Recipe
from octobert.config.words import Words
from octobert.core.errors import OctobertError
from octobert.core.estimate import Estimate
from octobert.core.files import canonical_digest
from octobert.core.selection import Found, Variant
from octobert.core.user_code import UserCode
from octobert.pipeline.choosing import limits, space, storage
from octobert.pipeline.choosing.choose import FINALISTS, LAST_ROUNDS
from octobert.pipeline.choosing.claims import Values
from octobert.pipeline.choosing.combinations import space_of
from octobert.pipeline.choosing.study import Rules
from octobert.pipeline.choosing.study import search as search_study
from octobert.pipeline.choosing.trials import Trials
from octobert.pipeline.facts import RunFacts

# Numbers of the first and the last race, whatever came between: an interrupted search goes on with fewer races behind it.
_FIRST, _LAST = 1_000_000, 1_000_001
_ROUNDS = 12


def check(recipe: Recipe) -> None:
    """Check a recipe with `search` before anything runs: its space, Optuna, and the storage that it names. Nothing is made.

    Raises:
        RecipeError: the space or the storage is wrong.
        TargetError: Optuna or a driver is not installed.
        StorageError: the storage cannot be opened.
    """
    settings = recipe.search
    assert settings is not None
    space_of(recipe, settings, lambda changes: space.variant_of(recipe, changes))
    storage.optuna()
    if settings.storage is not None:
        storage.check(settings.storage)


def search(
    trials: Trials, settings: Search, place: Path, tell: Callable[[Found | None, int, int], None]
) -> tuple[list[Found], str]:
    """Search.

    Args:
        trials: of the recipe's variants.
        settings: of the recipe.
        place: file for the trials, unless the recipe has a storage.
        tell: called with the best so far, how many variants were tried, and how many there are at most.

    Returns:
        (What was found out of each variant, why the search ended). The first variant is the one to use; its state is `chosen`
        if it keeps all limits.

    Raises:
        OctobertError: no combination can be made, or the settings are wrong.
    """
    recipe = trials.facts.recipe
    judge = _Judge(trials, settings)
    # An interrupted search may find all trials, and time none.
    trials.race([trials.reference], _ROUNDS, _FIRST)
    so_far: list[Found] = []

    def told(found: Found, done: int, most: int) -> None:
        so_far.append(found)
        kept = [each for each in so_far if judge.keeps(each)]
        tell(judge.best(kept) if kept else None, done, most)

    result = search_study(
        recipe,
        lambda variant: trials.find(variant) if trials.make([variant]) else trials.found(variant),
        variant_of=lambda changes: space.variant_of(recipe, changes),
        rules=Rules(judge.values, judge.best),
        inputs=_inputs(trials.facts, trials.rows_digest),
        machine=trials.facts.here,
        place=place,
        seconds=lambda: trials.seconds,
        tell=told,
        prepare=trials.judge,
        at_once=trials.at_once,
    )
    made = [found for found in result.found if judge.values(found).goals is not None]
    if not made:
        got = result.found[0].reason if result.found else None
        raise OctobertError("none of the combinations can be made", where="search.space", got=got)
    last = _last_race(trials, judge, [found for found in made if judge.keeps(found)])
    # Other processes, and earlier runs, have tried some of them.
    found = [last.get(one.variant.name, one).model_copy(update={"number": n}) for n, one in enumerate(result.found, start=1)]
    return _results(trials, judge, found), result.ended


def _inputs(facts: RunFacts, rows: str) -> dict[str, str]:
    """What trials depend on besides the recipe."""
    named = (*facts.measures.metrics, facts.measures.postprocess)
    code = [each.digest if isinstance(each, UserCode) else str(each) for each in named]
    return {"model": facts.model.digest[:16], "rows": rows[:16], "code": canonical_digest(code)[:16]}


class _Judge:
    """How variants are compared. Times of different races are compared by their ratios to the float model."""

    def __init__(self, trials: Trials, settings: Search) -> None:
        self._trials, self.settings = trials, settings
        self._found: dict[str, Found] = {}

    def values(self, found: Found) -> Values:
        """What a storage keeps of a result, and the sampler learns from."""
        self._found[found.variant.name] = found
        goals = [self._goal(found, name) for name in self.settings.goals]
        if any(goal is None for goal in goals):
            return Values(None, 0.0)
        missed = limits.missed(self.settings.limits, found, self._beside(found), self._trials.metric)
        return Values(tuple(goal for goal in goals if goal is not None), sum(excess for _, excess in missed))

    @property
    def reference(self) -> Found:
        """What is known of the float model."""
        return self._trials.found(self._trials.reference)

    def _beside(self, found: Found) -> Found:
        """The float model as it was timed in turn with a variant, whenever that was."""
        if found.ratio is None:
            return self.reference
        figures, ratio = dict(self.reference.figures), found.ratio.value
        for name, own in found.figures.items():
            factor = {"latency": 1 / ratio, "throughput": ratio}.get(objective_named(name).name)
            if factor is not None:
                figures[name] = own.times(factor)
        return self.reference.model_copy(update={"figures": figures})

    def keeps(self, found: Found) -> bool:
        """Whether a model could be made, and keeps all limits."""
        values = self.values(found)
        return values.goals is not None and values.misses == 0

    def best(self, found: Sequence[Found]) -> Found:
        """The best of some that could be made: of those that keep the limits, otherwise the nearest."""
        kept = [each for each in found if self.keeps(each)]
        if not kept:
            return limits.nearest(found, self.settings.limits, self.reference, self._trials.metric)
        return limits.order(kept, self.settings.goals, self._trials.metric, self.ratio)[0]

    def ratio(self, variant: Variant, other: Variant) -> Estimate:
        """The time of one variant divided by that of another."""
        own, theirs = (self._found[each.name].ratio for each in (variant, other))
        if own is None or theirs is None or variant == other:
            return Estimate.exactly(1.0)
        return own.over(theirs)

    def _goal(self, found: Found, name: str) -> float | None:
        wanted = objective_named(name)
        if wanted.name == "latency" and wanted.percentile is None:
            return None if found.ratio is None else found.ratio.value
        figure = limits.figure_of(found, name, self._trials.metric)
        return None if figure is None or not math.isfinite(figure.value) else figure.value


def _last_race(trials: Trials, judge: _Judge, kept: Sequence[Found]) -> dict[str, Found]:
    """Time the best variants once more, in one race; return what is known of them then."""
    minutes, rest, finalists = judge.settings.minutes, list(kept), list[Variant]()
    while rest and len(finalists) < FINALISTS:
        finalists.append(judge.best(rest).variant)
        rest = [each for each in rest if each.variant != finalists[-1]]
    over = minutes is not None and trials.seconds > 60 * minutes
    timed = {objective_named(goal).name for goal in judge.settings.goals} & {"latency", "throughput", "speedup"}
    if len(finalists) < 2 or over or not timed:
        return {}
    # Those that another process has found, or an earlier run, are made here.
    trials.judge(finalists)
    trials.race(finalists, LAST_ROUNDS, _LAST)
    return {variant.name: trials.found(variant) for variant in finalists}


def _results(trials: Trials, judge: _Judge, found: Sequence[Found]) -> list[Found]:
    """What was found out of all variants, the chosen one first."""
    by_name = {each.variant.name: each for each in (judge.reference, *found)}
    made = [each for each in by_name.values() if judge.values(each).goals is not None]
    tried = [each for each in made if each.variant.name in {one.variant.name for one in found}]
    chosen = judge.best(tried)
    if judge.keeps(chosen):
        chosen = chosen.model_copy(update={"state": "chosen", "reason": "the best that keeps all limits"})
    words = Words(judge.settings.goals[0], trials.metric, judge.reference)
    rest = [each for name, each in by_name.items() if name != chosen.variant.name]
    rest = [
        each.model_copy(update={"reason": words.behind(each, chosen)}) if each.state == "admissible" else each for each in rest
    ]
    rest.sort(key=lambda each: each.ratio.value if each.ratio else math.inf)
    return limits.with_frontier([chosen, *rest], trials.metric)
