"""Activations quantized per token by OpenVINO: the plan's group is in the files, and OpenVINO alone answers as our session does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from octobert.core.plan import GROUP_METADATA, Quantizer, QuantPlan
from octobert.core.session import SessionOptions
from octobert.quantization.methods import dynamic, weight_only
from octobert.targets import openvino_cpu
from octobert.targets.runtimes import openvino as runtime
from tests.support.checkpoints import batch
from tests.support.graphs import capabilities, ranges, written

openvino = pytest.importorskip("openvino")

# Of the tiny model: its layers are 32 and 64 wide.
NARROWEST = 32
# Two runs of the same file with the same settings.
SAME = 1e-6


def plans(bert_sites) -> dict[str, QuantPlan]:
    target = capabilities("openvino-cpu")
    empty = ranges({})
    return {
        "weights": weight_only.plan(bert_sites, empty, target, weight_only.Options()),
        "token": dynamic.plan(bert_sites, empty, target, dynamic.Options()),
        "small": dynamic.plan(bert_sites, empty, target, dynamic.Options(group=16)),
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
    session = openvino_cpu.open_session(path, SessionOptions())
    return session.run(batch([9, 5, 2]))["logits"]


@pytest.mark.parametrize(
    ("name", "group"), [("weights", "0"), ("token", str(NARROWEST)), ("small", "16")]
)
def test_the_files_say_the_group(files, name: str, group: str) -> None:
    """At most the width of the narrowest layer: OpenVINO leaves layers in float that are narrower than a group."""
    onnx, xml = files[name]
    assert ir.load(onnx).metadata_props.get(GROUP_METADATA, "0") == group
    assert runtime.group_of(openvino.Core().read_model(str(onnx))) == group
    assert runtime.group_of(openvino.Core().read_model(str(xml))) == group


@pytest.mark.parametrize("name", ["weights", "token", "small"])
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


def test_words_say_when_an_interval_is_computed() -> None:
    made = Quantizer(dtype="int8", symmetric=True, dynamic=True, group=128)
    assert made.when == " per token and 128 channels"
    assert Quantizer(dtype="uint8", symmetric=False, dynamic=True).when == " dynamic"
    assert Quantizer(dtype="uint8", symmetric=False).when == ""
