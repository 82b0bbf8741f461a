"""What ONNX Runtime's OpenVINO provider requires of an EPContext file."""

from __future__ import annotations

from pathlib import Path

import onnx_ir as ir

from octobert.core.errors import ModelError
from octobert.core.onnx_files import TensorInfo
from octobert.graph import operators
from octobert.targets.openvino_npu import OP_TYPE, SOURCE
from octobert.targets.shared import ir_files


def check(path: Path) -> None:
    """Check that ONNX Runtime's OpenVINO provider will accept an EPContext file.

    Raises:
        ModelError: it is not an EPContext file, or the inputs or outputs of the two differ.
    """
    import openvino

    graph = ir.load(path).graph
    nodes = [f"{node.domain}.{node.op_type}" for node in graph]
    if nodes != [f"{operators.MICROSOFT}.{OP_TYPE}"]:
        raise ModelError(
            "the file is not an EPContext file",
            where=str(path),
            got=f"{len(nodes)} nodes: {', '.join(nodes[:3])}",
            expected="one EPContext node",
        )
    attributes = {a.name: a.value for a in graph[0].attributes.values()}
    xml = path.with_suffix(".xml")
    required: dict[str, object] = {
        "embed_mode": 0,
        "ep_cache_context": xml.name,
        "main_context": 1,
        "source": SOURCE,
        "DeviceClass": "NPU",
    }
    for name, value in required.items():
        if attributes.get(name) != value:
            fix = (
                "export the model again instead of renaming files"
                if name == "ep_cache_context"
                else "export the model again"
            )
            raise ModelError(
                "the provider would reject the EPContext file",
                where=str(path),
                got=f"{name} = {attributes.get(name)}",
                expected=str(value),
                fix=fix,
            )
    model = ir_files.model_at(openvino.Core(), xml)
    for ours, theirs in ((graph.inputs, model.inputs), (graph.outputs, model.outputs)):
        got = ", ".join(str(port_of(value)) for value in ours)
        expected = ", ".join(str(ir_files.port_of(port)) for port in theirs)
        if got != expected:
            raise ModelError(
                "the EPContext file and its IR have different inputs or outputs",
                where=str(path),
                got=got,
                expected=expected,
                fix="export the model again",
            )


def port_of(value: ir.Value) -> TensorInfo:
    """A value of the graph as the IR describes it."""
    shape = [size if isinstance(size, int) else -1 for size in value.shape or ()]
    dtype = (value.dtype or ir.DataType.UNDEFINED).numpy().name
    return TensorInfo(name=str(value.name), dtype=dtype, shape=tuple(shape))
