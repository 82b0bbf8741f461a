"""Quantized numbers: zero is exact, nothing inside the interval moves by more than half a step, and files keep intervals."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from octobert.core.plan import Decision, Quantizer, QuantPlan, Site
from octobert.core.ranges import Interval
from octobert.graph import qdq
from octobert.quantization import tables

FLOATS = st.floats(-1e6, 1e6, width=32)
WEIGHTS = arrays(
    np.float32,
    st.tuples(st.integers(1, 4), st.integers(1, 6)),
    elements=st.floats(-100, 100, width=32),
)


def largest_sum(integers: np.ndarray) -> int:
    """The largest sum of two integers whose products share 16 bits: of neighbours if channels come in fours, else of any two."""
    signed = integers.astype(int)
    if len(signed) % 4:
        return 2 * int(np.abs(signed).max())
    return int(np.abs(signed[::2] + signed[1::2]).max())


@st.composite
def activation_quantizers(draw: st.DrawFn) -> Quantizer:
    """A quantizer of integers with a range."""
    low, high = sorted(draw(st.tuples(FLOATS, FLOATS)))
    dtype = draw(st.sampled_from(["int8", "uint8", "int16", "uint16"]))
    return Quantizer(
        dtype=dtype,
        symmetric=draw(st.booleans()),
        low=low,
        high=high,
    )


@given(activation_quantizers(), arrays(np.float32, 8, elements=st.floats(0, 1, width=32)))
def test_activations(quantizer: Quantizer, places: np.ndarray) -> None:
    scale, zero = qdq.activation_parameters(quantizer)
    assert np.isfinite(scale)
    assert scale >= qdq.MIN_SCALE
    assert quantizer.limits[0] <= int(zero) <= quantizer.limits[1]
    assert qdq.rounded_activation(np.zeros(1, np.float32), quantizer)[0] == 0
    low, high = min(quantizer.low or 0.0, 0.0), max(quantizer.high or 0.0, 0.0)
    values = np.float32(low) + places * np.float32(high - low)
    rounded = qdq.rounded_activation(values, quantizer)
    # Half a step, half a step more where the zero point was rounded, and float32 itself.
    allowed = (0.5 if quantizer.symmetric else 1.0) * float(scale) * (1 + 1e-3) + 2e-6 * max(
        -low, high
    )
    assert np.abs(rounded.astype(np.float64) - values).max() <= allowed
    np.testing.assert_array_equal(qdq.rounded_activation(rounded, quantizer), rounded)


@given(
    WEIGHTS,
    st.sampled_from([{"axis": None}, {"axis": 0}, {"axis": 1}, {"axis": 1, "group": 2}]),
    st.sampled_from(["int8", "int4"]),
    st.sampled_from(["max", "mse"]),
    st.booleans(),
)
def test_weights(
    array: np.ndarray, scales: dict, dtype: str, ranges: str, reduce_range: bool
) -> None:
    assume(len(array) % scales.get("group", 1) == 0)
    # Neighbours that are limited together share a scale.
    assume(not reduce_range or scales["axis"] != 0)
    quantizer = Quantizer(
        dtype=dtype, symmetric=True, weight_ranges=ranges, reduce_range=reduce_range, **scales
    )
    integers, scale = qdq.quantize_weight(array, quantizer)
    back = qdq.dequantized_weight(array, quantizer)
    lowest, highest = quantizer.weight_limits
    assert integers.dtype == np.dtype(dtype)
    integers = integers.astype(np.int8)
    if quantizer.limits_pairs:
        assert largest_sum(integers) <= 128
    assert lowest <= integers.min()
    assert integers.max() <= highest
    assert np.all(back[array == 0] == 0)
    if ranges == "max":
        assert np.all(
            np.abs(back - array) <= qdq.spread(scale, array.shape, quantizer.axis) * 0.501 + 1e-30
        )
    # Integers are kept when the rounded weight is quantized again with its scale.
    again = qdq.quantize_weight(back, quantizer, scale)[0].astype(np.int8)
    np.testing.assert_array_equal(again, integers)


@given(st.lists(st.tuples(st.text(max_size=8), st.none() | activation_quantizers()), max_size=4))
def test_a_plan_survives_its_file(sites: list[tuple[str, Quantizer | None]]) -> None:
    decisions = tuple(
        Decision(
            site=Site(
                node=name,
                input=0,
                role="linear.input",
                part="ffn_up",
                layer=0,
                value=name,
                module=name,
            ),
            quantizer=quantizer,
            reason=name,
        )
        for name, quantizer in sites
    )
    plan = QuantPlan(target="ort-cpu", method="static", placement="auto", decisions=decisions)
    assert QuantPlan.model_validate_json(plan.model_dump_json()) == plan


@given(
    st.dictionaries(
        st.text("abc.0/_", min_size=1, max_size=12),
        st.floats(2.0**-100, 2.0**100, width=32),
        min_size=1,
        max_size=5,
    )
)
def test_tables_keep_bounds(tmp_path: Path, bounds: dict[str, float]) -> None:
    intervals = {
        name: Interval(low=-bound, high=bound, bound=bound) for name, bound in bounds.items()
    }
    for path in tables.write(intervals, tmp_path):
        read = tables.read(path)
        assert {name: np.float32(interval.bound) for name, interval in read.items()} == {
            name: np.float32(bound) for name, bound in bounds.items()
        }
