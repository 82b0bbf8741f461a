"""Small helpers over `onnx_ir`: read constants, walk values, make nodes and initializers with names that people can read.

Shape legend used throughout `graph`: B batch, S sequence (tokens), H heads, K head size, D hidden size, F feed-forward size.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import common

# Behind and before integers.
PAIR = ("QuantizeLinear", "DequantizeLinear")
# The domain of ONNX Runtime's own operators.
MICROSOFT = "com.microsoft"
# ONNX files are protobuf messages, which end at 2 GiB; above this the weights go to a file beside the graph.
MAX_SINGLE_FILE_BYTES = 1_800_000_000


def const_array(value: ir.Value | None) -> np.ndarray | None:
    """The constant behind a value (initializer or Constant node), or None."""
    if value is None:
        return None
    tensor = ir.convenience.get_const_tensor(value)
    return None if tensor is None else tensor.numpy()


def const_scalar(value: ir.Value | None) -> float | None:
    """The constant behind a value when it holds one number."""
    array = const_array(value)
    return float(array.reshape(-1)[0]) if array is not None and array.size == 1 else None


def producer(value: ir.Value | None, *op_types: str) -> ir.Node | None:
    """The node that makes a value, when it is one of `op_types` (any, if none are given)."""
    node = value.producer() if value is not None else None
    return node if node is not None and (not op_types or node.op_type in op_types) else None


def consumers(value: ir.Value, *op_types: str) -> list[ir.Node]:
    """The nodes that read a value, of these types, in graph order of use."""
    return [node for node, _ in value.uses() if not op_types or node.op_type in op_types]


def readers(value: ir.Value) -> list[ir.Node]:
    """The nodes that read a value, each once."""
    return list(dict.fromkeys(node for node, _ in value.uses()))


def initializer(graph: ir.Graph, name: str, array: np.ndarray) -> ir.Value:
    """A new initializer; where its name is taken (a graph captured before has them all), it gets a number behind it."""
    free, count = name, 0
    while free in graph.initializers:
        count += 1
        free = f"{name}_{count}"
    value = ir.Value(
        name=free,
        shape=ir.Shape(array.shape),
        type=ir.TensorType(ir.DataType.from_numpy(array.dtype)),
        const_value=ir.tensor(array, name=free),
    )
    graph.register_initializer(value)
    return value


def shared_initializer(graph: ir.Graph, name: str, array: np.ndarray) -> ir.Value:
    """The initializer of that name if it holds the same, else a new one: for small constants that many nodes read."""
    found = graph.initializers.get(name)
    return found if found is not None and np.array_equal(const_array(found), array) else initializer(graph, name, array)


def make_node(
    op_type: str,
    inputs: Sequence[ir.Value | None],
    output: str,
    attributes: Mapping[str, Any] | None = None,
    *,
    dtype: ir.DataType | None = ir.DataType.FLOAT,
    shape: Iterable[int | str] | None = None,
) -> ir.Node:
    """A node with one output; node and output share the name, so a graph viewer shows module paths."""
    value = ir.Value(
        name=output,
        type=ir.TensorType(dtype) if dtype is not None else None,
        shape=ir.Shape(list(shape)) if shape is not None else None,
    )
    return ir.node(op_type, inputs, dict(attributes or {}), outputs=[value], name=output)


def ancestors(value: ir.Value) -> set[ir.Value]:
    """Every value that a value depends on, itself included."""
    seen: set[ir.Value] = set()
    stack = [value]
    while stack:
        current = stack.pop()
        if current in seen:
            continue
        seen.add(current)
        node = current.producer()
        if node is not None:
            stack.extend(v for v in node.inputs if v is not None)
    return seen


def follows(value: ir.Value, source: ir.Value) -> bool:
    """Whether a value is made of the numbers in another one: not of its shape only, and not by way of a product."""
    seen, stack = set(), [value]
    while stack:
        current = stack.pop()
        if current is source:
            return True
        node = current.producer()
        if current not in seen and node is not None and node.op_type not in ("Shape", "MatMul"):
            stack.extend(v for v in node.inputs if v is not None)
        seen.add(current)
    return False


def replace_(graph: ir.Graph, node: ir.Node, nodes: Sequence[ir.Node]) -> None:
    """Put nodes where one was; the last one's output takes the place, the name and the shape of the first output."""
    for one in nodes:
        one.metadata_props.update(node.metadata_props)
    result = nodes[-1].outputs[0]
    ir.convenience.replace_nodes_and_values(graph, node, [node], list(nodes), list(node.outputs), [result] * len(node.outputs))


def clean_(model: ir.Model) -> None:
    """Remove what nothing reads: nodes, initializers, opset imports; and sort."""
    for one in (
        common.IdentityEliminationPass(),
        common.RemoveUnusedNodesPass(),
        common.RemoveUnusedOpsetsPass(),
        common.TopologicalSortPass(),
    ):
        one(model)


def initializer_bytes(model: ir.Model) -> int:
    """Bytes of all weights and constants."""
    return sum(v.const_value.nbytes for v in model.graph.initializers.values() if v.const_value is not None)


def save(model: ir.Model, path: Path) -> None:
    """Write a model; weights beyond the protobuf limit go to `<name>.data` beside it."""
    external = f"{path.name}.data" if initializer_bytes(model) > MAX_SINGLE_FILE_BYTES else None
    ir.save(model, path, external_data=external)
