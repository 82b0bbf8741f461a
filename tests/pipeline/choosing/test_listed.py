"""The search over listed values on a table of known times and drops: limits, the last race, and what is said of each variant."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from octobert.core.errors import OctobertError
from octobert.core.selection import Variant, VariantResult
from octobert.pipeline.choosing import listed
from tests.pipeline.choosing.studies import MACHINE, recipe_of
from tests.pipeline.choosing.tables import REFERENCE, Table, Truth

SPACE = {"targets": ["ort-cpu"], "calibrate": ["held-out", "mse", "entropy"]}
TRUTHS = {
    "ort-cpu int8": Truth(0.7, 0.004),
    "ort-cpu int8 mse": Truth(0.55, 0.002),
    # The fastest one loses too much.
    "ort-cpu int8 entropy": Truth(0.4, 0.05),
}


class Trials(Table):
    """A table with the facts of a recipe, and a list of what was made."""

    def __init__(self, recipe: Any, truths: dict[str, Truth]) -> None:
        super().__init__(truths, recipe.search.limits, seed=0)
        measures = SimpleNamespace(metrics=(), postprocess=None)
        self.facts: Any = SimpleNamespace(
            recipe=recipe, model=SimpleNamespace(digest="m"), here=MACHINE, measures=measures
        )
        self.rows_digest, self.tried = "r", list[str]()

    def race(self, variants: Any, rounds: int, number: int | None = None) -> None:
        super().race(variants, rounds)

    def make(self, variants: Any, *, draft: bool = False) -> list[Variant]:
        return [each for each in super().make(variants) if each.name in self.truths]

    def find(self, variant: Variant) -> VariantResult:
        self.tried.append(variant.name)
        self.race([variant], 40)
        self.judge([variant])
        return self.found(variant)

    def found(self, variant: Variant) -> VariantResult:
        if variant.name not in self.truths:
            return VariantResult(variant=variant, state="excluded", reason="it cannot be made")
        return super().found(variant)


def searched(
    place: Path, truths: dict[str, Truth] | None = None, **search: Any
) -> tuple[list[VariantResult], str, Trials]:
    recipe = recipe_of(
        **{"space": SPACE, "sampler": "exhaustive", "limits": [{"max_drop": 0.01}], **search}
    )
    listed.check(recipe)
    trials: Any = Trials(recipe, TRUTHS if truths is None else truths)
    found, ended = listed.search(trials, recipe.search, place, lambda *_: None)
    return found, ended, trials


def test_the_fastest_that_keeps_the_limits_is_chosen(tmp_path: Path) -> None:
    found, ended, _ = searched(tmp_path / "t", goals=["latency", "metric"])
    assert [each.variant.name for each in found] == [
        "ort-cpu int8 mse",
        "ort-cpu int8 entropy",
        "ort-cpu int8",
        REFERENCE.name,
    ]
    assert [each.state for each in found] == ["chosen", "excluded", "admissible", "admissible"]
    assert all(each.reason for each in found)
    assert ended == "all combinations were tried"


def test_an_interrupted_search_times_only_the_best_again(tmp_path: Path) -> None:
    first, _, _ = searched(tmp_path / "t")
    found, _, trials = searched(tmp_path / "t")
    assert trials.tried == []
    assert [each.variant for each in found] == [each.variant for each in first]


def test_without_one_that_keeps_the_limits_the_nearest_is_taken(tmp_path: Path) -> None:
    found, _, _ = searched(tmp_path / "t", limits=[{"of": "latency", "min_gain": 70}])
    assert (found[0].variant.name, found[0].state) == ("ort-cpu int8 entropy", "excluded")


def test_what_cannot_be_made_is_told_with_its_reason(golden, tmp_path: Path) -> None:
    found, _, _ = searched(tmp_path / "t", {"ort-cpu int8": TRUTHS["ort-cpu int8"]})
    assert [(each.state, each.reason) for each in found[2:]] == [
        ("excluded", "it cannot be made")
    ] * 2
    with golden.raises(OctobertError):
        searched(tmp_path / "none", {})
