"""EPContext files: their content, what is refused, and that they run, if a Python with the provider is configured."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from octobert.core.errors import ModelError
from octobert.graph import operators
from octobert.graph.passes import npu
from octobert.targets import openvino_npu
from tests.support.checkpoints import batch
from tests.support.epcontext import check

openvino = pytest.importorskip("openvino")

# A Python that has onnxruntime-openvino: it cannot share an environment with onnxruntime.
PYTHON = os.environ.get("OCTOBERT_ORT_OPENVINO_PYTHON")
SIZE = (2, 16)
# The same IR in another release of OpenVINO: float32 sums in another order.
SAME = 1e-5
RUN = """
import sys
import numpy as np
import onnxruntime as ort
session = ort.InferenceSession(sys.argv[1], providers=[("OpenVINOExecutionProvider", {"device_type": "CPU"})])
assert "OpenVINOExecutionProvider" in session.get_providers(), session.get_providers()
np.save(sys.argv[3], session.run(None, dict(np.load(sys.argv[2])))[0])
"""
# Wheels of the provider for Linux come without OpenVINO's reader of IRs.
NO_READER = "Available frontends: onnx"


@pytest.fixture(scope="module")
def xml(captured, tmp_path_factory) -> Path:
    """The IR of a tiny classifier with static shapes."""
    folder = tmp_path_factory.mktemp("ir")
    operators.save(captured("bert", "sequence-classification").model, folder / "dynamic.onnx")
    model = ir.load(folder / "dynamic.onnx")
    npu.make_static_(model, batch=SIZE[0], sequence=SIZE[1])
    operators.save(model, folder / "fixed.onnx")
    for name in ("dynamic", "fixed"):
        read = openvino.Core().read_model(str(folder / f"{name}.onnx"))
        openvino.save_model(read, str(folder / f"{name}.xml"), compress_to_fp16=False)
    return folder / "fixed.xml"


@pytest.fixture
def written(xml, tmp_path) -> Path:
    return written_for(xml, tmp_path)


def written_for(xml: Path, folder: Path) -> Path:
    """The EPContext file for a copy of an IR that is called `model.xml`."""
    for suffix in (".xml", ".bin"):
        shutil.copyfile(xml.with_suffix(suffix), folder / f"model{suffix}")
    openvino_npu.write_context(folder / "model.xml")
    return folder / "model.onnx"


def test_the_file_is_what_the_provider_expects(written) -> None:
    model = onnx.load(written)
    assert model.ir_version == 8
    assert model.graph.name == "EP_Context_Model"
    assert {opset.domain: opset.version for opset in model.opset_import} == {
        "com.microsoft.nchwc": 1,
        "": 11,
        "ai.onnx.ml": 5,
        "com.ms.internal.nhwc": 11,
        "ai.onnx.training": 1,
        "ai.onnx.preview.training": 1,
        "com.microsoft.experimental": 1,
        "com.microsoft": 1,
        "org.pytorch.aten": 1,
    }
    (node,) = model.graph.node
    assert (node.op_type, node.domain, node.name) == ("EPContext", "com.microsoft", "ContextNode")
    assert {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute} == {
        "embed_mode": 0,
        "ep_cache_context": b"model.xml",
        "ep_sdk_version": openvino.__version__.split("-")[0].encode(),
        "main_context": 1,
        "max_size": 0,
        "source": b"OpenVINOExecutionProvider",
        "DeviceClass": b"NPU",
    }
    names = ["input_ids", "attention_mask", "token_type_ids"]
    assert [v.name for v in model.graph.input] == list(node.input) == names
    assert [v.name for v in model.graph.output] == list(node.output) == ["logits"]
    shapes = [
        [d.dim_value for d in v.type.tensor_type.shape.dim]
        for v in [*model.graph.input, *model.graph.output]
    ]
    assert shapes == [[2, 16]] * 3 + [[2, 2]]
    kinds = [v.type.tensor_type.elem_type for v in [*model.graph.input, *model.graph.output]]
    assert kinds == [onnx.TensorProto.INT64] * 3 + [onnx.TensorProto.FLOAT]
    onnx.checker.check_model(str(written))
    check(written)


def test_dynamic_axes_stay_dynamic(xml, tmp_path) -> None:
    path = written_for(xml.with_name("dynamic.xml"), tmp_path)
    check(path)
    (value, *_) = onnx.load(path).graph.input
    assert [d.HasField("dim_value") for d in value.type.tensor_type.shape.dim] == [False, False]


def test_a_file_that_was_renamed_is_an_error(golden, written) -> None:
    moved = written.rename(written.with_name("other.onnx"))
    with golden.raises(ModelError):
        check(moved)


def test_an_ordinary_model_is_not_an_epcontext_file(golden, xml) -> None:
    with golden.raises(ModelError):
        check(xml.with_suffix(".onnx"))


def changed(path: Path, name: str, value: object) -> None:
    model = ir.load(path)
    model.graph[0].attributes[name] = (
        ir.AttrString(name, value) if isinstance(value, str) else ir.AttrInt64(name, value)
    )
    ir.save(model, path)


@pytest.mark.parametrize(
    ("name", "value"),
    [("embed_mode", 1), ("source", "QNNExecutionProvider"), ("DeviceClass", "TPU")],
)
def test_a_changed_attribute_is_an_error(golden, written, name, value) -> None:
    changed(written, name, value)
    with golden.raises(ModelError):
        check(written)


def test_another_ir_beside_the_file_is_an_error(golden, written, xml) -> None:
    for suffix in (".xml", ".bin"):
        other = xml.with_name(f"dynamic{suffix}")
        written.with_suffix(suffix).write_bytes(other.read_bytes())
    with golden.raises(ModelError):
        check(written)


@pytest.mark.skipif(
    PYTHON is None, reason="OCTOBERT_ORT_OPENVINO_PYTHON names no Python with onnxruntime-openvino"
)
def test_the_provider_gives_the_numbers_of_the_ir(written, xml, tmp_path) -> None:
    feeds = batch([16, 9])
    np.savez(tmp_path / "feeds.npz", **feeds)
    compiled = openvino.Core().compile_model(str(xml), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    theirs = compiled(feeds)[0]
    arguments = [str(written), str(tmp_path / "feeds.npz"), str(tmp_path / "logits.npy")]
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}
    done = subprocess.run(
        [str(PYTHON), "-c", RUN, *arguments],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    if NO_READER in done.stderr:
        # The provider passed the IR to OpenVINO.
        pytest.skip(f"{PYTHON}: its OpenVINO cannot read IRs")
    assert done.returncode == 0, done.stderr
    ours = np.load(tmp_path / "logits.npy")
    sys.stdout.write(f"largest difference {np.abs(ours - theirs).max():.1e}\n")
    assert np.abs(ours - theirs).max() <= SAME * np.abs(theirs).max()
