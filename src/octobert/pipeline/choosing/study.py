"""The search over listed values of recipe keys (`search`): which combination is tried next, and what was found of all.

    space_of ─ for each round: propose ─ claim ─ find ─ finish … ─ all trials of the study

With the order `joint` there is one round with all keys; with `one-pass-at-a-time` one round for each key, with the best values
of the keys before it. Each proposal follows from the seed and from the trials so far, so a search that was interrupted goes on
as if it had not been. Several processes may work on one study (`claims`); all of them return the trials of all.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from octobert.config.choosing import UNITS, Search, objective_named
from octobert.config.recipe import Recipe
from octobert.core import environment
from octobert.core.environment import Environment
from octobert.core.errors import RecipeError
from octobert.core.files import canonical_digest
from octobert.core.selection import Variant, VariantResult
from octobert.pipeline.choosing import storage as storages
from octobert.pipeline.choosing.claims import Claims, Tried, Values
from octobert.pipeline.choosing.combinations import (
    Combination,
    Combinations,
    proposed,
    seed_of,
    space_of,
    variant_and_key,
)

# Trials of samplers that do not try all combinations, unless the recipe says how many.
TRIALS = 20
_FAR = 1e9
# Seconds between looks at the trials of others, while there is nothing else to do.
POLL_S = 0.5
# Keys of a recipe that change nothing about a trial, and paths, which differ between machines: `inputs` has the digests.
_ELSEWHERE: dict[str, Any] = {
    "model": True,
    "revision": True,
    "search": True,
    "executor": True,
    "cache": True,
    "log_level": True,
    "zip": True,
    "tune": True,
    "allow_pickle": True,
    "allow_code": True,
    "data": {"source", "train", "validation", "test"},
}


class Trials(Protocol):
    """What makes and judges the variants of a search.

    Args:
        machine: that tries them. Trials of other kinds of machines do not count where goals or limits are times.
        inputs: what trials depend on besides the recipe: name → digest, such as those of the model and of the rows.
        at_once: how many variants are prepared at the same time.
    """

    machine: Environment
    inputs: dict[str, str]
    at_once: int

    @property
    def seconds(self) -> float:
        """That the search has taken so far, in earlier runs as well."""
        ...

    def variant_of(self, changes: Mapping[str, Any]) -> Variant:
        """The variant with some keys of the recipe changed, as `space.variant_of` makes it."""
        ...

    def prepare(self, variants: Sequence[Variant]) -> None:
        """Do at the same time what several of the next trials need, so that `find` has less to do."""
        ...

    def find(self, variant: Variant) -> VariantResult:
        """Try a variant. One that cannot be made comes back `excluded`."""
        ...

    def tell(self, result: VariantResult, number: int, total: int) -> None:
        """Called after each trial with its number from 1 on, and the number of all."""
        ...

    def values(self, result: VariantResult) -> Values:
        """Figures of the goals, and by how much limits are missed."""
        ...

    def best(self, results: Sequence[VariantResult]) -> VariantResult:
        """The best of some that could be made."""
        ...


@dataclass(frozen=True)
class Searched:
    """What a search has found.

    Args:
        found: of all trials of the study, in the order in which they were started.
        ended: why the search ended.
    """

    found: tuple[VariantResult, ...]
    ended: str


def search(recipe: Recipe, trials: Trials, place: Path) -> Searched:
    """Try combinations of the values in `search.space`.

    Args:
        recipe: with `search`.
        trials: makes and judges variants.
        place: file for what is found, unless the recipe has a storage.

    Raises:
        RecipeError: the space is wrong, or the study was started with other inputs.
        TargetError: Optuna or a driver is not installed.
        StorageError: the trials cannot be stored.
    """
    settings = recipe.search
    assert settings is not None
    space = space_of(recipe, settings, trials.variant_of)
    facts = _facts(recipe, settings, trials.inputs, trials.machine)
    claims = Claims(
        storages.opened(settings.storage, place),
        settings.storage or str(place),
        settings.study or f"octobert-{canonical_digest(facts)[:16]}",
        [objective_named(goal).more_is_better for goal in settings.goals],
        facts,
        alone=settings.storage is None,
    )
    rounds = _Rounds(recipe, settings, space, claims, trials)
    with claims.alive():
        ended = rounds.all()
        return Searched(
            tuple(trial.found for trial in rounds.tried() if trial.found is not None), ended
        )


def _facts(
    recipe: Recipe, settings: Search, inputs: Mapping[str, str], machine: Environment
) -> dict[str, str]:
    """What all trials of a study must agree in, as short texts."""
    plain = recipe.model_dump(mode="json", by_alias=True, exclude=_ELSEWHERE)
    # More trials or more time continue a study.
    asked = settings.model_dump(mode="json", exclude={"trials", "minutes", "storage", "study"})
    facts = {f"search.{key}": canonical_digest(value)[:16] for key, value in asked.items()}
    facts |= {
        "recipe": canonical_digest(plain)[:16],
        "octobert": machine.versions.get("octobert", ""),
        **inputs,
    }
    named = (*settings.goals, *(limit.of for limit in settings.limits))
    if any(objective_named(name).name in UNITS and name != "size" for name in named):
        facts |= {"CPU": f"{machine.cpu}, {machine.cores} cores, {' '.join(machine.features)}"}
        runtimes = {
            name: machine.versions[name]
            for name in environment.runtime_packages()
            if name in machine.versions
        }
        facts |= {f"version of {name}": version for name, version in runtimes.items()}
    return facts


@dataclass
class _Rounds:
    """The rounds of one search.

    Args:
        prepared: keys of the variants that are prepared.
        variants: combination → its variant and key.
    """

    recipe: Recipe
    settings: Search
    space: Mapping[str, tuple[str, ...]]
    claims: Claims
    trials: Trials
    prepared: set[str] = field(default_factory=set)
    variants: dict[tuple[tuple[str, str], ...], tuple[Variant, str]] = field(default_factory=dict)

    def tried(self) -> list[Tried]:
        """Trials that are running or done, of all processes.

        What a trial tries follows from its combination alone, which is one of the space: anybody may have written the rest, and
        a variant may name code.

        Raises:
            RecipeError: a combination is not one of the space.
        """
        tried = []
        # Other machines may have targets that this one lacks.
        targets = tuple(map(json.dumps, self.recipe.targets))
        listed = {**self.space, "targets": (*self.space.get("targets", ()), *targets)}
        for trial in self.claims.tried():
            items = tuple(trial.combination.items())
            if items not in self.variants:
                if not all(text in listed.get(key, ()) for key, text in items):
                    raise RecipeError(
                        f"trial {trial.number} of the study tries what search.space does not have",
                        where="search.study",
                        fix="give another name, or leave it out",
                    )
                self.variants[items] = variant_and_key(trial.combination, self.trials.variant_of)
            variant, key = self.variants[items]
            result = trial.found and trial.found.model_copy(update={"variant": variant})
            tried.append(replace(trial, key=key, found=result))
        return tried

    def all(self) -> str:
        """Carry out all rounds; return why the search ended."""
        space = self.space
        if self.settings.order == "joint":
            combinations = Combinations(space, {}, self.trials.variant_of)
            most = self._most(combinations.size)
            return self._round(combinations, most) or "all combinations were tried"
        best: Combination = {}
        most = self._most(sum(len(values) for values in space.values()))
        for key, values in space.items():
            combinations = Combinations({key: values}, best, self.trials.variant_of)
            ended = self._round(combinations, most)
            if ended is not None:
                return ended
            best = self._best(combinations, best)
        return "all values of all keys were tried"

    def _most(self, size: int) -> int:
        default = size if self.settings.sampler == "exhaustive" else min(TRIALS, size)
        return default if self.settings.trials is None else self.settings.trials

    def _round(self, combinations: Combinations, most: int) -> str | None:
        """Try combinations until all are tried.

        Returns:
            Why the search ended before that.
        """
        while True:
            minutes = self.settings.minutes
            tried = self.tried()
            # A search without a result goes on to its first one.
            if (
                minutes is not None
                and self.trials.seconds > 60 * minutes
                and any(trial.found for trial in tried)
            ):
                return f"after {minutes:g} minutes"
            enough = len(tried) >= most
            index = None if enough else self._next(combinations, tried)
            if index is not None:
                if self.trials.at_once > 1:
                    self._prepare(combinations, tried)
                self._try(combinations, index, most)
            elif all(trial.found for trial in tried):
                return (
                    f"after {most} trial{'' if most == 1 else 's'}"
                    if enough and self._next(combinations, tried) is not None
                    else None
                )
            else:
                time.sleep(POLL_S)

    def _prepare(self, combinations: Combinations, tried: Sequence[Tried]) -> None:
        """Prepare the next trials, unless the next one is prepared."""
        tried_keys = {trial.key for trial in tried}
        waiting = map(combinations.at, self._order(combinations, tried))
        coming = ((key, variant) for _, variant, key in waiting if key not in tried_keys)
        new = dict(itertools.islice(coming, self.trials.at_once))
        if new and next(iter(new)) not in self.prepared:
            self.trials.prepare(
                [variant for key, variant in new.items() if key not in self.prepared]
            )
            self.prepared |= set(new)

    def _try(self, combinations: Combinations, index: int, most: int) -> None:
        combination, variant, key = combinations.at(index)
        trial = self.claims.claim(combination, key, self.space, most)
        if trial is None:
            return
        result = self.trials.find(variant)
        self.claims.finish(trial, result, self.trials.values(result))
        self.trials.tell(result, sum(other.found is not None for other in self.tried()), most)

    def _next(self, combinations: Combinations, tried: Sequence[Tried]) -> int | None:
        """The index of the combination that is tried next; None where all are tried."""
        tried_keys = {trial.key for trial in tried}
        order = self._order(combinations, tried)
        return next((index for index in order if combinations.at(index)[2] not in tried_keys), None)

    def _order(self, combinations: Combinations, tried: Sequence[Tried]) -> Iterator[int]:
        seed = self.recipe.seed if self.settings.seed is None else self.settings.seed
        if self.settings.sampler == "exhaustive":
            yield from range(combinations.size)
            return
        if self.settings.sampler == "tpe":
            mirror = self._mirror(combinations, tried)
            sampled = proposed(
                storages.optuna(), combinations.space, mirror, seed_of(seed, len(tried))
            )
            yield from map(combinations.index, sampled)
        # Where TPE proposes only what was tried already, and for `random`.
        yield from combinations.at_random(seed_of(seed))

    def _mirror(self, combinations: Combinations, tried: Sequence[Tried]) -> Any:
        """A study in memory with the trials of these combinations, for the sampler."""
        package = storages.optuna()
        more = [objective_named(goal).more_is_better for goal in self.settings.goals]
        study = package.create_study(
            directions=["maximize" if is_more else "minimize" for is_more in more]
        )
        distributions = {
            key: package.distributions.CategoricalDistribution(texts)
            for key, texts in combinations.space.items()
        }
        tried = [trial for trial in tried if combinations.has(trial.combination)]
        values = [
            None if trial.found is None else self.trials.values(trial.found) for trial in tried
        ]
        goals = [value.goals for value in values if value is not None and value.goals is not None]
        # A variant that cannot be made is as bad as the worst one, and misses limits by far.
        worst = [
            (min if is_more else max)(column)
            for is_more, column in zip(more, zip(*goals, strict=True), strict=False)
        ]
        for trial, value in zip(tried, values, strict=True):
            done: dict[str, Any] = {"state": package.trial.TrialState.RUNNING}
            if value is not None:
                misses = _FAR if value.goals is None else value.misses
                done = {
                    "values": value.goals or worst or [0.0] * len(more),
                    "constraints": {"limits": misses},
                }
            params = {key: trial.combination[key] for key in combinations.space}
            study.add_trial(
                package.trial.create_trial(params=params, distributions=distributions, **done)
            )
        return study

    def _best(self, combinations: Combinations, before: Combination) -> Combination:
        """The best combination of a round; without one that could be made, the best before."""
        results = {trial.key: trial.found for trial in self.tried()}
        complete = []
        for combination, _, key in map(combinations.at, range(combinations.size)):
            result = results.get(key)
            if result is not None and self.trials.values(result).goals is not None:
                complete.append((combination, result))
        if not complete:
            return before
        best = self.trials.best([result for _, result in complete])
        return next(combination for combination, result in complete if result is best)
