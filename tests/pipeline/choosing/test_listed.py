"""The search over listed values on a table of known times and drops: samplers, orders, limits, the last race, interruptions,
wrong spaces, and what is said of each variant."""

from __future__ import annotations

import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from octobert.config.loading import parse
from octobert.core.errors import OctobertError, RecipeError
from octobert.core.selection import Variant, VariantResult
from octobert.pipeline.choosing import combinations, listed
from tests.pipeline.choosing import tables
from tests.pipeline.choosing.tables import REFERENCE, Table, Truth

SPACE = {
    "calibrate": ["held-out", "mse", "entropy"],
    "transforms": [["smoothquant"], []],
    "quantize.static.per_channel": [True, False],
}
ALL = 12
SAMPLERS = ("exhaustive", "random", "tpe")
CALIBRATORS = {"targets": ["ort-cpu"], "calibrate": ["held-out", "mse", "entropy"]}
TRUTHS = {
    "ort-cpu int8": Truth(0.7, 0.004),
    "ort-cpu int8 mse": Truth(0.55, 0.002),
    # The fastest one loses too much.
    "ort-cpu int8 entropy": Truth(0.4, 0.05),
}
_TIMES = {"mse": 0.7, "entropy": 0.5}


def recipe_of(**search: Any) -> Any:
    """A recipe with a search."""
    return parse(
        {"model": "m", "task": "mrpc", "data": "glue", "search": {"space": SPACE, **search}}
    )


def truth_of(variant: Variant) -> Truth | None:
    """Entropy is the fastest and the least accurate one; without channels it cannot be made."""
    changes = variant.changes
    calibrator, per_channel = changes.get("calibrate"), "quantize" not in str(changes)
    if calibrator == "entropy" and not per_channel:
        return None
    smoothed = changes.get("transforms") != []
    ms = _TIMES.get(calibrator, 0.9) + 0.05 * smoothed
    return Truth(ms, 0.02 * (calibrator == "entropy") + 0.001 * (not smoothed))


class Trials(Table):
    """A table with the recipe, and lists of what was tried and prepared; an interrupted search has one of its own."""

    def __init__(
        self, recipe: Any, truth: Callable[[Variant], Truth | None] = truth_of, at_once: int = 1
    ) -> None:
        super().__init__({}, recipe.search.limits, seed=0)
        self.run: Any = SimpleNamespace(recipe=recipe)
        self._truth_of, self.at_once = truth, at_once
        self.tried, self.prepared = list[str](), list[list[str]]()

    def race(self, variants: Any, rounds: int, number: int | None = None) -> None:
        super().race([each for each in variants if each.name in self.truths], rounds)

    def make(self, variants: Any, *, draft: bool = False) -> list[Variant]:
        for each in variants:
            if each != REFERENCE and (truth := self._truth_of(each)) is not None:
                self.truths[each.name] = truth
        return [each for each in super().make(variants) if each.name in self.truths]

    def judge(self, variants: Any) -> None:
        if self.at_once > 1 and len(variants) > 1:
            self.prepared.append([each.name for each in variants])
        super().judge(self.make(variants))

    def find(self, variant: Variant, rounds: int = 40, *, number: int) -> VariantResult:
        self.tried.append(variant.name)
        self.race([variant], rounds)
        self.judge([variant])
        return self.found(variant)

    def found(self, variant: Variant) -> VariantResult:
        if variant.name not in self.truths:
            return VariantResult(variant=variant, state="excluded", reason="it cannot be made")
        return super().found(variant)


def searched(
    truth: Callable[[Variant], Truth | None] = truth_of, at_once: int = 1, **search: Any
) -> tuple[list[VariantResult], str, Trials]:
    """(what was found, why the search ended, the trials)."""
    recipe = recipe_of(**search)
    listed.check(recipe)
    tries = Trials(recipe, truth, at_once)
    found, ended = listed.search(tries, recipe.search, lambda *_: None)  # type: ignore[arg-type]
    return found, ended, tries


def calibrators(truths: dict[str, Truth] = TRUTHS, **search: Any) -> list[VariantResult]:
    """What is found over three calibrators, with a limit on the drop."""
    settings = {"space": CALIBRATORS, "sampler": "exhaustive", "limits": [{"max_drop": 0.01}]}
    return searched(lambda variant: truths.get(variant.name), **(settings | search))[0]


def in_order(found: list[VariantResult]) -> list[VariantResult]:
    """Results in the order in which they were tried, without the float model."""
    return sorted(
        (each for each in found if each.variant != REFERENCE), key=lambda each: each.number
    )


@pytest.fixture
def without_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "TIME_NOISE", 0.0)
    monkeypatch.setattr(tables, "DROP_NOISE", 0.0)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_equal_seeds_and_figures_give_equal_trials(sampler: str) -> None:
    first, ended, tries = searched(sampler=sampler, seed=1, trials=6)
    assert (len(in_order(first)), ended) == (6, "after 6 trials: 6 of 12 combinations were tried")
    again, _, others = searched(sampler=sampler, seed=1, trials=6)
    assert (again, others.tried) == (first, tries.tried)
    if sampler != "exhaustive":
        assert searched(sampler=sampler, seed=2, trials=6)[2].tried != tries.tried


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_small_spaces_are_tried_whole_and_each_combination_once(sampler: str) -> None:
    found, ended, _ = searched(sampler=sampler, trials=50)
    assert ended == "all combinations were tried"
    names = [each.variant.name for each in in_order(found)]
    assert (len(names), len(set(names))) == (ALL, ALL)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_several_trials_are_prepared_at_the_same_time(sampler: str) -> None:
    found, _, tries = searched(sampler=sampler, trials=50, at_once=3)
    every = [name for batch in tries.prepared for name in batch]
    assert set(every) <= {each.variant.name for each in found}
    assert len(every) == len(set(every))
    # TPE may change its mind after each trial.
    assert sampler == "tpe" or [len(batch) for batch in tries.prepared] == [3, 3, 3, 3]


def test_tpe_comes_to_good_combinations(monkeypatch: pytest.MonkeyPatch, without_noise) -> None:
    keys = ("opset", "quantize.static.group")
    # Without a recipe's checks: the space is only numbers.
    texts = {key: tuple(map(json.dumps, range(1, 20))) for key in keys}
    monkeypatch.setattr(listed, "space_of", lambda *_: texts)
    monkeypatch.setattr(
        combinations,
        "variant_of",
        lambda _, changes: Variant(
            name=str(changes), target="ort-cpu", changes=changes, precision="int8"
        ),
    )

    def truth(variant: Variant) -> Truth:
        one, other = (variant.changes[key] for key in keys)
        return Truth(1.0, 0.0, size=0.1 + 0.05 * (abs(one - 16) + abs(other - 7)))

    space, sizes = {key: [1] for key in keys}, []
    for seed in range(5):
        recipe = recipe_of(space=space, sampler="tpe", trials=30, seed=seed, goals=["size"])
        found, _ = listed.search(Trials(recipe, truth), recipe.search, lambda *_: None)  # type: ignore[arg-type]
        sizes.append([each.figures["size"].value for each in in_order(found)])
    # One seed may be lucky at once.
    assert sum(map(min, sizes)) < sum(min(each[:10]) for each in sizes)
    assert sum(sum(each[20:]) for each in sizes) < sum(sum(each[:10]) for each in sizes)


def test_one_pass_at_a_time_keeps_the_best_value_of_each_key(without_noise) -> None:
    limits = [{"max_drop": 0.01}]
    found, ended, _ = searched(order="one-pass-at-a-time", sampler="exhaustive", limits=limits)
    assert ended == "all values of all keys were tried"
    assert [each.variant.changes for each in in_order(found)] == [
        {},
        {"calibrate": "mse"},
        # The fastest one misses the limit.
        {"calibrate": "entropy"},
        {"calibrate": "mse", "transforms": ["smoothquant"]},
        # Weights per channel are the default, so that this is tried once.
        {"calibrate": "mse", "transforms": []},
        {"calibrate": "mse", "transforms": [], "quantize.static.per_channel": False},
    ]


@pytest.mark.parametrize(
    ("sampler", "order"),
    [("tpe", "joint"), ("random", "one-pass-at-a-time"), ("exhaustive", "one-pass-at-a-time")],
)
def test_an_interrupted_search_asks_for_the_same_trials(
    without_noise, sampler: str, order: str
) -> None:
    """What they have found is in the store (`test_choosing_robust`)."""
    settings: dict[str, Any] = {"sampler": sampler, "order": order, "seed": 3, "trials": 7}
    found, ended, whole = searched(**settings)
    tries: list[list[str]] = []

    class Interrupted(Trials):
        def find(self, variant: Variant, rounds: int = 40, *, number: int) -> VariantResult:
            tries.append(self.tried)
            result = super().find(variant, rounds, number=number)
            if len(self.tried) == 4:
                raise KeyboardInterrupt
            return result

    recipe = recipe_of(**settings)
    with pytest.raises(KeyboardInterrupt):
        listed.search(Interrupted(recipe), recipe.search, lambda *_: None)  # type: ignore[arg-type]
    assert tries[-1] == whole.tried[:4]
    assert (found, ended) == searched(**settings)[:2]


def test_a_time_limit_ends_it() -> None:
    class Timed(Trials):
        def find(self, variant: Variant, rounds: int = 40, *, number: int) -> VariantResult:
            result = super().find(variant, rounds, number=number)
            self.seconds = 40.0 * len(self.tried)
            return result

    recipe = recipe_of(sampler="exhaustive", minutes=1)
    found, ended = listed.search(Timed(recipe), recipe.search, lambda *_: None)  # type: ignore[arg-type]
    assert (len(in_order(found)), ended) == (2, "after 1 minutes: 2 of 12 combinations were tried")


def test_the_fastest_that_keeps_the_limits_is_chosen() -> None:
    found = calibrators(goals=["latency", "metric"])
    assert [each.variant.name for each in found] == [
        "ort-cpu int8 mse",
        "ort-cpu int8 entropy",
        "ort-cpu int8",
        REFERENCE.name,
    ]
    assert [each.state for each in found] == ["chosen", "excluded", "admissible", "admissible"]
    assert [bool(each.checks or each.reason) for each in found] == [False, True, False, False]


def test_without_one_that_keeps_the_limits_the_nearest_is_taken() -> None:
    best = calibrators(limits=[{"of": "latency", "min_gain": 70}])[0]
    assert (best.variant.name, best.state) == ("ort-cpu int8 entropy", "excluded")


def test_what_cannot_be_made_is_told_with_its_reason(golden) -> None:
    found = calibrators({"ort-cpu int8": TRUTHS["ort-cpu int8"]})
    assert [(each.state, each.reason) for each in found[2:]] == [
        ("excluded", "it cannot be made")
    ] * 2
    with golden.raises(OctobertError):
        calibrators({})


@pytest.mark.parametrize(
    "wanted",
    [
        {"calibrat": ["mse"]},
        {"benchmark.batch": [[1]]},
        {"calibrate": ["mimax"]},
        {"calibrate": ["mse", "mse"]},
        {"quantize.static.per_chanel": [True]},
        {"targets": ["openvino"]},
        {"targets": ["ort-cpu", "vitisai"]},
    ],
)
def test_a_wrong_space_is_one_sentence(golden, wanted: dict[str, Any]) -> None:
    recipe = recipe_of(space=wanted)
    with golden.raises(RecipeError):
        listed.check(recipe)


def test_options_go_with_the_plugins_that_have_them() -> None:
    wanted = {
        "quantize.static.per_channel": [True, False],
        "quantize": ["static", "dynamic"],
        "calibrate": ["held-out", "mse"],
    }
    found, _, _ = searched(lambda _: Truth(0.5, 0.0), space=wanted, sampler="exhaustive")
    assert [each.variant.changes for each in in_order(found)] == [
        {},
        {"calibrate": "mse"},
        # Dynamic quantization calibrates nothing.
        {"quantize": "dynamic"},
        {"quantize.static.per_channel": False},
        {"calibrate": "mse", "quantize.static.per_channel": False},
    ]


def test_several_targets_are_part_of_the_space() -> None:
    recipe = parse(
        {
            "model": "m",
            "task": "mrpc",
            "data": "glue",
            "targets": ["openvino-cpu", "ort-cpu", "vitisai"],
            "search": {"space": {"calibrate": ["mse"]}},
        }
    )
    found = combinations.space_of(recipe, recipe.search)
    assert found == {"targets": ('"openvino-cpu"', '"ort-cpu"'), "calibrate": ('"mse"',)}
