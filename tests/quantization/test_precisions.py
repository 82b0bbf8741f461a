"""Precisions beside INT8: weights only, none at all, bfloat16, FP8, weights in uint8. What is written is computed again in NumPy."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx.reference import ReferenceEvaluator

from octobert import targets
from octobert.config.loading import parse
from octobert.core import capability
from octobert.core.errors import RecipeError
from octobert.core.plan import Quantizer, QuantPlan
from octobert.data.encoded import feeds_of
from octobert.graph import operators, qdq
from octobert.graph.passes import float16
from octobert.pipeline.planner import steps_of
from octobert.quantization.methods.float import Float
from octobert.quantization.methods.static import Static
from octobert.quantization.methods.weight_only import WeightOnly
from tests.support.graphs import encoded, outputs_of, relative_error

# Two float32 computations of the same products.
FLOAT = 1e-5
FP8 = ml_dtypes.float8_e4m3fn


def written(source: Path, plan: QuantPlan, path: Path) -> ir.Model:
    model = ir.load(source)
    qdq.write(model, plan)
    float16.convert_(model, plan.float_parts)
    operators.save(model, path)
    onnx.checker.check_model(str(path), full_check=True)
    return ir.load(path)


def table(name: str) -> capability.Capabilities:
    return targets.load(name).capabilities


# --- weights only


@pytest.mark.parametrize("target", ["ort-cpu", "openvino-cpu", "qnn"])
def test_weights_only_equals_rounded_weights_in_float(
    float_path, bert_sites, bert_ranges, tmp_path, target
) -> None:
    plan = WeightOnly(embeddings="float").plan(bert_sites, bert_ranges, table(target))
    capability.check(plan, table(target))
    quantized = {site.value: quantizer for site, quantizer in plan.quantized}
    assert len(quantized) == 12
    written(float_path, plan, tmp_path / "weights.onnx")
    rounded = ir.load(float_path)
    for name, quantizer in quantized.items():
        value = rounded.graph.initializers[name]
        value.const_value = ir.tensor(
            qdq.dequantized_weight(value.const_value.numpy(), quantizer), name=name
        )
    operators.save(rounded, tmp_path / "rounded.onnx")
    feeds = feeds_of(encoded(), 0)
    ours, theirs = (outputs_of(tmp_path / f"{name}.onnx", feeds) for name in ("weights", "rounded"))
    np.testing.assert_allclose(ours, theirs, atol=FLOAT * np.abs(theirs).max())
    assert (tmp_path / "weights.onnx").stat().st_size < 0.75 * float_path.stat().st_size


def test_unsigned_weights_are_the_signed_ones_shifted() -> None:
    weight = np.random.default_rng(0).normal(size=(32, 8)).astype(np.float32)
    signed, unsigned = (Quantizer(dtype=dtype, symmetric=True) for dtype in ("int8", "uint8"))
    for ours, theirs in zip(
        qdq.quantize_weight(weight, unsigned), qdq.quantize_weight(weight, signed), strict=True
    ):
        np.testing.assert_array_equal(ours, theirs)


# --- float


def test_the_float_method_leaves_the_graph_as_it_is(
    float_path, bert_sites, bert_ranges, tmp_path
) -> None:
    plan = Float().plan(bert_sites, bert_ranges, table("ort-cpu"))
    assert plan.quantized == ()
    written(float_path, plan, tmp_path / "float.onnx")
    feeds = feeds_of(encoded(), 0)
    np.testing.assert_array_equal(
        outputs_of(tmp_path / "float.onnx", feeds), outputs_of(float_path, feeds)
    )


def test_a_target_has_its_own_type_of_float_parts(bert_sites, bert_ranges) -> None:
    parts = {
        name: Float().plan(bert_sites, bert_ranges, table(name)).float_parts
        for name in ("ort-cpu", "tensorrt", "migraphx")
    }
    assert parts == {"ort-cpu": "float32", "tensorrt": "float16", "migraphx": "float16"}
    wrong = Float(float_parts="bfloat16").plan(bert_sites, bert_ranges, table("ort-cpu"))
    assert capability.violations(wrong, table("ort-cpu")) == [
        "ort-cpu takes float parts of type float32 or float16, not bfloat16"
    ]


def test_bfloat16_follows_float32_and_keeps_norms(
    float_path, bert_sites, bert_ranges, tmp_path
) -> None:
    """ONNX Runtime has no bfloat16 on CPUs; ONNX's reference implementation has."""
    plan = Float(float_parts="bfloat16").plan(bert_sites, bert_ranges, table("tensorrt"))
    model = written(float_path, plan, tmp_path / "short.onnx")
    for node in model.graph:
        if node.op_type == "LayerNormalization":
            assert node.outputs[0].dtype == ir.DataType.FLOAT
        elif node.op_type == "MatMul":
            assert node.outputs[0].dtype == ir.DataType.BFLOAT16
    feeds = {name: array[:2] for name, array in feeds_of(encoded(), 0).items()}
    session = ReferenceEvaluator(onnx.load(tmp_path / "short.onnx"))
    ours = np.asarray(
        session.run(None, {value.name: feeds[value.name] for value in model.graph.inputs})[0],
        np.float32,
    )
    theirs = outputs_of(float_path, feeds)
    # Eight binary digits, and sums of tens of products.
    assert 1e-4 < relative_error(ours, theirs) < 0.1


def test_scales_are_what_bfloat16_holds() -> None:
    scales = np.array([0.1, 1e-9, 3.0], dtype=np.float32)
    rounded = float16.rounded_scale(scales, "bfloat16")
    np.testing.assert_array_equal(rounded, scales.astype(ml_dtypes.bfloat16).astype(np.float32))
    np.testing.assert_array_equal(float16.rounded_scale(scales, "float32"), scales)


# --- FP8


@pytest.mark.parametrize(("low", "high"), [(-4.5, 3.0), (-600.0, 500.0), (-1e-3, 1e-3)])
def test_fp8_activations_are_rounded_as_the_type_rounds(low: float, high: float) -> None:
    quantizer = Quantizer(dtype="float8e4m3", symmetric=True, low=low, high=high)
    values = np.random.default_rng(0).normal(0, high / 2, 1000).astype(np.float32)
    scale = np.float32(max(-low, high) / 448)
    expected = np.clip(values / scale, -448, 448).astype(FP8).astype(np.float32) * scale
    np.testing.assert_array_equal(qdq.rounded_activation(values, quantizer), expected)


def test_fp8_weights_and_activations_follow_the_float_model(
    float_path, bert_sites, bert_ranges, tmp_path
) -> None:
    method = Static(activations="float8e4m3", placement="tensorrt", float_parts="float32")
    plan = method.plan(bert_sites, bert_ranges, table("tensorrt"))
    capability.check(plan, table("tensorrt"))
    model = written(float_path, plan, tmp_path / "fp8.onnx")
    pairs = [node for node in model.graph if node.op_type == "QuantizeLinear"]
    assert {node.outputs[0].dtype for node in pairs} == {ir.DataType.FLOAT8E4M3FN}
    assert model.graph.opset_imports[""] == 19
    feeds = feeds_of(encoded(), 0)
    # Four binary digits instead of eight bits' seven near the end of the range, more near zero.
    assert (
        1e-4
        < relative_error(outputs_of(tmp_path / "fp8.onnx", feeds), outputs_of(float_path, feeds))
        < 0.2
    )


def test_training_with_fp8_is_refused(checkpoint, pairs: Path) -> None:
    plain = {
        "model": str(checkpoint("bert")),
        "task": "text-classification",
        "data": str(pairs),
        "quantize": {"static": {"activations": "float8e4m3"}},
        "qat": {"epochs": 1},
        "targets": ["tensorrt"],
    }
    with pytest.raises(RecipeError, match=r"training rounds to integers.*float8e4m3"):
        steps_of(parse(plain))
