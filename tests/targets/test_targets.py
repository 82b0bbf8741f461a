"""Targets: one recipe for all of them, what each file must be like, the linter, and plans that are repaired.

Where a target's runtime is missing, its file is checked by structure and computed by ONNX Runtime on the CPU.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from docs import targets_page
from octobert import targets
from octobert.config.loading import parse
from octobert.core import capability, plugins
from octobert.core.capability import Capabilities
from octobert.core.errors import ModelError, PlanError, RecipeError, TargetError
from octobert.core.plan import QuantPlan
from octobert.core.results import PACKAGE_FILE, PackageManifest
from octobert.core.session import ExportOptions, SessionOptions, StaticShape
from octobert.engine.executors import inline
from octobert.graph import operators, qdq
from octobert.graph.passes import float16, npu
from octobert.inspection import linter
from octobert.pipeline import runner
from octobert.pipeline.resolve import resolve
from octobert.quantization.methods.static import Static
from octobert.targets import ort_dml, qnn, tensorrt
from octobert.targets.runtimes import ort as onnxruntime
from octobert.targets.shared.sessions import StaticShapeSession, unavailable
from tests.support.checkpoints import batch, make_checkpoint
from tests.support.cli import octobert
from tests.support.epcontext import check
from tests.support.runs import write_pairs
from tests.support.tolerances import SUM_ORDER, assert_same_rounding

ALL = plugins.names("targets")
SHAPE = {"batch": 2, "sequence": 16}
# Float operators in float16, whose sums depend on the size of the batch.
HALF = 2e-2


def table(name: str) -> Capabilities:
    return targets.load(name).capabilities


@pytest.fixture(scope="module")
def everywhere(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output directory of one recipe that names every target. Heads are of a width that the CUDA operators take."""
    folder = tmp_path_factory.mktemp("everywhere")
    sizes = {"hidden_size": 64, "num_attention_heads": 2, "intermediate_size": 128}
    plain = {
        "model": str(make_checkpoint(folder / "model", "bert", "sequence-classification", **sizes)),
        "task": {"text-classification": {"max_length": SHAPE["sequence"]}},
        "data": {
            "source": str(write_pairs(folder / "data")),
            "calibrate": {"from": "train", "samples": 24},
        },
        "transforms": [],
        "corrections": [],
        # A random model may have layers that would stay in float.
        "sensitivity": False,
        "targets": list(ALL),
        "shape": SHAPE,
        "measure": False,
    }
    runner.run(parse(plain), folder / "out", executor=inline.run)
    return folder / "out"


def onnx_of(out: Path, target: str) -> Path:
    return out / target / table(target).file


def run(path: Path, feeds: dict[str, np.ndarray]) -> np.ndarray:
    """Logits of a file on ONNX Runtime's CPU, nothing optimized."""
    settings = ort.SessionOptions()
    settings.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    settings.log_severity_level = 4
    session = ort.InferenceSession(str(path), settings, providers=[onnxruntime.CPU])
    return session.run(["logits"], {i.name: feeds[i.name] for i in session.get_inputs()})[0]


FEEDS = batch([16, 9])
# The CUDA form has operators that no CPU computes.
COMPUTED = [name for name in ALL if name != "ort-cuda"]


# --- one recipe for all


def test_one_capture_and_one_calibration_serve_all_targets(everywhere: Path) -> None:
    stages = [
        folder.name.partition("-")[0] for folder in (everywhere / ".octobert" / "store").iterdir()
    ]
    assert {name: stages.count(name) for name in ("capture", "observe", "calibrate")} == {
        "capture": 1,
        "observe": 1,
        "calibrate": 1,
    }
    assert stages.count("package") == len(ALL)


@pytest.mark.parametrize("target", ALL)
def test_every_file_passes_the_linter_of_its_target(everywhere: Path, target: str) -> None:
    found = linter.lint(onnx_of(everywhere, target), table(target))
    assert [one.text for one in found.findings if one.severity == "refused"] == []
    # The CUDA form has no plain products left; everywhere else the twelve linear layers are integers at least.
    assert found.products == 0 or target == "ort-cuda" or found.integer >= 12


@pytest.mark.parametrize("target", COMPUTED)
def test_every_file_follows_the_float_model(everywhere: Path, target: str) -> None:
    expected = run(everywhere / target / "onnx" / "model.onnx", FEEDS)
    ours = run(onnx_of(everywhere, target), FEEDS)
    assert 1e-5 < np.abs(ours - expected).max() / np.abs(expected).max() < 0.25


@pytest.mark.parametrize(
    "target", [name for name in ALL if table(name).shapes in ("fixed", "either")]
)
def test_fixed_files_have_no_free_axis(everywhere: Path, target: str) -> None:
    graph = ir.load(onnx_of(everywhere, target)).graph
    for value in graph.inputs:
        assert value.shape.numpy() == (SHAPE["batch"], SHAPE["sequence"])
    assert all(value.shape.is_static() for value in graph.outputs)
    assert not [node.op_type for node in graph if node.op_type in ("Shape", "Range", "Size")]


# --- what each target's files are like


def test_tensorrt_rtx_has_the_graph_of_tensorrt_and_a_profile_of_its_own(everywhere: Path) -> None:
    rtx, other = (onnx_of(everywhere, name) for name in ("tensorrt-rtx", "tensorrt"))
    assert rtx.read_bytes() == other.read_bytes()
    assert ir.load(rtx).opset_imports[""] >= float16.OPSET
    profile = json.loads((rtx.parent / "provider_options.json").read_text())
    assert {name: text.split(",")[0] for name, text in profile.items()} == {
        "nv_profile_min_shapes": "input_ids:1x1",
        "nv_profile_opt_shapes": "input_ids:2x16",
        "nv_profile_max_shapes": "input_ids:2x16",
    }
    assert table("tensorrt-rtx").status == "structurally checked, not run"
    assert not targets.load("tensorrt-rtx").probe().available


def test_tensorrt_has_float_weights_behind_pairs_and_a_profile(everywhere: Path) -> None:
    path = onnx_of(everywhere, "tensorrt")
    graph = ir.load(path).graph
    pairs = [node for node in graph if node.op_type == "QuantizeLinear"]
    assert all(np.all(operators.const_array(node.inputs[2]) == 0) for node in pairs)
    weights = [node for node in pairs if operators.const_array(node.inputs[0]) is not None]
    assert len(weights) == 14
    assert {str(node.inputs[0].dtype) for node in graph if node.op_type == "MatMul"} == {"FLOAT16"}
    script = (path.parent / "build.sh").read_text()
    assert "--stronglyTyped" in script
    assert "--maxShapes=input_ids:2x16,attention_mask:2x16,token_type_ids:2x16" in script
    assert "--int8 " not in script
    options = json.loads((path.parent / "provider_options.json").read_text())
    assert (
        options["trt_profile_min_shapes"] == "input_ids:1x1,attention_mask:1x1,token_type_ids:1x1"
    )


def test_qnn_has_16_bit_activations_one_scale_a_weight_and_gemm(everywhere: Path) -> None:
    path = onnx_of(everywhere, "qnn")
    model = ir.load(path)
    assert npu.pair_types(model) == {"activation_dtype": "QUInt16", "weight_dtype": "QUInt8"}
    counted = [node.op_type for node in model.graph]
    assert counted.count("Gemm") == 14
    # Left are the two products of each attention.
    assert counted.count("MatMul") == 4
    for node in model.graph:
        if node.op_type == "DequantizeLinear":
            assert operators.const_array(node.inputs[1]).size == 1
    settings = json.loads((path.parent / "session.json").read_text())
    assert settings["write_context"]["ep.context_enable"] == "1"
    assert model.graph.opset_imports[""] == 21


def test_qnn_takes_a_float_graph_with_the_gelu_of_onnx(everywhere: Path, tmp_path: Path) -> None:
    """Float graphs are in an older opset than GELU."""
    float_graph = onnx_of(everywhere, "ort-cpu").with_name("model.onnx")
    qnn.export(float_graph, tmp_path, ExportOptions(shape=StaticShape(batch=1, sequence=16)))
    written = tmp_path / "onnx" / "model_quantized.onnx"
    assert [node.domain for node in ir.load(written).graph if node.op_type == "Gelu"] == ["", ""]
    assert linter.lint(written, qnn.CAPABILITIES).passes


def test_vitisai_has_its_metadata_and_onnx_runtimes_own_pairs(everywhere: Path) -> None:
    model = ir.load(onnx_of(everywhere, "vitisai"))
    assert model.metadata_props["activation_dtype"] == "QUInt16"
    assert model.metadata_props["weight_dtype"] == "QInt8"
    assert model.metadata_props["quant_type"] == "OnnxStaticQuantization"
    assert json.loads(model.metadata_props["architectures"]) == ["BertForSequenceClassification"]
    assert model.metadata_props["model_type"] == "bert"
    assert model.graph.opset_imports[""] <= 20
    pairs = [node for node in model.graph if node.op_type in ("QuantizeLinear", "DequantizeLinear")]
    assert {node.domain for node in pairs} == {"com.microsoft"}
    counted = [node.op_type for node in model.graph]
    assert counted.count("Gelu") == 2
    assert "Erf" not in counted


def test_migraphx_has_opset_19_and_float16(everywhere: Path) -> None:
    model = ir.load(onnx_of(everywhere, "migraphx"))
    assert model.graph.opset_imports[""] == 19
    assert "FLOAT16" in {str(value.dtype) for value in model.graph.initializers.values()}


def test_directml_has_uint8_activations_and_no_operator_between_pairs(everywhere: Path) -> None:
    """All pairs end in products with weights: others would become operators whose scales are float32."""
    model = ir.load(onnx_of(everywhere, "ort-dml"))
    assert float16.OPSET <= model.graph.opset_imports[""] <= 20
    assert npu.pair_types(model) == {"activation_dtype": "QUInt8", "weight_dtype": "QInt8"}
    pairs = [node for node in model.graph if node.op_type == "DequantizeLinear"]
    assert {reader.op_type for node in pairs for reader in operators.readers(node.outputs[0])} == {
        "MatMul"
    }
    products = [node for node in model.graph if node.op_type == "MatMul"]
    quantized = [
        node for node in products if operators.producer(node.inputs[1], "DequantizeLinear")
    ]
    assert len(quantized) == 12
    assert {str(node.inputs[0].dtype) for node in products} == {"FLOAT16"}
    assert not [
        reader
        for node in quantized
        for reader in operators.readers(node.outputs[0])
        if reader.op_type == "QuantizeLinear"
    ]
    assert table("ort-dml").status == "structurally checked, not run"


def test_sessions_of_directml_are_as_its_provider_demands(everywhere: Path, monkeypatch) -> None:
    target = targets.load("ort-dml")
    monkeypatch.setattr(ort_dml, "_PROVIDER", onnxruntime.Provider(onnxruntime.CPU))
    tuned = {
        "enable_mem_pattern": True,
        "execution_mode": "ORT_PARALLEL",
        "session.set_denormal_as_zero": True,
    }
    options = SessionOptions(streams=4, threads=1, runtime_options=tuned)
    path = onnx_of(everywhere, "ort-dml").with_name("model.onnx")
    session = target.open_session(path, options)
    settings = session._free.get().get_session_options()
    assert not settings.enable_mem_pattern
    assert settings.execution_mode == ort.ExecutionMode.ORT_SEQUENTIAL
    # One call at a time: the session is taken, and there is no other.
    assert (session.streams, session._free.empty()) == (1, True)
    assert not {"enable_mem_pattern", "execution_mode"} & set(target.runtime_options)


def test_the_npu_gets_an_ir_of_one_shape_that_computes_the_same(everywhere: Path) -> None:
    from octobert.targets.runtimes import openvino

    target = targets.load("openvino-npu")
    path = target.model_file(everywhere / "openvino-npu")
    check(path.with_suffix(".onnx"))
    session = StaticShapeSession(openvino.OpenvinoSession(path, SessionOptions(), "CPU"))
    feeds = batch([9, 7, 3, 12, 16, 5, 8, 14, 16, 6, 11])
    # The graph before its shape was fixed, on the same runtime: 8-bit products saturate there on some CPUs, and not in others.
    plans = (everywhere / ".octobert" / "store").glob("quantize-*/plan.json")
    plan = next(path for path in plans if json.loads(path.read_text())["target"] == "openvino-npu")
    free = openvino.OpenvinoSession(plan.with_name("model_quantized.onnx"), SessionOptions(), "CPU")
    floats = openvino.OpenvinoSession(
        everywhere / "openvino-npu" / "onnx" / "model.onnx", SessionOptions(), "CPU"
    )
    # OpenVINO fuses a graph of one shape into other kernels, which sum in another order.
    assert_same_rounding(
        session.run(feeds)["logits"], free.run(feeds)["logits"], floats.run(feeds)["logits"]
    )


def test_rows_longer_than_the_shape_are_refused(golden, everywhere: Path) -> None:
    from octobert.targets.runtimes import openvino

    path = targets.load("openvino-npu").model_file(everywhere / "openvino-npu")
    session = StaticShapeSession(openvino.OpenvinoSession(path, SessionOptions(), "CPU"))
    with golden.raises(TargetError):
        session.run(batch([17]))


def test_batches_outside_of_a_profile_run_in_parts_and_long_rows_are_refused(everywhere) -> None:
    path = onnx_of(everywhere, "tensorrt")
    opened = onnxruntime.OrtSession(path, SessionOptions(), onnxruntime.CPU)
    ran: list[tuple[int, ...]] = []

    class Watched(onnxruntime.OrtSession):
        def __init__(self) -> None:
            vars(self).update(vars(opened))

        def run(self, feeds):
            ran.append(feeds["input_ids"].shape)
            return super().run(feeds)

    session = tensorrt.within_profile(Watched(), path)
    feeds = batch([9, 7, 3, 12, 5])
    within = session.run(feeds)["logits"]
    # Rows are not filled up: the profile begins at one row.
    assert ran == [(2, 12), (2, 12), (1, 12)]
    np.testing.assert_allclose(within, opened.run(feeds)["logits"], atol=HALF)
    with pytest.raises(
        TargetError, match=r"longer than the model's shape .*17 tokens.* at most 16"
    ):
        session.run(batch([17]))


@pytest.mark.parametrize("text", ["", "[]", "[" * 100_000])
def test_a_profile_that_cannot_be_read_is_a_sentence(tmp_path: Path, text: str) -> None:
    (tmp_path / "provider_options.json").write_text(text)
    with pytest.raises(ModelError, match=r"provider_options\.json (is not JSON|holds no object)"):
        tensorrt.read_profile(tmp_path / "model.onnx")


def test_a_profile_holds_what_is_timed_and_evaluated(everywhere: Path, tmp_path: Path) -> None:
    report = json.loads((everywhere / "report.json").read_text())
    recipe = {key: report["recipe"][key] for key in ("model", "data")}
    task = {"text-classification": {"max_length": 24}}

    def shape_of(target: str, **changes: object):
        plain = {**recipe, "task": task, "targets": [target], **changes}
        return resolve(parse(plain)).targets[0].shape

    timed = {"batch": [1, 64], "sequence": ["data", 32]}
    assert shape_of("tensorrt", benchmark=timed) == StaticShape(batch=64, sequence=32)
    assert shape_of("tensorrt", benchmark={"batch": [4], "sequence": ["data"]}) == StaticShape(
        batch=4, sequence=24
    )
    assert shape_of("tensorrt", shape=SHAPE | {"sequence": 32}) == StaticShape(batch=2, sequence=32)
    # One file takes all lengths, so there are no others beside it.
    several = SHAPE | {"sequence": 32, "shorter": [16, 24]}
    assert shape_of("tensorrt", shape=several) == StaticShape(batch=2, sequence=32)
    fixed = StaticShape(batch=1, sequence=24, shorter="auto")
    assert shape_of("migraphx", benchmark=timed) == fixed
    assert shape_of("ort-cpu", benchmark=timed) is None
    assert shape_of("openvino-cpu", shape=SHAPE | {"sequence": 32}) is None


def test_an_add_before_a_norm_is_rounded_for_migraphx(manifest: PackageManifest) -> None:
    sites = tuple(decision.site for decision in manifest.plan.decisions)
    method = Static(placement="tensorrt")
    plan = method.plan(sites, manifest.ranges, table("migraphx"))
    capability.check(plan, table("migraphx"))
    adds = [site for site, _ in plan.quantized if site.role.startswith("residual.")]
    assert len(adds) >= 4


def test_a_fixed_session_pads_cuts_and_puts_together(everywhere: Path) -> None:
    path = onnx_of(everywhere, "qnn")
    session = StaticShapeSession(onnxruntime.OrtSession(path, SessionOptions(), onnxruntime.CPU))
    feeds = batch([9, 7, 3])
    whole = session.run(feeds)["logits"]
    assert whole.shape == (3, 2)
    for row in range(3):
        alone = session.run({name: array[row : row + 1] for name, array in feeds.items()})["logits"]
        np.testing.assert_allclose(alone[0], whole[row], atol=SUM_ORDER)


# --- the linter


def changed(path: Path, folder: Path, change: Callable[[onnx.ModelProto], None]) -> Path:
    model = onnx.load(path)
    change(model)
    onnx.save(model, folder / "changed.onnx")
    return folder / "changed.onnx"


def weights_of(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    constants = {one.name for one in model.graph.initializer}
    return [
        n for n in model.graph.node if n.op_type == "DequantizeLinear" and n.input[0] in constants
    ]


def activations_of(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    constants = {one.name for one in model.graph.initializer}
    made = {
        n.output[0]
        for n in model.graph.node
        if n.op_type == "QuantizeLinear" and n.input[0] not in constants
    }
    return [n for n in model.graph.node if n.op_type == "DequantizeLinear" and n.input[0] in made]


def set_constant(model: onnx.ModelProto, name: str, array: np.ndarray) -> None:
    for one in model.graph.initializer:
        if one.name == name:
            one.CopyFrom(onnx.numpy_helper.from_array(array, name))


def opset(number: int) -> Callable[[onnx.ModelProto], None]:
    def change(model: onnx.ModelProto) -> None:
        model.opset_import[0].version = number

    return change


def scale(numbers: float) -> Callable[[onnx.ModelProto], None]:
    def change(model: onnx.ModelProto) -> None:
        name = activations_of(model)[3].input[1]
        set_constant(model, name, np.array(numbers, dtype=np.float32))

    return change


def zero_point(model: onnx.ModelProto) -> None:
    name = activations_of(model)[3].input[2]
    set_constant(model, name, np.array(3, dtype=np.int8))


def channels(model: onnx.ModelProto) -> None:
    node = weights_of(model)[2]
    array = next(
        onnx.numpy_helper.to_array(one)
        for one in model.graph.initializer
        if one.name == node.input[0]
    )
    set_constant(model, node.input[1], np.full(array.shape[1], 0.01, dtype=np.float32))
    set_constant(model, node.input[2], np.full(array.shape[1], 128, dtype=array.dtype))


def wrong_axis(model: onnx.ModelProto) -> None:
    for attribute in weights_of(model)[2].attribute:
        if attribute.name == "axis":
            attribute.i = 0


def bias(model: onnx.ModelProto) -> None:
    model.graph.initializer.extend(
        [
            helper.make_tensor("b.q", TensorProto.INT32, [2], [1, 2]),
            helper.make_tensor("b.s", TensorProto.FLOAT, [], [0.1]),
        ]
    )
    model.graph.node.append(
        helper.make_node("DequantizeLinear", ["b.q", "b.s"], ["b"], name="bias")
    )


def operator(op_type: str, domain: str = "") -> Callable[[onnx.ModelProto], None]:
    def change(model: onnx.ModelProto) -> None:
        outputs = ["new.0", "new.1", "new.2"][: 3 if op_type == "DynamicQuantizeLinear" else 1]
        value = next(n.output[0] for n in model.graph.node if n.op_type == "LayerNormalization")
        model.graph.node.append(
            helper.make_node(op_type, [value], outputs, name="planted", domain=domain)
        )
        if domain:
            model.opset_import.append(helper.make_opsetid(domain, 1))

    return change


def constant(number: float, kind: int = TensorProto.FLOAT) -> Callable[[onnx.ModelProto], None]:
    def change(model: onnx.ModelProto) -> None:
        model.graph.initializer.append(helper.make_tensor("planted", kind, [1], [number]))

    return change


def free_axis(model: onnx.ModelProto) -> None:
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "sequence"


@pytest.mark.parametrize(
    ("target", "change", "rule", "words"),
    [
        ("tensorrt", opset(23), "opset", "the file has opset 23, but tensorrt takes 13 to 21"),
        ("migraphx", opset(20), "opset", "migraphx takes 13 to 19"),
        (
            "tensorrt",
            zero_point,
            "activation",
            "takes symmetric int8 or symmetric float8e4m3 activations, not asymmetric int8",
        ),
        ("tensorrt", bias, "bias", "biases that are int32"),
        (
            "tensorrt",
            operator("DynamicQuantizeLinear"),
            "operator",
            "does not support DynamicQuantizeLinear",
        ),
        (
            "tensorrt",
            operator("FastGelu", "com.microsoft"),
            "domain",
            "does not support com.microsoft.FastGelu",
        ),
        ("qnn", channels, "channels", "qnn takes one scale per weight"),
        ("qnn", scale(1e-10), "range", "narrower than qnn's minimum, 0.0001"),
        ("qnn", constant(-3.4e38), "constant", "which qnn treats as minus infinity"),
        ("qnn", free_axis, "shape", "qnn needs a static shape"),
        ("vitisai", free_axis, "shape", "vitisai needs a static shape"),
        (
            "openvino-cpu",
            wrong_axis,
            "channels",
            r"per output channel \(axis 1\), not per index of axis 0",
        ),
        ("openvino-cpu", scale(0.0), "scale", "zero, negative or not a number"),
        ("openvino-cpu", scale(float("nan")), "scale", "zero, negative or not a number"),
        ("openvino-cpu", constant(1.0, TensorProto.DOUBLE), "type", "does not take float64"),
    ],
)
def test_a_planted_violation_is_found(
    everywhere: Path,
    tmp_path: Path,
    target: str,
    change: Callable[[onnx.ModelProto], None],
    rule: str,
    words: str,
) -> None:
    import re

    path = onnx_of(everywhere, target)
    assert rule not in {
        one.rule for one in linter.lint(path, table(target)).findings if one.severity == "refused"
    }
    found = linter.lint(changed(path, tmp_path, change), table(target))
    refused = [one for one in found.findings if one.severity == "refused"]
    assert [one.rule for one in refused] == [rule]
    assert re.search(words, refused[0].text), refused[0].text
    assert refused[0].fix
    assert not found.passes


def test_products_in_float_are_named_with_the_reason(everywhere: Path) -> None:
    """The file for the NPU's symmetric Q and K, on ONNX Runtime: their product is dequantized there."""
    found = linter.lint(onnx_of(everywhere, "tensorrt"), table("ort-cpu"))
    texts = {one.text for one in found.findings if one.severity == "float"}
    assert "MatMul runs in float: symmetric int8 activations are dequantized first" in texts
    assert found.integer == 0
    ours = linter.lint(onnx_of(everywhere, "ort-cpu"), table("ort-cpu"))
    assert ours.integer == 12
    reasons = {one.text: one.count for one in ours.findings if one.severity == "float"}
    assert reasons == {"MatMul runs in float: neither input is quantized": 6}


def test_a_file_that_is_no_model_is_refused(golden, tmp_path: Path, everywhere: Path) -> None:
    with pytest.raises(ModelError, match=r"there is no such file"):
        linter.lint(tmp_path / "none.onnx", table("ort-cpu"))
    (tmp_path / "text.onnx").write_text("no model")
    with pytest.raises(ModelError, match=r"not a complete ONNX model"):
        linter.lint(tmp_path / "text.onnx", table("ort-cpu"))
    outside = tmp_path / "outside.onnx"
    ir.save(ir.load(onnx_of(everywhere, "ort-cpu")), outside, external_data="outside.onnx.data")
    assert linter.lint(outside, table("ort-cpu")).passes
    (tmp_path / "outside.onnx.data").unlink()
    with golden.raises(ModelError):
        linter.lint(outside, table("ort-cpu"))


def test_check_as_a_command(everywhere: Path, tmp_path: Path) -> None:
    done = octobert("check", str(everywhere / "qnn"))
    assert done.returncode == 0, done.stderr
    assert "qnn accepts the file" in done.stdout
    path = str(onnx_of(everywhere, "ort-cpu"))
    refused = octobert("check", path, "--target", "tensorrt,ort-cpu", "--json")
    assert refused.returncode == PlanError.exit_code
    first, second = json.loads(refused.stdout)
    assert (first["passes"], second["passes"]) == (False, True)
    assert 'did you mean "tensorrt"' in octobert("check", path, "--target", "tensort").stderr
    assert "ort-cpu accepts the file" in octobert("check", path).stdout


def test_fuse_as_a_command(everywhere: Path, tmp_path: Path) -> None:
    source = everywhere / "ort-cpu" / "onnx" / "model.onnx"
    done = octobert("fuse", source, "--out", tmp_path / "fused.onnx", "--json")
    assert done.returncode == 0, done.stderr
    counts = json.loads(done.stdout)["counts"]
    assert counts == {"BiasGelu": 2, "MultiHeadAttention": 2, "SkipLayerNormalization": 4}
    np.testing.assert_allclose(
        run(tmp_path / "fused.onnx", FEEDS), run(source, FEEDS), atol=SUM_ORDER
    )
    model = ir.load(source)
    model.metadata_props.clear()
    operators.save(model, tmp_path / "foreign.onnx")
    foreign = octobert(
        "fuse", tmp_path / "foreign.onnx", "--out", tmp_path / "again.onnx", "--json"
    )
    assert json.loads(foreign.stdout)["counts"] == counts


# --- plans that break rules


@pytest.fixture(scope="module")
def manifest(everywhere: Path) -> PackageManifest:
    return PackageManifest.model_validate_json((everywhere / "ort-cpu" / PACKAGE_FILE).read_text())


def plan_for_tensorrt(manifest: PackageManifest, **options: object) -> QuantPlan:
    sites = tuple(decision.site for decision in manifest.plan.decisions)
    return Static(**{"placement": "matmul", **options}).plan(
        sites, manifest.ranges, table("tensorrt")
    )


def test_a_plan_is_repaired_and_says_so(
    golden, manifest: PackageManifest, everywhere: Path, tmp_path: Path
) -> None:
    target = table("tensorrt")
    broken = plan_for_tensorrt(manifest, activations="uint8", symmetric=False, embeddings="int8")
    with golden.raises(PlanError):
        capability.check(broken, target)
    mended = capability.repaired(broken, target)
    capability.check(mended, target)
    for before, after in zip(broken.decisions, mended.decisions, strict=True):
        if before == after:
            continue
        assert after.reason.startswith("repaired: ")
        if after.site.role == "embedding.weight":
            assert after.quantizer is None
        else:
            bound = max(-before.quantizer.low, before.quantizer.high)
            assert (after.quantizer.dtype, after.quantizer.low, after.quantizer.high) == (
                "int8",
                -bound,
                bound,
            )
    assert (
        sum(
            before != after
            for before, after in zip(broken.decisions, mended.decisions, strict=True)
        )
        == 12 + 1
    )
    model = ir.load(everywhere / "ort-cpu" / "onnx" / "model.onnx")
    qdq.write(model, mended)
    float16.convert_(model, mended.float_parts)
    operators.save(model, tmp_path / "mended.onnx")
    assert linter.lint(tmp_path / "mended.onnx", target).passes


def test_repairs_of_each_kind(manifest: PackageManifest) -> None:
    qnn = table("qnn")
    sites = tuple(decision.site for decision in manifest.plan.decisions)
    plan = Static(placement="matmul").plan(sites, manifest.ranges, table("ort-cpu"))
    narrow = plan.decisions[0]
    activation = next(d for d in plan.decisions if d.site.role == "linear.input")
    narrow = activation.model_copy(
        update={"quantizer": activation.quantizer.model_copy(update={"low": 0.0, "high": 1e-6})}
    )
    weight = next(d for d in plan.decisions if d.site.role == "linear.weight")
    mended = capability.repaired(
        plan.model_copy(update={"decisions": (narrow, weight), "float_parts": "bfloat16"}), qnn
    )
    assert mended.float_parts == "float32"
    assert mended.decisions[0].quantizer.high == pytest.approx(1e-4)
    assert "ranges of at least 0.0001" in mended.decisions[0].reason
    assert mended.decisions[1].quantizer.axis is None
    assert "one scale each" in mended.decisions[1].reason
    capability.check(mended, qnn)


def test_strict_is_a_part_of_a_recipe(checkpoint, pairs: Path, tmp_path: Path) -> None:
    plain = {
        "model": str(checkpoint("bert")),
        "task": {"text-classification": {"max_length": 16}},
        "data": {"source": str(pairs), "calibrate": {"from": "train", "samples": 8}},
        "quantize": {"static": {"activations": "uint8", "symmetric": False}},
        "transforms": [],
        "corrections": [],
        "targets": ["tensorrt"],
        "measure": False,
    }
    with pytest.raises(PlanError, match=r"not asymmetric uint8.*repair: true"):
        runner.run(parse(plain), tmp_path / "out", executor=inline.run)
    assert not (tmp_path / "out" / "tensorrt").exists()
    report = runner.run(parse({**plain, "repair": True}), tmp_path / "out", executor=inline.run)
    assert any(one.reason.startswith("repaired: ") for one in report.plans["tensorrt"].decisions)


def test_a_shape_that_does_not_fit_is_refused(
    golden, checkpoint, pairs: Path, tmp_path: Path
) -> None:
    plain = {
        "model": str(checkpoint("bert")),
        "task": {"text-classification": {"max_length": 16}},
        "data": str(pairs),
        "targets": ["qnn"],
    }
    for sequence in (8, 4096):
        with golden.raises(RecipeError):
            runner.run(
                parse({**plain, "shape": {"sequence": sequence}}),
                tmp_path / "out",
                executor=inline.run,
            )


def test_shape_and_repair_on_the_command_line(pairs: Path, checkpoint) -> None:
    given = (
        "quantize",
        checkpoint("bert"),
        "--task",
        "text-classification",
        "--data",
        pairs,
        "--target",
        "qnn",
        "--out",
        "out",
    )
    wrong = octobert(*given, "--shape", "128")
    assert wrong.returncode == RecipeError.exit_code
    assert "--shape is not BATCHxTOKENS (got 128, expected such as 1x128)" in wrong.stderr
    listed = octobert(*given, "--shape", "1x64", "--repair", "--dry-run")
    assert "repair: true" in listed.stderr
    assert "sequence: 64" in listed.stderr


# --- sessions


def test_a_provider_that_is_not_there_is_no_silent_fallback(golden, everywhere: Path) -> None:
    path = onnx_of(everywhere, "ort-cpu")
    with golden.raises(TargetError):
        onnxruntime.OrtSession(path, SessionOptions(), "CUDAExecutionProvider")


def test_the_page_of_targets_has_a_table_of_each() -> None:
    """The site's page is made of the tables when it is built."""
    page = targets_page.page_of([table(name) for name in ALL])
    titles = [line.removeprefix("## ") for line in page.splitlines() if line.startswith("## ")]
    assert titles == sorted(ALL)
    assert page.count("\n| status |") == len(ALL)


def test_a_runtime_that_cannot_be_imported_is_a_sentence(tmp_path, monkeypatch) -> None:
    (tmp_path / "broken_runtime.py").write_text(
        "raise ImportError('lib.so: failed to map segment\\nfrom shared object')"
    )
    monkeypatch.syspath_prepend(tmp_path)
    found = unavailable("broken_runtime", "pip install broken-runtime")
    assert found is not None
    assert (
        found.missing
        == "the package broken_runtime cannot be imported: lib.so: failed to map segment from shared object"
    )
    assert (
        unavailable("no_such_runtime", "pip install no-such-runtime").install
        == "pip install no-such-runtime"
    )
