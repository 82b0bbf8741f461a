"""The search over listed values of recipe keys (`search`): each combination is timed in turn with the float model and judged on
the tuning rows; the best few are timed again, in one race.

With the order `joint` there is one round with all keys; with `one-pass-at-a-time` one round for each key, with the best values
of the keys before it. Each round is a study of its own, and each proposal follows from its seed and the trials before. What
a trial has found is in the store: a search that was interrupted asks for the same trials again, and goes on as if it had not
been.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from octobert.config.choosing import Search
from octobert.config.recipe import Recipe
from octobert.core.errors import OctobertError
from octobert.core.limits import objective_named
from octobert.core.selection import Variant, VariantResult
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

# Proposals of the sampler that are known before one is drawn at random.
_REPEATED = 10
# Trials of samplers that do not try all combinations, unless the recipe says how many.
TRIALS = 20
# Numbers of races, whatever came between: an interrupted search finds them again. Those of trials have one number, and so the
# same rows.
_FIRST, _EACH, _LAST = 0, 1, 2
_ROUNDS = 12
# By how much a variant that cannot be made misses limits, for the sampler.
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
    results = {result.variant.name: result for result in searching.tried.values()}
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
        # Digest of a variant → what was found of it.
        self.tried: dict[str, VariantResult] = {}
        self.ranking = limits.Ranking(settings.goals, trials.metric, trials.ratio)

    @property
    def reference(self) -> VariantResult:
        """What is known of the float model."""
        return self._trials.found(self._trials.reference)

    def all(self) -> str:
        """Carry out all rounds; return why the search ended."""
        values, best = space_of(self._recipe, self._settings), Combination()
        is_joint = self._settings.order == "joint"
        rounds = [values] if is_joint else [{key: of_key} for key, of_key in values.items()]
        size = sum(math.prod(map(len, each.values())) for each in rounds)
        most = self._most(size)
        what = "combinations" if is_joint else "values"
        for each in rounds:
            combinations = Combinations(self._recipe, each, best)
            if (ended := self._round(combinations, most)) is not None:
                return f"{ended}: {len(self.tried)} of {size} {what} were tried"
            best = self._best_of(combinations, best)
        return "all combinations were tried" if is_joint else "all values of all keys were tried"

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
        minutes, trials = self._settings.minutes, self._trials
        proposed = self._proposed(combinations)
        while True:
            # A search without a result goes on to its first one.
            if minutes is not None and trials.seconds > 60 * minutes and self.tried:
                return f"after {minutes:g} minutes"
            left = most - len(self.tried)
            coming = list(itertools.islice(proposed, max(1, min(left, trials.at_once))))
            if not coming:
                return None
            if left < 1:
                return f"after {most} trial{'' if most == 1 else 's'}"
            variants = [variant for variant, _ in map(combinations.made, coming)]
            if trials.at_once > 1:
                trials.judge(variants)
            for combination, variant in zip(coming, variants, strict=True):
                self._try(variant, combinations.made(combination)[1], most)

    def _try(self, variant: Variant, key: str, most: int) -> None:
        if self._trials.make([variant]):
            self.tried[key] = self._trials.find(variant, number=_EACH)
        else:
            self.tried[key] = self._trials.found(variant)
        keeping = list(filter(self.keeps, self.tried.values()))
        self._tell(self.best(keeping) if keeping else None, len(self.tried), most)

    def _proposed(self, combinations: Combinations) -> Iterator[Combination]:
        """Combinations of which each makes another variant that was not tried."""
        seed = seed_of(self._recipe.seed if self._settings.seed is None else self._settings.seed)
        if self._settings.sampler == "exhaustive":
            order = iter(combinations)
        elif self._settings.sampler == "random":
            order = combinations.at_random(seed)
        else:
            order = self._sampled(combinations, seed)
        known = set(self.tried)
        for combination in order:
            if (key := combinations.made(combination)[1]) not in known:
                known.add(key)
                yield combination

    def _sampled(self, combinations: Combinations, seed: int) -> Iterator[Combination]:
        """What TPE proposes, given what was found of its proposals until then."""
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
        others, asked, repeated = combinations.at_random(seed), list[tuple[str, Any]](), 0
        while True:
            waiting = [(key, trial) for key, trial in asked if key not in self.tried]
            for key, trial in asked:
                if (found := self.tried.get(key)) is not None:
                    figures = self.goals(found)
                    misses = _FAR if figures is None else limits.excess(found)
                    trial.set_constraint("limits", misses)
                    study.tell(trial, figures or [0.0] * len(more))
            if repeated > _REPEATED:
                other = next(others, None)
                if other is None:
                    return
                study.enqueue_trial({key: other[key] for key in distributions})
            trial = study.ask(distributions)
            combination = combinations.with_values(trial.params)
            key = combinations.made(combination)[1]
            is_known = key in self.tried or key in dict(waiting)
            repeated = repeated + 1 if is_known else 0
            asked = [*waiting, (key, trial)]
            yield combination

    def _best_of(self, combinations: Combinations, before: Combination) -> Combination:
        """The best combination of a round; without one that could be made, the best before."""
        tried = ((each, self.tried.get(combinations.made(each)[1])) for each in combinations)
        made = [(each, found) for each, found in tried if found is not None and self.goals(found)]
        if not made:
            return before
        best = self.best([found for _, found in made])
        return next(combination for combination, found in made if found is best)

    def _goal(self, result: VariantResult, name: str) -> float | None:
        goal = objective_named(name)
        if goal.name == "latency" and goal.percentile is None:
            return None if result.ratio is None else result.ratio.value
        figure = limits.figure_of(result, name, self._trials.metric)
        return None if figure is None or not math.isfinite(figure.value) else figure.value
