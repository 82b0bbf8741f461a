"""The search over listed values of recipe keys (`search`): each combination is timed in turn with the float model and judged on
the tuning rows; the best few are timed again, in one race.

With the order `joint` there is one round with all keys; with `one-pass-at-a-time` one round for each key, with the best values
of the keys before it. Each proposal follows from the seed and from the trials so far, and what a trial has found is in the
store: a search that was interrupted asks for the same trials again, and goes on as if it had not been.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from octobert.config.choosing import Search
from octobert.config.recipe import Recipe
from octobert.core.errors import OctobertError
from octobert.core.limits import objective_named
from octobert.core.selection import VariantResult
from octobert.evaluation.tuning import optuna_for
from octobert.pipeline.choosing import limits
from octobert.pipeline.choosing.choose import FINALISTS, LAST_ROUNDS
from octobert.pipeline.choosing.combinations import (
    Combination,
    Combinations,
    seed_of,
    space_of,
)
from octobert.pipeline.choosing.trials import VariantTrials

# Proposals of the sampler before others are drawn at random.
_ASKED = 10
# Trials of samplers that do not try all combinations, unless the recipe says how many.
TRIALS = 20
# Numbers of races, whatever came between: an interrupted search finds them again. Those of trials have one number, and so the
# same rows.
_FIRST, _EACH, _LAST = 0, 1, 2
_ROUNDS = 12
# By how much a variant that cannot be made misses limits.
_FAR = 1e9


def check(recipe: Recipe) -> None:
    """Check a recipe with `search` before anything runs: its space, and that there is Optuna.

    Raises:
        RecipeError: the space is wrong.
        TargetError: Optuna is not installed.
    """
    settings = recipe.search
    assert settings is not None
    space_of(recipe, settings)
    if settings.sampler == "tpe":
        optuna_for("a search")


def search(
    trials: VariantTrials, settings: Search, tell: Callable[[VariantResult | None, int, int], None]
) -> tuple[list[VariantResult], str]:
    """Search.

    Args:
        trials: of the recipe's variants.
        settings: of the recipe.
        tell: called with the best so far, how many variants were tried, and how many there are at most.

    Returns:
        (What was found out of each variant, why the search ended). The first variant is the one to use; its state is `chosen`
        if it keeps all limits.

    Raises:
        OctobertError: no combination can be made, or the settings are wrong.
    """
    # An interrupted search may find all trials, and time none.
    trials.race([trials.reference], _ROUNDS, _FIRST)
    searching = _Search(trials, settings, tell)
    ended = searching.all()
    results = {trial.found.variant.name: trial.found for trial in searching.tried}
    complete = [result for result in results.values() if searching.goals(result) is not None]
    if not complete:
        raise OctobertError(
            "none of the combinations can be made",
            where="search.space",
            got=next(iter(results.values())).reason if results else None,
        )
    results |= searching.last_race(complete)
    numbered = [result.replaced(number=n) for n, result in enumerate(results.values(), start=1)]
    chosen = searching.best([r for r in numbered if searching.goals(r) is not None])
    keeps = searching.keeps(chosen)
    return searching.ranking.listed(chosen, [searching.reference, *numbered], keeps=keeps), ended


@dataclass(frozen=True)
class _Trial:
    """A combination that was tried, the digest of its variant, and what was found."""

    combination: Combination
    key: str
    found: VariantResult


class _Search:
    """The trials so far, and which one comes next. Times of different races are compared by their ratios to the float model."""

    def __init__(
        self,
        trials: VariantTrials,
        settings: Search,
        tell: Callable[[VariantResult | None, int, int], None],
    ) -> None:
        self._trials, self._settings, self._tell = trials, settings, tell
        self._recipe = trials.run.recipe
        self.tried: list[_Trial] = []
        self.ranking = limits.Ranking(settings.goals, trials.metric, trials.ratio)
        self._prepared: set[str] = set()

    @property
    def reference(self) -> VariantResult:
        """What is known of the float model."""
        return self._trials.found(self._trials.reference)

    def all(self) -> str:
        """Carry out all rounds; return why the search ended."""
        values = space_of(self._recipe, self._settings)
        if self._settings.order == "joint":
            combinations = Combinations(self._recipe, values, {})
            most = self._most(combinations.size)
            return self._round(combinations, most) or "all combinations were tried"
        best: Combination = {}
        most = self._most(sum(map(len, values.values())))
        for key, of_key in values.items():
            combinations = Combinations(self._recipe, {key: of_key}, best)
            ended = self._round(combinations, most)
            if ended is not None:
                return ended
            best = self._best_of(combinations, best)
        return "all values of all keys were tried"

    def keeps(self, result: VariantResult) -> bool:
        """Whether a model could be made, and keeps all limits."""
        return self.goals(result) is not None and result.state == "admissible"

    def best(self, results: Sequence[VariantResult]) -> VariantResult:
        """The best of some that could be made: of those that keep the limits, otherwise the nearest."""
        keeping = list(filter(self.keeps, results))
        return self.ranking.ranked(keeping)[0] if keeping else limits.nearest(results)

    def goals(self, result: VariantResult) -> tuple[float, ...] | None:
        """Figures in the order of the goals; None where one is missing, or the model cannot be made."""
        if result.reason:
            return None
        figures = [self._goal(result, name) for name in self._settings.goals]
        known = tuple(figure for figure in figures if figure is not None)
        return known if len(known) == len(figures) else None

    def last_race(self, results: Iterable[VariantResult]) -> dict[str, VariantResult]:
        """Time the best variants once more, in one race; return what is known of them then."""
        trials, minutes = self._trials, self._settings.minutes
        ranked = self.ranking.ranked(filter(self.keeps, results))
        finalists = [result.variant for result in ranked[:FINALISTS]]
        over = minutes is not None and trials.seconds > 60 * minutes
        goals = {objective_named(goal).name for goal in self._settings.goals}
        if len(finalists) < 2 or over or not goals & {"latency", "throughput", "speedup"}:
            return {}
        trials.race(finalists, LAST_ROUNDS, _LAST)
        return {variant.name: trials.found(variant) for variant in finalists}

    def _most(self, size: int) -> int:
        default = size if self._settings.sampler == "exhaustive" else min(TRIALS, size)
        return default if self._settings.trials is None else self._settings.trials

    def _round(self, combinations: Combinations, most: int) -> str | None:
        """Try combinations until all are tried; return why the search ended before that."""
        minutes = self._settings.minutes
        while True:
            # A search without a result goes on to its first one.
            if minutes is not None and self._trials.seconds > 60 * minutes and self.tried:
                return f"after {minutes:g} minutes"
            index = next(self._order(combinations), None)
            if index is None:
                return None
            if len(self.tried) >= most:
                return f"after {most} trial{'' if most == 1 else 's'}"
            if self._trials.at_once > 1:
                self._prepare(combinations)
            self._try(combinations, index, most)

    def _try(self, combinations: Combinations, index: int, most: int) -> None:
        combination, variant, key = combinations.at(index)
        if self._trials.make([variant]):
            found = self._trials.find(variant, number=_EACH)
        else:
            found = self._trials.found(variant)
        self.tried.append(_Trial(combination, key, found))
        keeping = [trial.found for trial in self.tried if self.keeps(trial.found)]
        self._tell(self.best(keeping) if keeping else None, len(self.tried), most)

    def _prepare(self, combinations: Combinations) -> None:
        """Judge the next variants at the same time, unless the next one is judged."""
        waiting = map(combinations.at, self._order(combinations))
        coming = ((key, variant) for _, variant, key in waiting)
        new = dict(itertools.islice(coming, self._trials.at_once))
        if new and next(iter(new)) not in self._prepared:
            self._trials.judge([v for key, v in new.items() if key not in self._prepared])
            self._prepared |= set(new)

    def _order(self, combinations: Combinations) -> Iterator[int]:
        """Indices of combinations that were not tried, the one that is tried next first."""
        tried = {trial.key for trial in self.tried}
        for index in self._proposed(combinations):
            if combinations.at(index)[2] not in tried:
                yield index

    def _proposed(self, combinations: Combinations) -> Iterator[int]:
        seed = self._recipe.seed if self._settings.seed is None else self._settings.seed
        if self._settings.sampler == "exhaustive":
            yield from range(combinations.size)
            return
        if self._settings.sampler == "tpe":
            sampled = self._sampled(combinations, seed_of(seed, len(self.tried)))
            yield from map(combinations.index, sampled)
        # Where TPE proposes only what was tried already, and for `random`.
        yield from combinations.at_random(seed_of(seed))

    def _sampled(self, combinations: Combinations, seed: int) -> Iterator[Combination]:
        """What TPE proposes to try, given the trials of these combinations."""
        package = optuna_for("a search")
        more = [objective_named(goal).more_is_better for goal in self._settings.goals]
        study = package.create_study(
            directions=["maximize" if is_more else "minimize" for is_more in more],
            sampler=package.samplers.TPESampler(seed=seed),
        )
        distributions = {
            key: package.distributions.CategoricalDistribution(texts)
            for key, texts in combinations.space.items()
        }
        tried = [trial for trial in self.tried if combinations.has(trial.combination)]
        goals = [self.goals(trial.found) for trial in tried]
        known = [figures for figures in goals if figures is not None]
        # A variant that cannot be made is as bad as the worst one, and misses limits by far.
        worst = [
            (min if is_more else max)(column)
            for is_more, column in zip(more, zip(*known, strict=True), strict=False)
        ]
        for trial, figures in zip(tried, goals, strict=True):
            misses = _FAR if figures is None else limits.excess(trial.found)
            study.add_trial(
                package.trial.create_trial(
                    params={key: trial.combination[key] for key in combinations.space},
                    distributions=distributions,
                    values=figures or worst or [0.0] * len(more),
                    constraints={"limits": misses},
                )
            )
        for _ in range(_ASKED):
            # A proposal is a running trial of the study, which the next ones keep away from.
            yield dict(study.ask(distributions).params)

    def _best_of(self, combinations: Combinations, before: Combination) -> Combination:
        """The best combination of a round; without one that could be made, the best before."""
        results = {trial.key: trial.found for trial in self.tried}
        made = [
            (combination, results[key])
            for combination, _, key in map(combinations.at, range(combinations.size))
            if key in results and self.goals(results[key]) is not None
        ]
        if not made:
            return before
        best = self.best([result for _, result in made])
        return next(combination for combination, result in made if result is best)

    def _goal(self, result: VariantResult, name: str) -> float | None:
        goal = objective_named(name)
        if goal.name == "latency" and goal.percentile is None:
            return None if result.ratio is None else result.ratio.value
        figure = limits.figure_of(result, name, self._trials.metric)
        return None if figure is None or not math.isfinite(figure.value) else figure.value
