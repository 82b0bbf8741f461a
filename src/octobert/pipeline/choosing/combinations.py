"""The combinations of a search: what `search.space` may have, and which combination is tried next.

A combination is a value of each key, as JSON text. Combinations that make the same `Variant`, such as those that differ in an
option of a method that is not chosen, count as one.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from octobert import targets
from octobert.config.choosing import Search
from octobert.config.recipe import Recipe
from octobert.core.errors import RecipeError, did_you_mean
from octobert.core.files import canonical_digest
from octobert.core.selection import Variant
from octobert.pipeline.choosing.space import variant_of

Combination = dict[str, str]
_WHERE = "search.space"
# Keys that change the model. Others would change what the models of a search are compared by.
KEYS = (
    "targets",
    "finetune",
    "transforms",
    "calibrate",
    "calibration_provider",
    "quantize",
    "corrections",
    "accuracy",
    "shape",
    "format",
    "opset",
    "session",
    "token_states",
    "data.calibrate",
)

_MOST_DRAWN = 100_000


def space_of(recipe: Recipe, settings: Search) -> dict[str, tuple[str, ...]]:
    """Return what a search varies, checked: key → values, as JSON. A recipe with several targets varies these, too.

    Raises:
        RecipeError: a key or a value cannot be searched over, or a target cannot run on this machine.
    """
    space = dict(settings.space)
    for key in space:
        if not any(key == allowed or key.startswith(f"{allowed}.") for allowed in KEYS):
            is_key = key.partition(".")[0] in Recipe.model_fields
            raise RecipeError(
                "a search compares models by the same rows and figures; this key is not one of the model"
                if is_key
                else "unknown key",
                where=f"{_WHERE}.{key}",
                fix=did_you_mean(key, KEYS),
            )
    if len(recipe.targets) > 1 and "targets" not in space:
        present = [name for name in recipe.targets if targets.load(name).probe().available]
        space = {"targets": tuple(present or recipe.targets[:1]), **space}
    # Targets first: those of the recipe are the same ones.
    for key, values in sorted(space.items(), key=lambda item: item[0] != "targets"):
        _check_values(recipe, key, values, space)
    return {
        key: tuple(json.dumps(value, sort_keys=True) for value in values)
        for key, values in space.items()
    }


def _check_values(
    recipe: Recipe, key: str, values: Sequence[Any], space: Mapping[str, Sequence[Any]]
) -> None:
    """Check each value of a key by itself; an option of a plugin, together with each plugin that the space has."""
    family = key.partition(".")[0]
    beside = [{family: value} for value in space.get(family, ())] if family != key else []
    for index, value in enumerate(values):
        where = f"{_WHERE}.{key}"
        if value in values[:index]:
            raise RecipeError("a value is listed twice", where=where, got=json.dumps(value))
        if key == "targets":
            _check_target(value, where)
        problems = []
        for other in beside or [{}]:
            try:
                variant_of(recipe, {**other, key: value})
            except RecipeError as error:
                problems.append(error)
        if len(problems) == len(beside or [{}]):
            raise RecipeError(_mistake(problems[0]).removeprefix(f"{key}: "), where=where)


def _check_target(name: Any, where: str) -> None:
    probe = targets.load(str(name), where=where).probe()
    if not probe.available:
        raise RecipeError(
            f"models for {name} cannot be timed on this machine: {probe.missing}",
            where=where,
            fix=probe.install or "remove it",
        )


def _mistake(error: RecipeError) -> str:
    """The first mistake of a recipe, without the words around it."""
    lines = error.what.splitlines()
    first = lines[1].removeprefix("  - ") if len(lines) > 1 else error.what
    return f"{first}; {error.fix}" if error.fix and len(lines) == 1 else first


class Combinations:
    """The combinations of some values, in the order of the lists, and the variants that they make.

    Args:
        recipe: whose keys are changed.
        space: key → values that are tried, as JSON.
        fixed: combination of other keys, which are the same in all.
    """

    def __init__(
        self, recipe: Recipe, space: Mapping[str, Sequence[str]], fixed: Combination
    ) -> None:
        self.space, self._recipe, self._fixed = dict(space), recipe, fixed
        self.size = math.prod(map(len, space.values()))
        self._made: dict[str, tuple[Variant, str]] = {}

    def __iter__(self) -> Iterator[Combination]:
        for values in itertools.product(*self.space.values()):
            yield self.with_values(dict(zip(self.space, values, strict=True)))

    def at_random(self, seed: int) -> Iterator[Combination]:
        """Yield combinations in an order that depends on a seed only: all, or so many that nobody tries more."""
        for number in random.Random(seed).sample(range(self.size), min(self.size, _MOST_DRAWN)):
            values = dict[str, str]()
            for key, listed in self.space.items():
                number, place = divmod(number, len(listed))
                values[key] = listed[place]
            yield self.with_values(values)

    def made(self, combination: Combination) -> tuple[Variant, str]:
        """The variant that a combination makes, and a digest that is the same for the same variant."""
        text = json.dumps(combination)
        if text not in self._made:
            self._made[text] = _variant_and_key(self._recipe, combination)
        return self._made[text]

    def with_values(self, values: Mapping[str, str]) -> Combination:
        """The combination with these values of the keys that differ."""
        return {**self._fixed, **values}


def _variant_and_key(recipe: Recipe, combination: Combination) -> tuple[Variant, str]:
    """The variant that a combination makes, and a digest that is the same for the same variant."""
    # A plugin before its options, which it would take away again.
    changes = {
        key: json.loads(combination[key])
        for key in sorted(combination, key=lambda key: key.count("."))
    }
    try:
        variant = variant_of(recipe, changes)
    except RecipeError:
        # What is wrong with it is found out when it is tried.
        rest = {key: value for key, value in changes.items() if key != "targets"}
        words = ", ".join(f"{key} {text}" for key, text in combination.items())
        variant = Variant(
            name=words, target=str(changes.get("targets", "")), changes=rest, precision=""
        )
    return variant, canonical_digest([variant.target, variant.changes])


def seed_of(*parts: object) -> int:
    """A seed that depends on all parts, for generators that take 32 bits."""
    return int.from_bytes(hashlib.sha256("/".join(map(str, parts)).encode()).digest()[:4], "big")
