"""OpenVINO on Intel NPUs: one static shape, and the IR also as an EPContext node for ONNX Runtime's OpenVINO provider.

`openvino_model.onnx` has one EPContext node that refers to the IR. Applications that use ONNX Runtime open that file, and its
OpenVINO provider passes the IR to OpenVINO unchanged. Release 1.24 takes the node for an IR only if the IR lies beside the ONNX
file and has its name: `model.onnx`, `model.xml`, `model.bin`. The IR cannot be embedded in the node, because there is no place
for the weights and the provider takes embedded data for a compiled blob. The OpenVINO version in the node is information only;
it has to match for compiled blobs.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import onnx_ir as ir

from octobert.core.plan import ATTENTION, HEAD, LINEAR
from octobert.core.session import ExportOptions, Session, SessionOptions, file_of
from octobert.graph import operators
from octobert.graph.passes import npu
from octobert.targets import Target, openvino_cpu, openvino_gpu
from octobert.targets.runtimes import openvino
from octobert.targets.shared import files, ir_files

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


_DEVICE = openvino.OpenvinoDevice("NPU")


def export(quantized: Path, folder: Path, options: ExportOptions) -> None:
    """Write the Q/DQ graph with a static shape, its IR, and an ONNX file with an EPContext node that refers to the IR."""
    path, file = (
        files.write(quantized, folder, options, (npu.STATIC,)),
        openvino_cpu.model_file(folder),
    )
    openvino_cpu.convert(path, file)
    for length in () if options.shape is None else options.shape.lengths[1:]:
        openvino_cpu.convert(file_of(path, length), file_of(file, length))
        share_weights(file_of(file, length), file)
    write_context(file)


def open_session(path: Path, options: SessionOptions) -> Session:
    """Compile an IR or an ONNX file, in float16 whatever `options` name: the device has no other float type."""
    return _DEVICE.open_session(path, options.replaced(precision="f16"))


TARGET = Target(
    capabilities=CAPABILITIES,
    probe=_DEVICE.probe,
    export=export,
    open_session=open_session,
    model_file=openvino_cpu.model_file,
)


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


def write_context(xml: Path) -> None:
    """Write an EPContext file beside an IR, under its name: an ONNX file of one node that refers to it.

    Args:
        xml: the IR, as OpenVINO of this process wrote it; the `.bin` with its weights lies beside it.
    """
    import openvino as ov

    model = ir_files.model_at(ov.Core(), xml)
    inputs, outputs = ([_value(port) for port in ports] for ports in (model.inputs, model.outputs))
    attributes: dict[str, str | int] = {
        "embed_mode": 0,
        "ep_cache_context": xml.name,
        # 2026.4.1 of 2026.4.1-20426-87b1d5b5d3e-releases/2026/4.
        "ep_sdk_version": ov.get_version().split("-")[0],
        "main_context": 1,
        "max_size": 0,
        "source": SOURCE,
        "DeviceClass": "NPU",
    }
    node = ir.node(
        OP_TYPE,
        inputs,
        attributes,
        domain=operators.MICROSOFT,
        outputs=outputs,
        name="ContextNode",
    )
    graph = ir.Graph(inputs, outputs, nodes=[node], opset_imports=_OPSETS, name="EP_Context_Model")
    operators.save(ir.Model(graph, ir_version=operators.LEAST_IR_VERSION), xml.with_suffix(".onnx"))


def _value(port: Any) -> ir.Value:
    """An input or output of an IR as a value of an ONNX graph; an axis without a size is dynamic."""
    stated = ir_files.port_of(port)
    return ir.Value(
        name=stated.name,
        type=ir.TensorType(ir.DataType.from_numpy(np.dtype(stated.dtype))),
        shape=ir.Shape([size if size >= 0 else None for size in stated.shape or ()]),
    )
