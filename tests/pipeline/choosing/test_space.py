"""What a search may try: every value that a plugin declares can be made, and variants are recipes like any other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from octobert import targets
from octobert.config.loading import parse
from octobert.config.recipe import Recipe
from octobert.core import capability
from octobert.core.axes import Axis
from octobert.core.errors import OctobertError
from octobert.core.selection import Variant
from octobert.pipeline.choosing import space
from octobert.quantization import methods
from octobert.targets import runtimes
from octobert.targets.runtimes import openvino
from tests.support.graphs import ranges_for
from tests.support.packages import forget_plugins, install_extra

TARGETS = ["ort-cpu", "openvino-cpu"]
# Keys that are varied although a recipe sets them.
ALL = ["quantize", "calibrate", "transforms", "corrections"]


@pytest.fixture(autouse=True)
def bf16(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU with units for bfloat16, and none for float16."""
    monkeypatch.setattr(
        openvino.OpenvinoRuntime,
        "precision_problem",
        lambda _, each: "no float16 here" if each == "f16" else None,
    )


def recipe(**more: Any) -> Recipe:
    return parse(
        {"model": "m", "task": "mrpc", "data": "d", "targets": TARGETS, "choose": {}, **more}
    )


BEGINNINGS: dict[str, list[Variant]] = {}


def start(asked: Recipe, name: str = "ort-cpu int8") -> Variant:
    key = asked.model_dump_json(exclude_unset=True)
    if key not in BEGINNINGS:
        BEGINNINGS[key] = space.first(asked)
    return next(each for each in BEGINNINGS[key] if each.name == name)


def names(variants: list[Variant]) -> list[str]:
    return [each.name for each in variants]


# --- contracts of plugins


@pytest.mark.parametrize("target", targets.names())
def test_every_declared_value_makes_a_plan_that_its_target_takes(target: str, bert_sites) -> None:
    asked, table = recipe(targets=[target]), targets.load(target).capabilities
    for method in methods.names():
        for form in space._forms(asked, method, target):
            began = space.variant_of(asked, {"targets": target, "quantize": {method: form.options}})
            axes = () if form.why_not else space.axes_of(asked, began)
            values = [
                {},
                *({**axis.requires, axis.key: value} for axis in axes for value in axis.values),
            ]
            for changes in values:
                made = space.recipe_of(
                    asked, began.model_copy(update={"changes": {**began.changes, **changes}})
                )
                if changes and not any(key.startswith("quantize.") for key in changes):
                    continue
                chosen = methods.PLUGINS.make(made.quantize)
                plan = chosen.plan(bert_sites, ranges_for(bert_sites), table)
                assert form.why_not or capability.violations(plan, table) == []


def test_a_form_is_not_tried_where_the_target_gains_nothing_by_it() -> None:
    asked = recipe()
    assert {variant.name: why for variant, why in space.left_out(asked)} == {
        "openvino-cpu f16": "no float16 here",
    }


def test_plugins_that_say_nothing_of_searches_are_used_where_they_are_named(
    tmp_path: Path, monkeypatch
) -> None:
    """Those of another package: its calibrator has a `sweep`, as every calibrator has; the others declare nothing."""
    install_extra(tmp_path)
    with monkeypatch.context() as patch:
        patch.syspath_prepend(str(tmp_path))
        forget_plugins()
        asked = recipe(targets=["ort-cpu"], quantize="extra-method", choose={"vary": ALL})
        assert names(space.first(asked)) == [
            "ort-cpu f32",
            "ort-cpu extra-method",
            "ort-cpu int8",
            "ort-cpu int8 dynamic",
        ]
        own = start(asked, "ort-cpu extra-method")
        assert space.axes_of(asked, own) == ()
        assert (space.faster(asked, own), space.nearer(asked, own), space.reach(asked, own)) == (
            [],
            [],
            1.0,
        )
        assert "extra-method" not in " ".join(names(space.first(recipe())))
        varied = {
            axis.key: axis
            for axis in space.axes_of(asked, start(asked))
            if "extra" in str(axis.values)
        }
        # The target computes outputs of linear layers, which the extra placement quantizes, in float.
        assert set(varied) == {"calibrate"}
    forget_plugins()


def test_an_axis_names_all_of_its_values_or_none() -> None:
    with pytest.raises(ValueError, match="one name per value"):
        Axis(
            key="calibrate",
            values=("mse", "minmax"),
            names=("mse",),
            changes=("numbers",),
            invalidates="calibrate",
        )


# --- where a search begins


def test_a_search_begins_with_every_precision_of_every_target() -> None:
    assert names(space.first(recipe())) == [
        "ort-cpu f32",
        "ort-cpu int8",
        "ort-cpu int8 dynamic",
        "openvino-cpu f32",
        "openvino-cpu bf16",
        "openvino-cpu int8",
        "openvino-cpu int8 dynamic",
        "openvino-cpu int4 dynamic",
    ]
    # In ONNX Runtime 4-bit weights save bytes, not time.
    assert "ort-cpu int4 dynamic" in names(space.first(recipe(choose={"goal": "size"})))
    assert "ort-cpu int8 weights" in names(space.first(recipe(choose={"goal": "size"})))
    assert "openvino-cpu int8 weights" in names(
        space.first(recipe(choose={"limits": {"of": "memory", "at_most": 90}}))
    )
    # The reference is there whatever the targets are.
    assert names(space.first(recipe(targets=["openvino-cpu"])))[0] == "ort-cpu f32"


def test_settings_of_the_recipe_are_where_a_search_begins() -> None:
    settings = {
        "quantize": {"static": {"per_channel": False}},
        "transforms": [],
        "calibrate": "mse",
    }
    asked = recipe(**settings, choose={"vary": ALL})
    made = space.recipe_of(asked, start(asked))
    assert made.quantize.options == {"per_channel": False}
    assert (made.transforms, made.calibrate.name) == ((), "mse")
    assert not {"ort-cpu int8 mse", "ort-cpu int8 no transforms", "ort-cpu int8 per tensor"} & set(
        names(space.nearer(asked, start(asked)) + space.faster(asked, start(asked)))
    )
    # What a recipe sets is not varied unless it says so.
    fixed = recipe(**settings)
    assert {key for each in space.nearer(fixed, start(fixed)) for key in each.changes} == {
        "corrections",
        "accuracy",
    }
    # A float model needs none of it, and a quantized one has the defaults where the recipe's method is float.
    assert space.recipe_of(asked, start(asked, "ort-cpu f32")).transforms == ()
    floating = recipe(quantize="float", choose={"vary": ALL})
    assert [choice.name for choice in space.recipe_of(floating, start(floating)).transforms] == [
        "outlier-neurons",
        "smoothquant",
        "token-scales",
    ]


def test_a_variant_is_a_recipe_of_one_target() -> None:
    asked = recipe(session={name: {"options": {}} for name in TARGETS}, executor="ray", seed=3)
    for variant in space.first(asked):
        made = space.recipe_of(asked, variant)
        assert (made.targets, set(made.session), made.seed) == (
            (variant.target,),
            {variant.target},
            3,
        )
        assert (made.choose, made.search, made.executor) == (None, None, "local")
        assert space.precision_of(made) == variant.precision


# --- where it goes on


@pytest.mark.parametrize("name", ["ort-cpu int8", "openvino-cpu int8", "ort-cpu int8 dynamic"])
def test_other_variants_have_short_names_of_their_own_and_change_what_they_say(name: str) -> None:
    asked = recipe()
    began = start(asked, name)
    faster, nearer = space.faster(asked, began), space.nearer(asked, began)
    found = [began, *faster, *nearer]
    assert len(set(names(found))) == len(found)
    recipes = [space.recipe_of(asked, each) for each in found]
    assert all(one != other for i, one in enumerate(recipes) for other in recipes[:i])
    assert max(map(len, names(found))) <= 60
    assert len(nearer) <= 12
    gains = {
        (axis.key, str(value)): axis.gain
        for axis in space.axes_of(asked, began)
        for value in axis.values
    }
    for variants, expected in ((faster, {True}), (nearer[:-1], {False})):
        for each in variants:
            varied = [item for item in each.changes.items() if item not in began.changes.items()]
            assert {gains[key, str(value)] > 1 for key, value in varied} == expected, each.name


def test_promising_values_come_first_and_the_search_for_float_layers_last() -> None:
    asked = recipe(choose={"limits": {"max_drop": 0.02, "relative": True}})
    nearer = space.nearer(asked, start(asked), minutes=4)
    assert names(nearer)[:2] == ["ort-cpu int8 mse", "ort-cpu int8 percentile"]
    together = next(each for each in nearer if each.name == "ort-cpu int8 mse, no transforms")
    assert together.changes == {"calibrate": "mse", "transforms": []}
    assert nearer[-1].name == "ort-cpu int8 some layers float"
    assert nearer[-1].changes == {"accuracy": {"max_drop": 0.02, "relative": True, "minutes": 4}}
    made = space.recipe_of(asked, nearer[-1])
    assert made.accuracy is not None
    assert made.accuracy.minutes == 4
    # Limits that no plan can be searched for.
    fast = recipe(choose={"limits": {"of": "latency", "at_most": 20}})
    assert space.fallback(fast, start(fast), 4) is None
    assert space.fallback(asked, start(asked, "ort-cpu f32"), 4) is None


def test_what_the_recipe_says_is_not_varied_with_something_else() -> None:
    """Without transforms `mse` is better, but the calibrator is the recipe's."""
    asked = recipe(calibrate="percentile")
    axes = space.axes_of(asked, start(asked))
    assert not any("calibrate" in {axis.key, *axis.requires} for axis in axes)
    assert any("calibrate" in axis.requires for axis in space.axes_of(recipe(), start(recipe())))


def test_what_cannot_become_fast_enough_is_known_by_its_axes() -> None:
    asked = recipe()
    began = start(asked, "openvino-cpu int8")
    assert space.reach(asked, start(asked, "openvino-cpu bf16")) == 1.0
    placed = next(
        each for each in space.faster(asked, began) if "quantize.static.placement" in each.changes
    )
    assert 1.0 < space.reach(asked, placed) < space.reach(asked, began)


def test_only_the_keys_of_vary_are_varied() -> None:
    asked = recipe(choose={"vary": ["calibrate", "quantize.static"]})
    assert names(space.first(asked)) == [
        "ort-cpu f32",
        "ort-cpu int8",
        "openvino-cpu f32",
        "openvino-cpu bf16",
        "openvino-cpu int8",
    ]
    varied = {
        key
        for each in space.nearer(asked, start(asked)) + space.faster(asked, start(asked))
        for key in each.changes
    }
    assert varied == {
        "calibrate",
        "quantize.static.weight_ranges",
        "quantize.static.placement",
        "quantize.static.per_channel",
    }


# --- changes that a user lists


@pytest.mark.parametrize(
    ("changes", "name", "kept"),
    [
        ({"calibrate": "mse"}, "ort-cpu int8 mse", {"calibrate": "mse"}),
        (
            {"calibrate": {"percentile": {"keep": 99.9}}},
            "ort-cpu int8 percentile 99.9",
            {"calibrate": {"percentile": {"keep": 99.9}}},
        ),
        (
            {"calibrate": {"name": "percentile", "options": {"keep": 99.9}}},
            "ort-cpu int8 percentile 99.9",
            {"calibrate": {"name": "percentile", "options": {"keep": 99.9}}},
        ),
        # What changes nothing.
        (
            {"calibrate": "held-out", "quantize.static.per_channel": True, "quantize": "static"},
            "ort-cpu int8",
            {},
        ),
        # Options of a method that is not chosen.
        (
            {"quantize": "dynamic", "quantize.static.placement": "ffn"},
            "ort-cpu int8 dynamic",
            {"quantize": "dynamic"},
        ),
        ({"targets": ["openvino-cpu"], "seed": 5}, "openvino-cpu int8 seed 5", {"seed": 5}),
        (
            {"transforms": None, "quantize.static.per_channel": False},
            "ort-cpu int8 per tensor, no transforms",
            None,
        ),
        (
            {"quantize": "weight_only", "quantize.weight_only.per_channel": False},
            "ort-cpu int8 weights per tensor",
            {"quantize": "weight_only", "quantize.weight-only.per_channel": False},
        ),
        (
            {"transforms": [{"smoothquant": {"alpha": 1e-05}}]},
            "ort-cpu int8 smoothquant 1e-05",
            None,
        ),
    ],
)
def test_listed_changes_are_variants(
    changes: dict[str, Any], name: str, kept: dict[str, Any] | None
) -> None:
    variant = space.variant_of(recipe(), changes)
    assert variant.name == name
    assert variant.changes == (changes if kept is None else kept)


@pytest.mark.parametrize(
    "changes",
    [
        {"targets": "ort-gpu"},
        {"quantize": None},
        {"quantise": "static"},
        {"calibrate": "mse2"},
        {"quantize.static.placement": "fnn"},
        {"choose": {"vary": ["calibrator"]}},
    ],
)
def test_wrong_changes_are_one_sentence(golden, changes: dict[str, Any]) -> None:
    with golden.raises(OctobertError):
        space.first(recipe(**changes)) if "choose" in changes else space.variant_of(
            recipe(), changes
        )


def test_types_of_floats_follow_the_device() -> None:
    problems = runtimes.float_problems(targets.load("openvino-cpu").capabilities)
    assert problems == {"float32": None, "bfloat16": None, "float16": "no float16 here"}
    assert runtimes.float_problems(targets.load("ort-cpu").capabilities) == {"float32": None}
    assert set(runtimes.float_problems(targets.load("tensorrt").capabilities)) == {
        "float16",
        "bfloat16",
        "float32",
    }
