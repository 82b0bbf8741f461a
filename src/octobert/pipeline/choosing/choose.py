"""The automatic search: the best model for a machine by a goal, within limits and a time limit.

For the goal latency (throughput, size and memory are the same with another figure as cost):

1. The default of every precision on every target is timed in turn. What is slower than the best by more than its axes can gain
   is timed no more; of the rest, other values of the axes that change time are added. Each further race has fewer models and
   more rounds.
2. Models are judged in order of time. The first that keeps the limits is the best so far, and rules out all slower ones.
3. Faster ones that miss a limit on accuracy get other values of the axes that change numbers only, then a search that lets
   layers fall back to float, until one keeps the limits or the time is over.
4. Of the best few, those whose order is not clear are timed again, in one longer race.

The time limit is for all of it and for the final run: nothing is begun that would go beyond it, by the times of trials so far.
Every result is stored, so that a search that was interrupted goes on, and comes to the same decisions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from octobert.config.choosing import Choose
from octobert.core.estimate import Estimate
from octobert.core.limits import COSTS, UNITS, objective_named
from octobert.core.selection import Variant, VariantResult
from octobert.pipeline.choosing import limits, space
from octobert.pipeline.choosing.trials import VariantTrials

T = TypeVar("T")
# Rounds of the races, from the first with all models to the last with a few.
ROUNDS = (12, 30, 60)
LAST_ROUNDS = 150
# Models of the last race.
FINALISTS = 4
# A model that is slower than the best by more than this, whatever its axes can gain, is timed no more: medians of few rounds
# are uncertain.
SLACK = 1.1
# Attempts to repair the accuracy of a variant, after which it is given up if none of them helps.
HOPELESS = 3
# Share of the time limit for a search that lets layers fall back to float. (A share of the time that is left would make another
# step of it each time a search is resumed.)
FALLBACK_SHARE = 0.25
# Opening a model for a race takes about as long as so many rounds.
_OPENING = 30


@dataclass
class Choosing:
    """The state of a search.

    Args:
        trials: makes, times and judges variants.
        settings: of the recipe.
        tell: called with the best so far, how many variants were tried, and how many there are.
        variants: that are known.
        best: the best one so far that keeps all limits.
        cut: whether the time limit has ended a part of the search.
        spent: kind of trial → seconds so far, and the units that they were spent on.
        judged: names of the variants that were judged.
    """

    trials: VariantTrials
    settings: Choose
    tell: Callable[[VariantResult | None, int, int], None]
    variants: list[Variant] = field(default_factory=list)
    best: Variant | None = None
    cut: bool = False
    spent: dict[str, tuple[float, float]] = field(default_factory=dict)
    judged: set[str] = field(default_factory=set)

    @property
    def by_metric(self) -> bool:
        """Whether the goal is a metric, so that the time of a model says nothing of how good it is."""
        return objective_named(self.settings.goal).name not in UNITS

    @property
    def limit(self) -> float:
        """Seconds for the search: the time limit without the final run."""
        return max(0.0, 60 * self.settings.minutes - self.trials.final_seconds)

    def out_of_time(self, needs: float = 0.0) -> bool:
        """Whether the time is over, or would be after some seconds more; a search without a result goes on to its first one."""
        return self.less_than(0, needs)

    def less_than(self, share: float, needs: float = 0.0) -> bool:
        """Whether less than a share of the limit is left after some seconds more, which then ends a part of the search."""
        over = self.limit - self.trials.seconds - needs <= share * self.limit
        self.cut |= over
        return over

    def make(self, variants: Sequence[Variant]) -> list[Variant]:
        """Make variants to be timed; those that could be made."""
        return self._spend("make", len(variants), lambda: self.trials.make(variants, draft=True))

    def race(self, variants: Sequence[Variant], rounds: int) -> None:
        """Time variants in turn."""
        self._spend(
            "race", _race_units(len(variants), rounds), lambda: self.trials.race(variants, rounds)
        )

    def judge(self, variants: Sequence[Variant]) -> None:
        """Judge variants."""
        new = {variant.name for variant in variants} - self.judged
        self._spend("judge", len(new), lambda: self.trials.judge(variants))
        self.judged |= new

    def _spend(self, kind: str, units: float, trial: Callable[[], T]) -> T:
        before = self.trials.seconds
        result = trial()
        seconds, units_before = self.spent.get(kind, (0.0, 0.0))
        self.spent[kind] = (seconds + self.trials.seconds - before, units_before + units)
        return result

    def predicted(self, kind: str, units: float = 1.0) -> float:
        """Seconds that trials of a kind will take, from those so far; before the first one, from the float model's."""
        seconds, units_before = self.spent.get(kind, (0.0, 0.0))
        per_unit = seconds / units_before if units_before else self.trials.expected.get(kind, 0.0)
        return per_unit * units

    def racing(self, count: int, rounds: int) -> float:
        """Seconds that a race will take."""
        return self.predicted("race", _race_units(count, rounds))

    def cost(self, variant: Variant) -> Estimate:
        """What is to be small, relative to the reference: time, size or memory."""
        goal = objective_named(self.settings.goal)
        if goal.name in COSTS:
            figures = [
                self.trials.found(one).figures[str(goal)]
                for one in (variant, self.trials.reference)
            ]
            return figures[0].over(figures[1])
        return self.trials.ratio(variant, self.trials.reference)

    def ratio(self, variant: Variant, other: Variant) -> Estimate:
        """Cost of one variant divided by that of another."""
        if objective_named(self.settings.goal).name in COSTS:
            return self.cost(variant).over(self.cost(other))
        return self.trials.ratio(variant, other)

    @property
    def ranking(self) -> limits.Ranking:
        """How variants compare."""
        return limits.Ranking(self.settings.goals, self.trials.metric, self.trials.ratio)

    def ranked(self, variants: Iterable[Variant]) -> list[Variant]:
        """Variants from the best to the worst."""
        return [result.variant for result in self.ranking.ranked(map(self.trials.found, variants))]

    def consider(self, variant: Variant) -> None:
        """Take a variant as the best so far, if it is."""
        if self.keeps(variant):
            self.best = self.ranked([variant] if self.best is None else [self.best, variant])[0]
        self.note()

    def wanted(self, variant: Variant) -> bool:
        """Whether a model is for a target of the recipe; the float reference may be for another one."""
        return variant.target in self.trials.run.recipe.targets

    def keeps(self, variant: Variant) -> bool:
        """Whether a model that was timed and judged may be chosen: it keeps all limits."""
        return self.wanted(variant) and self.trials.found(variant).state == "admissible"

    def add(self, variants: Sequence[Variant]) -> list[Variant]:
        """Add variants to those of the search; those that are new, and can be made."""
        new = list({v.name: v for v in variants if v not in self.variants}.values())
        self.variants += new
        able: list[Variant] = []
        for index in range(0, len(new), self.trials.at_once):
            # The reference and one other are always made, so that there is something to compare.
            coming = new[index : index + self.trials.at_once]
            first = (
                self.predicted("make", len(coming))
                + self.racing(len(able) + len(coming), ROUNDS[0])
                + self.predicted("judge")
            )
            if len(able) > 1 and self.out_of_time(first):
                break
            able += self.make(coming)
        self.note()
        return able

    def note(self) -> None:
        """Tell how far the search is."""
        best = None if self.best is None else self.trials.found(self.best)
        self.tell(best, self.trials.known(self.variants), len(self.variants))


def _race_units(count: int, rounds: int) -> float:
    """What the time of a race is proportional to; the reference takes part."""
    return float((count + 1) * (rounds + _OPENING))


def choose(
    trials: VariantTrials, settings: Choose, tell: Callable[[VariantResult | None, int, int], None]
) -> tuple[list[VariantResult], str]:
    """Search.

    Args:
        trials: of the recipe's variants.
        settings: of the recipe.
        tell: called with the best so far, how many variants were tried, and how many there are.

    Returns:
        (What was found out of each variant, why the search ended). The first variant is the one to use; its state is `chosen`
        if it keeps all limits.
    """
    search = Choosing(trials, settings, tell)
    queue = _in_order_of_cost(search)
    _first_that_keeps(search, queue)
    if not search.by_metric:
        _repair(search, queue)
    _last_race(search)
    ended = "the time limit was reached" if search.cut else "no model that could be better is left"
    return _results(search), ended


def _in_order_of_cost(search: Choosing) -> list[Variant]:
    """Time variants in races with fewer and fewer of them, and return all that were timed, cheapest first.

    Those that left a race are among them: all faster ones may miss a limit.
    """
    trials, recipe = search.trials, search.trials.run.recipe
    # The two that are always made are the reference and a model in 8 bits, which the search is about.
    first = sorted(space.first(recipe), key=lambda v: v != trials.reference)
    quantized = next((v for v in first if v.precision == "int8"), first[0])
    running = search.add([first[0], quantized, *first[1:]])
    if not trials.about_time and not search.by_metric:
        running += search.add([v for model in running for v in space.faster(recipe, model)])
        return sorted(running, key=lambda v: search.cost(v).value)
    search.race(running, ROUNDS[0])
    running = _without_slow(search, running, reach=True)
    # Half of the time is for accuracy.
    if not search.less_than(0.5):
        running += search.add([v for model in running for v in space.faster(recipe, model)])
    for number, rounds in enumerate(ROUNDS[1:]):
        if len(running) < 2 or search.less_than(0.5, search.racing(len(running), rounds)):
            break
        search.race(running, rounds)
        running = _without_slow(search, running, reach=False)
        search.note()
        if number == 0 and not search.less_than(0.5):
            # Two changes may gain more than one.
            best = min(running, key=lambda v: search.cost(v).value)
            running += search.add(space.faster(recipe, best))
    timed = [v for v in search.variants if trials.found(v).ratio is not None]
    return sorted(timed, key=lambda v: search.cost(v).value)


def _without_slow(search: Choosing, variants: Sequence[Variant], *, reach: bool) -> list[Variant]:
    """Leave out variants that are slower than the best one for sure.

    Args:
        reach: consider what other values of their axes can gain.
    """
    recipe = search.trials.run.recipe
    able = [v for v in variants if search.wanted(v) and search.trials.found(v).state != "excluded"]
    # A metric is known later; and what misses a limit on time in a short race may keep it in a longer one.
    if not able or search.by_metric:
        return list(variants)
    best = min(able, key=lambda v: search.cost(v).value)
    limit = SLACK * search.cost(best).value
    return [
        v
        for v in variants
        if v == search.trials.reference
        or search.cost(v).low <= limit * (space.reach(recipe, v) if reach else 1.0)
    ]


def _first_that_keeps(search: Choosing, queue: Sequence[Variant]) -> None:
    """Judge variants from the cheapest on, until one keeps the limits; of the goals that are metrics, all of them."""
    trials = search.trials
    for index, variant in enumerate(queue):
        if (
            search.best is not None
            and not search.by_metric
            and not limits.as_good(search.ratio(variant, search.best))
        ):
            continue
        if search.out_of_time(search.predicted("judge")):
            if search.best is not None:
                break
            # Without a result, the fastest one is judged, and then only what loses nothing.
            if index and variant.precision != trials.reference.precision:
                continue
        # Where several are judged at the same time, those that may be next are among them.
        search.judge(queue[index : index + trials.at_once])
        search.consider(variant)


def _repair(search: Choosing, queue: Sequence[Variant]) -> None:
    """Try to make variants keep the limits that cost less than the best one so far, the cheapest first."""
    trials, recipe = search.trials, search.trials.run.recipe
    for variant in queue:
        # What is faster within the noise only is not worth it.
        if search.best is not None and search.ratio(variant, search.best).high > 1 - limits.SAME:
            continue
        if trials.found(variant).state != "excluded" or not _misses_accuracy(search, variant):
            continue
        others = space.nearer(recipe, variant, minutes=search.settings.minutes * FALLBACK_SHARE)
        excess = [limits.excess(trials.found(variant))]
        for index, other in enumerate(others):
            plan = FALLBACK_SHARE * search.limit if "accuracy" in other.changes else 0.0
            if search.out_of_time(plan + search.predicted("judge") + search.racing(2, ROUNDS[1])):
                return
            # Where nothing helps by half, the rest of the values will not do; layers in float may.
            if (
                len(excess) > HOPELESS
                and min(excess) > excess[0] / 2
                and "accuracy" not in other.changes
            ):
                continue
            search.judge(others[index : index + trials.at_once])
            if other not in search.variants:
                search.variants.append(other)
            excess.append(limits.excess(trials.found(other)))
            if _try(search, other):
                break


def _misses_accuracy(search: Choosing, variant: Variant) -> bool:
    """Whether a model misses a limit on a metric, and none on anything else."""
    result = search.trials.found(variant)
    return bool(result.drops) and not any(
        part.limit.objective.name in UNITS for part in result.checks
    )


def _try(search: Choosing, variant: Variant) -> bool:
    """Time a variant that was judged if it keeps the limits on accuracy; whether it is the best so far."""
    trials = search.trials
    if trials.found(variant).state == "excluded":
        search.note()
        return False
    if trials.about_time:
        search.race([variant, *([] if search.best is None else [search.best])], ROUNDS[1])
    search.consider(variant)
    return search.best == variant


def _last_race(search: Choosing) -> None:
    """Time the best variants once more, and take the best of them."""
    ranked = search.ranked(filter(search.keeps, search.variants))
    if not ranked:
        return
    finalists = ranked[:FINALISTS]
    if not search.by_metric and objective_named(search.settings.goal).name not in COSTS:
        # What is slower for sure need not be timed again.
        finalists = [v for v in finalists if search.ratio(v, ranked[0]).low <= 1 + limits.SAME]
    fitting = (
        rounds
        for rounds in (LAST_ROUNDS, ROUNDS[2], ROUNDS[1])
        if not search.out_of_time(search.racing(len(finalists), rounds))
    )
    if (len(finalists) > 1 or not search.trials.about_time) and (
        rounds := next(fitting, None)
    ) is not None:
        search.race(finalists, rounds)
        ranked = search.ranked(filter(search.keeps, finalists)) or ranked
    search.best = ranked[0]


def _results(search: Choosing) -> list[VariantResult]:
    """What was found out of all variants, the chosen one first."""
    trials = search.trials
    results = {v.name: trials.found(v) for v in (*search.variants, trials.reference)}
    if search.best is None:
        judged = [
            result
            for result in results.values()
            if result.drops and (result.time_ms is not None or not trials.about_time)
        ]
        chosen = limits.nearest(result for result in judged if search.wanted(result.variant))
    else:
        chosen = trials.found(search.best)
    others = list(results.values())
    left_out = [pair for pair in space.left_out(trials.run.recipe) if pair[0].name not in results]
    others += [
        VariantResult(variant=variant, state="excluded", reason=why) for variant, why in left_out
    ]
    return search.ranking.listed(chosen, others, keeps=search.best is not None)
