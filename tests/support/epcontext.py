"""What ONNX Runtime's OpenVINO provider requires of an EPContext file."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import onnx_ir as ir

from octobert.core.errors import ModelError
from octobert.graph import operators
from octobert.targets.openvino_npu import OP_TYPE, SOURCE, Device, Port, read_ports


def check(path: Path) -> None:
    """Check that ONNX Runtime's OpenVINO provider will accept an EPContext file.

    Raises:
        ModelError: it is not an EPContext file, the IR is missing, or the inputs or outputs of the two differ.
    """
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
    if attributes.get("DeviceClass") not in get_args(Device):
        raise ModelError(
            "the EPContext file is for an unknown device",
            where=str(path),
            got=str(attributes.get("DeviceClass")),
            expected=", ".join(get_args(Device)),
        )
    inputs, outputs, _ = read_ports(xml)
    for ours, theirs in ((graph.inputs, inputs), (graph.outputs, outputs)):
        got = [port_of(value) for value in ours]
        if got != theirs:
            raise ModelError(
                "the EPContext file and its IR have different inputs or outputs",
                where=str(path),
                got=described(got),
                expected=described(theirs),
                fix="export the model again",
            )


def port_of(value: ir.Value) -> Port:
    """A value of the graph as the IR names it."""
    shape = (
        tuple(size if isinstance(size, int) else -1 for size in value.shape)
        if value.shape is not None
        else ()
    )
    return Port(str(value.name), value.dtype or ir.DataType.UNDEFINED, shape)


def described(ports: list[Port]) -> str:
    """Names, types and shapes."""
    return ", ".join(f"{port.name} {port.dtype.name.lower()} {list(port.shape)}" for port in ports)
