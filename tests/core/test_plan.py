"""Numbers of types, counts and precisions of plans, by hand."""

from __future__ import annotations

import pytest

from octobert.core.plan import Decision, DType, FloatType, Quantizer, QuantPlan, Site, middle_of


@pytest.mark.parametrize(
    ("dtype", "symmetric", "expected"),
    [
        ("int8", False, (-128, 127)),
        ("int8", True, (-127, 127)),
        ("uint8", False, (0, 255)),
        ("uint8", True, (0, 255)),
        ("int16", False, (-32768, 32767)),
        ("int16", True, (-32767, 32767)),
        ("uint16", False, (0, 65535)),
        ("int4", False, (-8, 7)),
        ("int4", True, (-7, 7)),
        ("float8e4m3", False, (-448, 448)),
        ("float8e4m3", True, (-448, 448)),
    ],
)
def test_the_limits_of_a_type(dtype: DType, symmetric: bool, expected: tuple[int, int]) -> None:
    quantizer = Quantizer(dtype=dtype, symmetric=symmetric)
    assert quantizer.limits == expected
    assert quantizer.weight_limits == (
        quantizer.model_copy(update={"dtype": "int8"}).limits if dtype == "uint8" else expected
    )


def test_the_middle_of_a_type() -> None:
    middles = {"int8": 0, "uint8": 128, "int16": 0, "uint16": 32768, "float8e4m3": 0, "other": 0}
    assert {dtype: middle_of(dtype) for dtype in middles} == middles


def decisions() -> tuple[Decision, ...]:
    """Two weights, of which one is quantized, and a quantized input."""
    quantizer = Quantizer(dtype="int8", symmetric=True)
    return tuple(
        Decision(
            site=Site(
                role=role, part="query", module="m", layer=0, node=role, input=1, value=f"{i}"
            ),
            quantizer=quantizer if quantized else None,
            reason="as in this test",
        )
        for i, (role, quantized) in enumerate(
            [("linear.weight", True), ("linear.weight", False), ("linear.input", True)]
        )
    )


@pytest.mark.parametrize(
    ("weight", "activation", "expected"),
    [
        ("uint8", "uint16", "int16 × int8 + f32"),
        ("int4", "int8", "int8 × int4 + f32"),
        ("int8", "uint8", "int8 + f32"),
        ("float8e4m3", "float8e4m3", "float8 + f32"),
        ("int8", None, "int8 + f32"),
    ],
)
def test_a_precision_names_both_sides_of_products(weight, activation, expected) -> None:
    types = {"linear.weight": weight, "linear.input": activation}
    changed = tuple(
        d.model_copy(
            update={
                "quantizer": dtype and Quantizer(dtype=dtype, symmetric=True, low=-1.0, high=1.0)
            }
        )
        for d in decisions()
        if d.quantizer is not None
        for dtype in [types[d.site.role]]
    )
    plan = QuantPlan(method="static", placement="matmul", target="ort-cpu", decisions=changed)
    assert plan.precision("f32") == expected


def plan_of(*kinds: tuple[str, Quantizer]) -> QuantPlan:
    """A plan with a value of each role, quantized so."""
    first = decisions()[0]
    changed = tuple(
        first.replaced(site=first.site.replaced(role=role), quantizer=quantizer)
        for role, quantizer in kinds
    )
    return QuantPlan(method="static", placement="matmul", target="ort-cpu", decisions=changed)


def test_a_precision_has_the_widest_activations_and_the_narrowest_weights() -> None:
    types: dict[str, tuple[DType, ...]] = {
        "linear.weight": ("int8", "int4", "int8"),
        "linear.input": ("int8", "uint16", "int8"),
    }
    kinds = [
        (role, Quantizer(dtype=dtype, symmetric=True, low=-1.0, high=1.0))
        for role, dtypes in types.items()
        for dtype in dtypes
    ]
    assert plan_of(*kinds).precision("f32") == "int16 × int4 + f32"


@pytest.mark.parametrize(
    ("settings", "words", "group"),
    [
        ({}, "", None),
        ({"dynamic": True}, " dynamic", None),
        ({"dynamic": True, "group": 128}, " per token and 128 channels", 128),
        # Weights: their groups say nothing about activations.
        ({"group": 32}, " per 32 channels", None),
    ],
)
def test_when_and_for_what_intervals_are_computed(settings, words, group) -> None:
    quantizer = Quantizer(dtype="int8", symmetric=True, **settings)
    assert quantizer.when == words
    assert plan_of(("linear.input", quantizer)).group == group


@pytest.mark.parametrize(
    ("float_parts", "quantized", "expected"),
    [
        ("float32", True, "int8 + bf16"),
        ("float32", False, "bf16"),
        ("float16", True, "int8 + f16"),
        ("float16", False, "f16"),
    ],
)
def test_what_a_plan_counts_and_computes_in(
    float_parts: FloatType, quantized: bool, expected: str
) -> None:
    plan = QuantPlan(
        method="static",
        placement="matmul",
        target="ort-cpu",
        decisions=tuple(d for d in decisions() if quantized or d.quantizer is None),
        float_parts=float_parts,
    )
    assert plan.precision("bf16") == expected
    assert plan.counts() == (
        {"linear.weight": (1, 2), "linear.input": (1, 1)}
        if quantized
        else {"linear.weight": (0, 1)}
    )
    assert [site.role for site, _ in plan.quantized] == (
        ["linear.weight", "linear.input"] if quantized else []
    )
