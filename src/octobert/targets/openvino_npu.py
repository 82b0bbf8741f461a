"""OpenVINO on Intel NPUs: one static shape, and the IR also as an EPContext node for ONNX Runtime's OpenVINO provider.

`openvino_model.onnx` has one EPContext node that refers to the IR. Applications that use ONNX Runtime open that file, and its
OpenVINO provider passes the IR to OpenVINO unchanged. Release 1.24 takes the node for an IR only if the IR lies beside the ONNX
file and has its name: `model.onnx`, `model.xml`, `model.bin`. The IR cannot be embedded in the node, because there is no place
for the weights and the provider takes embedded data for a compiled blob. The OpenVINO version in the node is information only;
it has to match for compiled blobs.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from xml.etree import ElementTree

import onnx_ir as ir

from octobert.core.errors import ModelError
from octobert.core.files import content_of
from octobert.core.plan import ATTENTION, HEAD, LINEAR
from octobert.core.session import ExportOptions, Session, SessionOptions, file_of
from octobert.graph import operators
from octobert.graph.passes import npu
from octobert.targets import openvino_cpu, openvino_gpu
from octobert.targets.runtimes import NO_OPTIONS, openvino
from octobert.targets.shared import files

CAPABILITIES = openvino_gpu.CAPABILITIES.but(
    name="openvino-npu",
    description="OpenVINO on Intel NPUs, also as EPContext for ONNX Runtime",
    device="Intel NPU",
    baseline_precisions=(),
    placement="matmul-scores",
    roles=(*LINEAR, *ATTENTION, *HEAD),
    shapes="fixed",
    static_lengths=False,
    formats=("onnx", "openvino", "encapsulated"),
    needs={"drivers": ("intel-npu",)},
)
RUNTIME_OPTIONS = NO_OPTIONS

Device = Literal["CPU", "GPU", "NPU"]

# Bytes at multiples of which constants begin in the file of an IR.
_ALIGNED = 64

SOURCE = "OpenVINOExecutionProvider"
OP_TYPE = "EPContext"
# The opset imports that ONNX Runtime writes into such files, in versions that every release with EPContext accepts.
_OPSETS = {
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
# Element types of inputs and outputs, as an IR names them.
_TYPES = {
    "I64": ir.DataType.INT64,
    "I32": ir.DataType.INT32,
    "FP32": ir.DataType.FLOAT,
    "FP16": ir.DataType.FLOAT16,
    "BF16": ir.DataType.BFLOAT16,
}


_DEVICE = openvino.OpenvinoDevice("NPU")
probe, model_file = _DEVICE.probe, openvino_cpu.model_file


def export(quantized: Path, folder: Path, options: ExportOptions) -> None:
    """Write the Q/DQ graph with a static shape, its IR, and an ONNX file with an EPContext node that refers to the IR."""
    path, file = files.write(quantized, folder, options, (npu.STATIC,)), model_file(folder)
    openvino_cpu.convert(path, file)
    for length in () if options.shape is None else options.shape.lengths[1:]:
        openvino_cpu.convert(file_of(path, length), file_of(file, length))
        share_weights(file_of(file, length), file)
    write_context(model_file(folder), model_file(folder).with_suffix(".onnx"), device="NPU")


def open_session(path: Path, options: SessionOptions) -> Session:
    """Compile an IR or an ONNX file, in float16 whatever `options` name: the device has no other float type."""
    return _DEVICE.open_session(path, options.replaced(precision="f16"))


def share_weights(xml: Path, longest: Path) -> None:
    """Let an IR read its constants from the file of another one, which gets those that it lacks; its own file is removed.

    Args:
        xml, longest: both IRs; those that OpenVINO has just written.
    """
    own, shared = xml.with_suffix(".bin"), longest.with_suffix(".bin")
    tree, others = ElementTree.parse(xml), ElementTree.parse(longest)
    places = {part: data.get("offset", "0") for data, part in _constants(others, shared)}
    with shared.open("ab") as file:
        for data, part in _constants(tree, own):
            if part not in places:
                file.write(b"\0" * (-file.tell() % _ALIGNED))
                places[part] = str(file.tell())
                file.write(part)
            data.set("offset", places[part])
    tree.write(xml, xml_declaration=True)
    own.unlink()


def _constants(ir_of: Any, weights: Path) -> Iterator[tuple[ElementTree.Element, bytes]]:
    """The constants of an IR: where it says where they are, and their bytes."""
    held = weights.read_bytes()
    for data in ir_of.iterfind("layers/layer[@type='Const']/data"):
        start, size = int(data.get("offset", 0)), int(data.get("size", 0))
        yield data, held[start : start + size]


@dataclass(frozen=True)
class Port:
    """An input or output of an IR; -1 in `shape` is a dynamic axis."""

    name: str
    dtype: ir.DataType
    shape: tuple[int, ...]


def write_context(xml: Path, out: Path, *, device: Device, sdk_version: str | None = None) -> None:
    """Write an EPContext file: an ONNX file of one node that refers to an IR.

    Args:
        xml: the IR; the `.bin` with its weights lies beside it.
        out: the `.onnx` file to write; the IR is copied beside it under the same name, unless it is there already.
        device: device that the file is meant for; where it runs is decided by the provider's options.
        sdk_version: OpenVINO version to record; by default the one in the IR.

    Raises:
        ModelError: the IR is incomplete, or an input or output has an unsupported type.
    """
    inputs, outputs, version = read_ports(xml)
    beside = out.with_suffix(".xml")
    out.parent.mkdir(parents=True, exist_ok=True)
    if beside.resolve() != xml.resolve():
        shutil.copyfile(xml, beside)
        shutil.copyfile(xml.with_suffix(".bin"), beside.with_suffix(".bin"))
    values = [_value(port) for port in inputs]
    attributes: dict[str, str | int] = {
        "embed_mode": 0,
        "ep_cache_context": beside.name,
        "ep_sdk_version": sdk_version or version,
        "main_context": 1,
        "max_size": 0,
        "source": SOURCE,
        "DeviceClass": device,
    }
    produced = [_value(port) for port in outputs]
    node = ir.node(
        OP_TYPE,
        values,
        attributes,
        domain=operators.MICROSOFT,
        outputs=produced,
        name="ContextNode",
    )
    graph = ir.Graph(
        values, node.outputs, nodes=[node], opset_imports=_OPSETS, name="EP_Context_Model"
    )
    operators.save(ir.Model(graph, ir_version=operators.LEAST_IR_VERSION), out)


def read_ports(xml: Path) -> tuple[list[Port], list[Port], str]:
    """Read inputs, outputs and the OpenVINO version of an IR from its `.xml` file.

    Raises:
        ModelError: a file is missing or not an IR, or an input or output has an unsupported type.
    """
    for path in (xml, xml.with_suffix(".bin")):
        if not path.is_file():
            raise ModelError(
                "a file of the IR is missing", where=str(path), fix="keep .xml and .bin together"
            )
    try:
        root = ElementTree.fromstring(content_of(xml))
    except ElementTree.ParseError as error:
        raise ModelError(
            "the IR is incomplete", where=str(xml), got=str(error), fix="convert the model again"
        ) from error
    layers = root.findall("layers/layer")
    if root.tag != "net" or not layers:
        raise ModelError(
            "the file is not an IR",
            where=str(xml),
            got=f"<{root.tag}>",
            expected="<net> with layers",
        )
    inputs = [
        _read(xml, layer, layer.find("output/port"))
        for layer in layers
        if layer.get("type") == "Parameter"
    ]
    outputs = [
        _read(xml, layer, layer.find("input/port"))
        for layer in layers
        if layer.get("type") == "Result"
    ]
    version = root.find("rt_info/info[@name='OpenVINO Runtime']")
    # 2026.4.1 of 2026.4.1-20426-87b1d5b5d3e-releases/2026/4.
    return (
        inputs,
        outputs,
        (version.get("value") or "").split("-")[0] if version is not None else "",
    )


def _read(xml: Path, layer: ElementTree.Element, port: ElementTree.Element | None) -> Port:
    """Read an input or output; its name is the first name of its tensor."""
    dtype = _TYPES.get(port.get("precision") or "") if port is not None else None
    if port is None or dtype is None:
        raise ModelError(
            "an input or output of the IR has an unsupported type",
            where=f"{xml}, layer {layer.get('name')}",
            got=str(port.get("precision") if port is not None else None),
            expected=", ".join(_TYPES),
        )
    names = port.get("names") or layer.get("output_names") or layer.get("name") or ""
    return Port(
        names.split(",")[0], dtype, tuple(int(dim.text or -1) for dim in port.findall("dim"))
    )


def _value(port: Port) -> ir.Value:
    return ir.Value(
        name=port.name,
        type=ir.TensorType(port.dtype),
        shape=ir.Shape([size if size >= 0 else None for size in port.shape]),
    )
