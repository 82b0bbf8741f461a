"""The search over listed values on a recipe's trials: each combination is timed in turn with the float model and judged on the
tuning rows; the best few are timed again, in one race.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from octobert.config.choosing import Search, objective_named
from octobert.config.recipe import Recipe
from octobert.core.errors import OctobertError
from octobert.core.estimate import Estimate
from octobert.core.files import canonical_digest
from octobert.core.selection import Variant, VariantResult
from octobert.core.user_code import UserCode
from octobert.pipeline.choosing import limits, space, storage, study
from octobert.pipeline.choosing.choose import FINALISTS, LAST_ROUNDS
from octobert.pipeline.choosing.claims import Values
from octobert.pipeline.choosing.combinations import space_of
from octobert.pipeline.choosing.trials import Trials

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
    trials: Trials,
    settings: Search,
    place: Path,
    tell: Callable[[VariantResult | None, int, int], None],
) -> tuple[list[VariantResult], str]:
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
    # An interrupted search may find all trials, and time none.
    trials.race([trials.reference], _ROUNDS, _FIRST)
    tries = _StudyTrials(trials, settings, tell)
    searched = study.search(trials.facts.recipe, tries, place)
    results = {result.variant.name: result for result in searched.found}
    complete = [result for result in results.values() if tries.values(result).goals is not None]
    if not complete:
        raise OctobertError(
            "none of the combinations can be made",
            where="search.space",
            got=searched.found[0].reason if searched.found else None,
        )
    results |= _last_race(tries, filter(tries.keeps, complete))
    # Other processes, and earlier runs, have tried some of them.
    listed = [
        result.model_copy(update={"number": n})
        for n, result in enumerate(results.values(), start=1)
    ]
    chosen = tries.best([result for result in listed if tries.values(result).goals is not None])
    return tries.ranking.listed(
        chosen, [tries.reference, *listed], keeps=tries.keeps(chosen)
    ), searched.ended


class _StudyTrials:
    """Trials of a study (`study.Trials`). Times of different races are compared by their ratios to the float model."""

    def __init__(
        self,
        trials: Trials,
        settings: Search,
        tell: Callable[[VariantResult | None, int, int], None],
    ) -> None:
        facts = trials.facts
        self.trials, self.settings = trials, settings
        self.machine, self.at_once, self.prepare = facts.here, trials.at_once, trials.judge
        code = (*facts.measures.metrics, facts.measures.postprocess)
        digests = [part.digest if isinstance(part, UserCode) else str(part) for part in code]
        self.inputs = {
            "model": facts.model.digest[:16],
            "rows": trials.rows_digest[:16],
            "code": canonical_digest(digests)[:16],
        }
        self.ranking = limits.Ranking(
            settings.limits, settings.goals, trials.metric, self._beside, _ratio
        )
        self._tell, self._keeping = tell, list[VariantResult]()

    @property
    def seconds(self) -> float:
        """That the search has taken."""
        return self.trials.seconds

    @property
    def reference(self) -> VariantResult:
        """What is known of the float model."""
        return self.trials.found(self.trials.reference)

    def variant_of(self, changes: Mapping[str, Any]) -> Variant:
        """The variant of some changes."""
        return space.variant_of(self.trials.facts.recipe, changes)

    def find(self, variant: Variant) -> VariantResult:
        """Make, time and judge a variant."""
        return (
            self.trials.find(variant) if self.trials.make([variant]) else self.trials.found(variant)
        )

    def tell(self, result: VariantResult, number: int, total: int) -> None:
        """Tell the best so far."""
        if self.keeps(result):
            self._keeping.append(result)
        self._tell(self.best(self._keeping) if self._keeping else None, number, total)

    def values(self, result: VariantResult) -> Values:
        """What a storage keeps of a result, and the sampler learns from."""
        goals = [self._goal(result, name) for name in self.settings.goals]
        if any(goal is None for goal in goals):
            return Values(None, 0.0)
        return Values(
            tuple(goal for goal in goals if goal is not None), self.ranking.excess(result)
        )

    def keeps(self, result: VariantResult) -> bool:
        """Whether a model could be made, and keeps all limits."""
        values = self.values(result)
        return values.goals is not None and values.misses == 0

    def best(self, results: Sequence[VariantResult]) -> VariantResult:
        """The best of some that could be made: of those that keep the limits, otherwise the nearest."""
        keeping = list(filter(self.keeps, results))
        return self.ranking.ranked(keeping)[0] if keeping else self.ranking.nearest(results)

    def _beside(self, result: VariantResult) -> VariantResult:
        """The float model as it was timed in turn with a variant, whenever that was."""
        reference = self.reference
        if result.ratio is None:
            return reference
        factors = {"latency": 1 / result.ratio.value, "throughput": result.ratio.value}
        timed = {name: factors.get(objective_named(name).name) for name in result.figures}
        figures = {
            name: result.figures[name].times(factor)
            for name, factor in timed.items()
            if factor is not None
        }
        return reference.model_copy(update={"figures": {**reference.figures, **figures}})

    def _goal(self, result: VariantResult, name: str) -> float | None:
        goal = objective_named(name)
        if goal.name == "latency" and goal.percentile is None:
            return None if result.ratio is None else result.ratio.value
        figure = limits.figure_of(result, name, self.trials.metric)
        return None if figure is None or not math.isfinite(figure.value) else figure.value


def _ratio(one: VariantResult, other: VariantResult) -> Estimate:
    """The time of one variant divided by that of another."""
    if one.ratio is None or other.ratio is None or one.variant == other.variant:
        return Estimate.exactly(1.0)
    return one.ratio.over(other.ratio)


def _last_race(tries: _StudyTrials, results: Iterable[VariantResult]) -> dict[str, VariantResult]:
    """Time the best variants once more, in one race; return what is known of them then."""
    trials, minutes = tries.trials, tries.settings.minutes
    finalists = [result.variant for result in tries.ranking.ranked(results)[:FINALISTS]]
    over = minutes is not None and trials.seconds > 60 * minutes
    timed = {objective_named(goal).name for goal in tries.settings.goals} & {
        "latency",
        "throughput",
        "speedup",
    }
    if len(finalists) < 2 or over or not timed:
        return {}
    # Those that another process has found, or an earlier run, are made here.
    trials.judge(finalists)
    trials.race(finalists, LAST_ROUNDS, _LAST)
    return {variant.name: trials.found(variant) for variant in finalists}
