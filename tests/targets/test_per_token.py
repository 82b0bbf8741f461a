"""Activations quantized per token: the plan's group is in the files, and the runtime alone answers as our session does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from octobert import targets
from octobert.core import capability
from octobert.core.errors import PlanError
from octobert.core.plan import GROUP_METADATA, Quantizer, QuantPlan
from octobert.core.session import SessionEntries, SessionOptions
from octobert.inspection import linter
from octobert.pipeline.stages import _plans
from octobert.quantization.methods.dynamic import Dynamic
from octobert.quantization.methods.weight_only import WeightOnly
from octobert.targets import openvino_cpu, ort_cpu
from octobert.targets.runtimes import openvino as runtime
from tests.support.checkpoints import batch
from tests.support.graphs import capabilities, ranges, written

openvino = pytest.importorskip("openvino")
onnxruntime = pytest.importorskip("onnxruntime")

# Of the tiny model: its layers are 32 and 64 wide.
NARROWEST = 32
# Two runs of the same file with the same settings.
SAME = 1e-6
# Float products in another order, of the largest logit: OpenVINO's are in float32 too.
IN_FLOAT = 1e-4
# Activations with 8 bits per token against float ones, of the largest logit.
ROUNDED = 0.05


def plans(bert_sites) -> dict[str, QuantPlan]:
    target = capabilities("openvino-cpu")
    empty = ranges({})
    return {
        "weights": WeightOnly().plan(bert_sites, empty, target),
        "token": Dynamic().plan(bert_sites, empty, target),
        "small": Dynamic(group=16).plan(bert_sites, empty, target),
        "narrow": Dynamic(group=16, bits=4).plan(bert_sites, empty, target),
    }


@pytest.fixture(scope="module")
def files(float_path, bert_sites, tmp_path_factory) -> dict[str, tuple[Path, Path]]:
    """Method → the ONNX file and the IR."""
    folder = tmp_path_factory.mktemp("per-token")
    result = {}
    for name, plan in plans(bert_sites).items():
        onnx, xml = folder / f"{name}.onnx", folder / f"{name}.xml"
        written(float_path, plan, onnx)
        openvino_cpu.convert(onnx, xml)
        result[name] = onnx, xml
    return result


def answers(path: Path) -> np.ndarray:
    session = openvino_cpu.TARGET.open_session(path, SessionOptions())
    return session.run(batch([9, 5, 2]))["logits"]


@pytest.mark.parametrize(
    ("name", "group"),
    [("weights", "0"), ("token", str(NARROWEST)), ("small", "16"), ("narrow", "16")],
)
def test_the_files_say_the_group(files, name: str, group: str) -> None:
    """At most the width of the narrowest layer: OpenVINO leaves layers in float that are narrower than a group."""
    onnx, xml = files[name]
    assert ir.load(onnx).metadata_props.get(GROUP_METADATA, "0") == group
    assert runtime.group_of(openvino.Core().read_model(str(onnx))) == group
    assert runtime.group_of(openvino.Core().read_model(str(xml))) == group


@pytest.mark.parametrize("name", ["weights", "token", "small", "narrow"])
def test_openvino_alone_answers_as_our_session_does(files, name: str) -> None:
    onnx, xml = files[name]
    model = openvino.Core().compile_model(str(xml), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    feeds = batch([9, 5, 2])
    alone = model({port.get_any_name(): feeds[port.get_any_name()] for port in model.inputs})[0]
    np.testing.assert_allclose(answers(xml), alone, rtol=0, atol=SAME)
    np.testing.assert_allclose(answers(onnx), alone, rtol=0, atol=SAME)


def test_an_ir_that_says_nothing_keeps_its_activations_in_float(files, tmp_path) -> None:
    model = openvino.Core().read_model(str(files["weights"][1]))
    nothing = openvino.Model(model.outputs, model.get_parameters(), "nothing")
    openvino.save_model(nothing, tmp_path / "nothing.xml", compress_to_fp16=False)
    read = openvino.Core().read_model(str(tmp_path / "nothing.xml"))
    assert not read.has_rt_info(list(runtime.GROUP_OPTION))
    np.testing.assert_allclose(
        answers(tmp_path / "nothing.xml"), answers(files["weights"][1]), rtol=0, atol=SAME
    )


def test_weights_alone_are_rounded_in_the_file(float_path, bert_sites, tmp_path) -> None:
    model = written(float_path, plans(bert_sites)["token"], tmp_path / "token.onnx")
    types = {node.op_type for node in model.graph}
    assert "DequantizeLinear" in types
    assert not types & {"QuantizeLinear", "DynamicQuantizeLinear", "MatMulInteger"}


def test_weights_of_4_bits_are_those_of_numpy(float_path, bert_sites, files) -> None:
    """The file, with the weights of a group of 16 rows rounded to 15 numbers around zero."""
    graph, rounded = ir.load(float_path).graph, ir.load(files["narrow"][0]).graph
    weights = {site.value for site in bert_sites if site.role == "linear.weight"}
    for name in weights:
        array = graph.initializers[name].const_value.numpy()
        rows = array.reshape(-1, 16, array.shape[1])
        scale = np.abs(rows).max(axis=1, keepdims=True) / 7
        expected = np.rint(rows / scale).reshape(array.shape)
        tensor = rounded.initializers[f"{name}.quantized"].const_value
        assert tensor.dtype is ir.DataType.INT4
        assert f"{name}.zero_point" not in rounded.initializers
        np.testing.assert_array_equal(tensor.numpy().astype(np.float32), expected)


def test_both_runtimes_run_weights_of_4_bits(float_path, bert_sites, files, tmp_path) -> None:
    """ONNX Runtime fuses them into MatMulNBits; both stay within what 8-bit activations do to the same weights in float."""
    plan = Dynamic(group=16, bits=4).plan(bert_sites, ranges({}), capabilities("ort-cpu"))
    written(float_path, plan, tmp_path / "ort.onnx")
    optimized = tmp_path / "optimized.onnx"
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(optimized)
    alone = onnxruntime.InferenceSession(
        tmp_path / "ort.onnx", options, providers=["CPUExecutionProvider"]
    )
    found = linter.lint(tmp_path / "ort.onnx", capabilities("ort-cpu"))
    assert not [finding for finding in found.findings if finding.severity == "refused"]
    layers = sum(site.role == "linear.weight" for site in bert_sites)
    fused = [node for node in ir.load(optimized).graph if node.op_type == "MatMulNBits"]
    assert len(fused) == found.integer == layers
    feeds = batch([9, 5, 2])
    names = {value.name for value in alone.get_inputs()}
    logits = alone.run(None, {name: feeds[name] for name in names})[0]
    session = ort_cpu.TARGET.open_session(tmp_path / "ort.onnx", SessionOptions())
    np.testing.assert_allclose(session.run(feeds)["logits"], logits, rtol=0, atol=SAME)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    in_float = onnxruntime.InferenceSession(
        tmp_path / "ort.onnx", options, providers=["CPUExecutionProvider"]
    ).run(None, {name: feeds[name] for name in names})[0]
    for got in (logits, answers(files["narrow"][1])):
        assert np.abs(got - in_float).max() < ROUNDED * np.abs(in_float).max()


@pytest.mark.parametrize("target", ["ort-cpu", "openvino-cpu"])
def test_weights_of_4_bits_alone_are_multiplied_with_float_activations(
    target: str, float_path, bert_sites, tmp_path
) -> None:
    method = WeightOnly(group=16, bits=4)
    plan = method.plan(bert_sites, ranges({}), capabilities(target))
    assert not capability.violations(plan, capabilities(target))
    session = _plans.opened(float_path, plan, {}, targets.load(target), SessionEntries())
    written(float_path, plan, tmp_path / "file.onnx")
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    exact = onnxruntime.InferenceSession(
        tmp_path / "file.onnx", options, providers=["CPUExecutionProvider"]
    )
    feeds = batch([9, 5, 2])
    expected = exact.run(None, {value.name: feeds[value.name] for value in exact.get_inputs()})[0]
    found = session.run(feeds)["logits"]
    np.testing.assert_allclose(found, expected, rtol=0, atol=IN_FLOAT * np.abs(expected).max())


@pytest.mark.parametrize("method", [Dynamic, WeightOnly])
def test_a_target_without_weights_of_4_bits_says_so(method, bert_sites) -> None:
    with pytest.raises(PlanError, match=r"tensorrt takes no 4-bit weights.*choose another target"):
        method(bits=4).plan(bert_sites, ranges({}), capabilities("tensorrt"))


def test_what_4_bits_are_multiplied_with_is_a_fact_of_the_target(bert_sites) -> None:
    """An NPU that takes 4-bit weights before float activations only: one line of its table."""
    npu = capabilities("openvino-npu").but(weights={"int4": ("float",)})
    plan = WeightOnly(bits=4).plan(bert_sites, ranges({}), npu)
    assert {q.dtype for site, q in plan.quantized if site.role == "linear.weight"} == {"int4"}
    assert not capability.violations(plan, npu)
    with pytest.raises(PlanError, match=r"in this method.*weight-only: \{bits: 4"):
        Dynamic(bits=4).plan(bert_sites, ranges({}), npu)
    other = Dynamic(bits=4).plan(bert_sites, ranges({}), capabilities("ort-cpu"))
    assert capability.violations(other, npu)
    assert not capability.violations(capability.repaired(other, npu), npu)


def test_ort_quantizes_per_token_before_weights_of_4_bits_only(bert_sites) -> None:
    target = capabilities("ort-cpu")
    plan = Dynamic().plan(bert_sites, ranges({}), capabilities("openvino-cpu"))
    broken = capability.violations(plan, target)
    assert broken
    assert all("ort-cpu does not quantize activations per token" in line for line in broken)
    assert not capability.violations(capability.repaired(plan, target), target)
    narrow = Dynamic(bits=4).plan(bert_sites, ranges({}), target)
    assert not capability.violations(narrow, target)
    # A target that takes neither: both are repaired.
    qnn = capabilities("qnn")
    assert any(
        "qnn does not quantize activations per token" in line
        for line in capability.violations(narrow, qnn)
    )
    assert not capability.violations(capability.repaired(narrow, qnn), qnn)


def test_groups_that_do_not_divide_a_layer_are_refused(float_path, bert_sites, tmp_path) -> None:
    plan = Dynamic(group=24, bits=4).plan(bert_sites, ranges({}), capabilities("ort-cpu"))
    with pytest.raises(PlanError, match=r"32 channels, groups of 24.*a divisor of 32"):
        written(float_path, plan, tmp_path / "refused.onnx")


def test_words_say_when_an_interval_is_computed() -> None:
    made = Quantizer(dtype="int8", symmetric=True, dynamic=True, group=128)
    assert made.when == " per token and 128 channels"
    weight = Quantizer(dtype="int4", symmetric=True, axis=1, group=128)
    assert weight.when == " per 128 channels"
    assert Quantizer(dtype="uint8", symmetric=False, dynamic=True).when == " dynamic"
    assert Quantizer(dtype="uint8", symmetric=False).when == ""
