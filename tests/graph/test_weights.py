"""Weights in Q/DQ graphs: one scale per tensor or channel, integers or a pair, products that cannot saturate, and ranges by squared error."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

from octobert.core import capability
from octobert.core.capability import Capabilities
from octobert.core.plan import Quantizer
from octobert.data.encoded import feeds_of
from octobert.graph import operators as ops
from octobert.graph import qdq
from octobert.quantization.methods.dynamic import Dynamic
from octobert.quantization.methods.static import Static
from tests.support.checkpoints import exact_method
from tests.support.graphs import (
    capabilities,
    constant,
    encoded,
    outputs_of,
    relative_error,
    written,
)

# Allowed relative error of 8-bit outputs on random weights. The worst plan here has 0.04; a wrong scale or axis gives about 1.
LOOSE = 0.1


def test_weights_per_tensor_have_one_scale(
    float_path, bert_sites, bert_ranges, float_logits, tmp_path
) -> None:
    plan = exact_method(Static, per_channel=False).plan(
        bert_sites, bert_ranges, capabilities("ort-cpu")
    )
    model = written(float_path, plan, tmp_path / "tensor.onnx")
    weights = [
        n for n in model.graph if n.op_type == "DequantizeLinear" and n.inputs[0].is_initializer()
    ]
    assert len(weights) == 12
    assert all(n.inputs[1].const_value.shape == () and "axis" not in n.attributes for n in weights)
    assert (
        relative_error(outputs_of(tmp_path / "tensor.onnx", feeds_of(encoded(), 0)), float_logits)
        < LOOSE
    )


PAIRED = [
    {},
    {"per_channel": False},
    {"weight_ranges": "mse"},
    {"reduce_range": True},
    {"fuse_qkv": True, "per_channel": False},
    {"placement": "qdqbert"},
    {"placement": ("linear.*", "head.*")},
]


def in_both_forms(
    float_path, placed, chosen, folder, options, scales=None
) -> tuple[ir.Model, ir.Model]:
    """The same plan with integer weights (`integers.onnx`) and with float weights before a pair (`pair.onnx`)."""
    models = []
    for form in ("integers", "pair"):
        written_as = Static(**options, weight_form=form)
        models.append(ir.load(float_path))
        plan = written_as.plan(placed, chosen, capabilities("ort-cpu"))
        capability.check(plan, capabilities("ort-cpu"))
        qdq.write(models[-1], plan, scales)
        ops.save(models[-1], folder / f"{form}.onnx")
        onnx.checker.check_model(str(folder / f"{form}.onnx"), full_check=True)
    return models[0], models[1]


def assert_same_integers(integers: ir.Model, pair: ir.Model, folder: Path) -> int:
    """Check that ONNX Runtime quantizes the float weights to the integers of the other graph; return the number of weights."""
    names = [
        n.name for n in pair.graph if n.op_type == "QuantizeLinear" and n.inputs[0].is_initializer()
    ]
    model = onnx.load(folder / "pair.onnx")
    model.graph.output.extend(onnx.helper.make_empty_tensor_value_info(name) for name in names)
    settings = ort.SessionOptions()
    settings.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session, feeds = (
        ort.InferenceSession(model.SerializeToString(), settings),
        feeds_of(encoded(), 0),
    )
    results = session.run(names, {i.name: feeds[i.name] for i in session.get_inputs()})
    for name, theirs in zip(names, results, strict=True):
        assert theirs.dtype == np.int8
        np.testing.assert_array_equal(theirs, constant(integers, name), err_msg=name)
    return len(names)


@pytest.mark.parametrize("options", PAIRED, ids=str)
def test_a_weight_behind_a_pair_has_the_same_integers(
    float_path, bert_sites, bert_ranges, tmp_path, options
) -> None:
    integers, pair = in_both_forms(float_path, bert_sites, bert_ranges, tmp_path, options)
    weights = [s for s in bert_sites if s.role in ("linear.weight", "head.weight")]
    assert assert_same_integers(integers, pair, tmp_path) == len(weights) - 2 * (
        "head.*" not in options.get("placement", ())
    )
    weights = [
        n for n in pair.graph if n.op_type == "QuantizeLinear" and n.inputs[0].is_initializer()
    ]
    axes = [n.attributes["axis"].value for n in weights if "axis" in n.attributes]
    assert axes == ([] if options.get("per_channel") is False else [1] * len(weights))
    # The embedding table keeps its integers.
    assert constant(pair, "embeddings.word_embeddings.weight.quantized").dtype == np.int8
    ours, theirs = (
        outputs_of(tmp_path / f"{form}.onnx", feeds_of(encoded(), 0))
        for form in ("pair", "integers")
    )
    np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("factor", [0.3, 1.7])
def test_a_pair_takes_the_scale_that_was_chosen(
    float_path, bert_sites, bert_ranges, tmp_path, factor
) -> None:
    """Also if the interval is narrower than the weights, which QuantizeLinear alone would map to -128."""
    graph = ir.load(float_path).graph
    weights = {
        s.value: graph.initializers[s.value].const_value.numpy()
        for s in bert_sites
        if s.role == "linear.weight"
    }
    scales = {
        n: (np.abs(w).max(axis=0) / 127 * factor).astype(np.float32) for n, w in weights.items()
    }
    integers, pair = in_both_forms(float_path, bert_sites, bert_ranges, tmp_path, {}, scales)
    assert assert_same_integers(integers, pair, tmp_path) == 12
    name = next(iter(weights))
    np.testing.assert_array_equal(constant(pair, f"{name}.scale"), scales[name])
    assert (constant(integers, f"{name}.quantized").min() == -127) == (factor < 1)


def test_the_form_of_weights_is_the_targets_unless_chosen(bert_sites, bert_ranges) -> None:
    def forms(table: Capabilities, **options: str) -> set[bool]:
        plan = Static(**options).plan(bert_sites, bert_ranges, table)
        return {
            quantizer.weight_form == "pair"
            for site, quantizer in plan.quantized
            if site.role == "linear.weight"
        }

    table = capabilities("ort-cpu")
    folding = table.but(weights={"form": "pair"})
    assert [forms(table), forms(folding)] == [{False}, {True}]
    assert [forms(folding, weight_form="integers"), forms(table, weight_form="pair")] == [
        {False},
        {True},
    ]
    plan = Static(placement="qdqbert").plan(bert_sites, bert_ranges, folding)
    assert not any(q.weight_form == "pair" for s, q in plan.quantized if s.role != "linear.weight")


@pytest.mark.parametrize("reduce_range", [True, False, "auto"])
@pytest.mark.parametrize("method", [Static, Dynamic])
def test_reduced_weights_limit_the_sums_of_neighbours(
    model, bert_sites, bert_ranges, method, reduce_range
) -> None:
    made = method(reduce_range=reduce_range)
    qdq.write(model, made.plan(bert_sites, bert_ranges, capabilities("ort-cpu")))
    names = [f"{s.value}.quantized" for s in bert_sites if s.role == "linear.weight"]
    assert len(names) == 12
    for name in names:
        integers = constant(model, name).astype(int)
        sums = np.abs(integers[::2] + integers[1::2]).max(axis=0)
        assert integers.min() >= -127, name
        if reduce_range is True:
            # Every channel uses the range that it may: 128, or 127 without rounding up.
            assert np.maximum(sums, np.abs(integers).max(axis=0)).min() >= 126, name
            assert sums.max() <= 128, name
        else:
            assert sums.max() > 128, name


@pytest.mark.parametrize("axis", [None, 1])
@pytest.mark.parametrize("reduced", [False, True])
def test_mse_ranges_of_weights_are_never_worse(axis, reduced) -> None:
    weight = np.random.default_rng(0).standard_t(5, size=(3072, 12)).astype(np.float32)
    weight[:, 5] = 0.0
    errors = []
    for least in ("max", "mse"):
        quantizer = Quantizer(
            dtype="int8", symmetric=True, axis=axis, weight_ranges=least, reduce_range=reduced
        )
        squares = (qdq.dequantized_weight(weight, quantizer).astype(np.float64) - weight) ** 2
        errors.append(squares.sum(axis=0 if axis == 1 else None))
    # Equal if the full interval is the best one, except for the float32 rounding of scales.
    assert np.all(errors[1] <= errors[0] * (1 + 1e-5))
    assert np.sum(errors[1]) < 0.98 * np.sum(errors[0])
