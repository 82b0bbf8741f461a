"""Helpers over `onnx_ir`: read constants, follow values, make nodes and initializers with readable names.

Shape letters used in the whole package `graph`: B batch, S sequence (tokens), H heads, K head size, D hidden size,
F feed-forward size. A function whose name ends in `_` changes its argument in place.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx_ir.passes import common

from octobert.core.errors import ModelError
from octobert.core.session import read_outputs

# A constant of a graph.
Numbers = np.ndarray | np.generic | Sequence[float] | float
# The two operators around a quantized value; together they are called a Q/DQ pair.
PAIR = ("QuantizeLinear", "DequantizeLinear")
# The domain of ONNX Runtime's own operators.
MICROSOFT = "com.microsoft"
# A protobuf message holds at most 2 GiB. Larger models store their weights in a second file.
MAX_SINGLE_FILE_BYTES = 1_800_000_000
# Constants from this size on, in bytes, of these types, are weights: runtimes read smaller ones to infer shapes.
_SMALL = 1024
_WEIGHTS = frozenset(
    {ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.INT8, ir.DataType.UINT8, ir.DataType.INT64}
)
# The version of the file format with functions, of 2021.
LEAST_IR_VERSION = 8


def input_of(node: ir.Node, index: int) -> ir.Value:
    """Return an input that the operator must have; `onnx_ir` types every input as optional.

    Raises:
        ModelError: the node has no such input.
    """
    value = node.inputs[index] if index < len(node.inputs) else None
    if value is None:
        raise ModelError(
            "an operator lacks a required input",
            where=f"node {node.name}",
            got=f"{node.op_type} without input {index}",
            fix="export the model again",
        )
    return value


def inputs_of(node: ir.Node, count: int) -> list[ir.Value | None]:
    """Return the first inputs of a node, with None for those that it lacks."""
    return [node.inputs[index] if index < len(node.inputs) else None for index in range(count)]


def constant_of(value: ir.Value | None) -> np.ndarray:
    """Return the constant behind a value that must be one.

    Raises:
        ModelError: the value is computed at run time, or absent.
    """
    array = const_array(value)
    if array is None:
        name = value.name if value is not None else None
        raise ModelError(
            "a weight is not a constant",
            where=str(name),
            expected="an initializer",
            fix="export the model with its weights",
        )
    return array


def const_array(value: ir.Value | None) -> np.ndarray | None:
    """Return the constant behind a value (initializer or Constant node), or None."""
    if value is None:
        return None
    tensor = ir.convenience.get_const_tensor(value)
    return None if tensor is None else tensor.numpy()


def constant_behind(value: ir.Value | None) -> np.ndarray | None:
    """Return the constant behind a value and its Q/DQ, as floats or as integers, or None."""
    for op_type in reversed(PAIR):
        node = producer(value, op_type)
        value = node.inputs[0] if node is not None else value
    return const_array(value)


def const_scalar(value: ir.Value | None) -> float | None:
    """Return the constant behind a value if it holds exactly one number, else None."""
    array = const_array(value)
    return float(array.reshape(-1)[0]) if array is not None and array.size == 1 else None


def producer(value: ir.Value | None, *op_types: str) -> ir.Node | None:
    """Return the node that computes a value if its type is one of `op_types` (any type if none are listed), else None."""
    node = value.producer() if value is not None else None
    return node if node is not None and (not op_types or node.op_type in op_types) else None


def consumers(value: ir.Value, *op_types: str) -> list[ir.Node]:
    """Return the nodes of these types that read a value, in order of use; a node that reads it twice is listed twice."""
    return [node for node, _ in value.uses() if not op_types or node.op_type in op_types]


def readers(value: ir.Value) -> list[ir.Node]:
    """Return the nodes that read a value, each once."""
    return list(dict.fromkeys(node for node, _ in value.uses()))


def only_reader(value: ir.Value, *op_types: str) -> ir.Node | None:
    """Return the only node that reads a value, if its type is one of `op_types`; None for an output of the graph."""
    nodes = readers(value)
    alone = (
        len(nodes) == 1
        and not value.is_graph_output()
        and (not op_types or nodes[0].op_type in op_types)
    )
    return nodes[0] if alone else None


def above(value: ir.Value | None, *op_types: str) -> list[ir.Node]:
    """Return the nodes above a value, along first inputs, if they have these types; else an empty list."""
    nodes: list[ir.Node] = []
    for op_type in op_types:
        node = producer(value, op_type)
        if node is None:
            return []
        nodes.append(node)
        value = node.inputs[0]
    return nodes


def below(value: ir.Value, *op_types: str) -> list[ir.Node]:
    """Return the nodes below a value, each the only reader of the one before, if they have these types; else an empty list."""
    nodes: list[ir.Node] = []
    for op_type in op_types:
        node = only_reader(value, op_type)
        if node is None:
            return []
        nodes.append(node)
        value = node.outputs[0]
    return nodes


def other_input(node: ir.Node, value: ir.Value) -> tuple[int, ir.Value | None]:
    """Return the place and the value of the other input of an operator with two inputs, one of which is `value`."""
    place = 1 - list(node.inputs).index(value)
    return place, node.inputs[place]


def of_type(graph: ir.Graph, op_type: str) -> list[ir.Node]:
    """Return the nodes of an operator; the graph may change while they are walked through."""
    return [node for node in graph if node.op_type == op_type]


def nodes_of(graph: ir.Graph) -> dict[str, ir.Node]:
    """Return the nodes of a graph by name."""
    return {str(node.name): node for node in graph}


def named(graph: ir.Graph) -> dict[str, ir.Value]:
    """Return name → value of a graph: `values_of`, and its inputs."""
    return {**values_of(graph), **{str(value.name): value for value in graph.inputs}}


def values_of(graph: ir.Graph) -> dict[str, ir.Value]:
    """Return the outputs of the nodes of a graph by name."""
    return {str(value.name): value for node in graph for value in node.outputs}


def quantizes_activations(graph: ir.Graph) -> bool:
    """Return whether a graph rounds values at run time."""
    return any(node.op_type in ("QuantizeLinear", "DynamicQuantizeLinear") for node in graph)


def insert_behind_(
    graph: ir.Graph, node: ir.Node, added: Sequence[ir.Node], uses: Iterable[tuple[ir.Node, int]]
) -> None:
    """Insert nodes behind a node; these uses of its output then read the last of them."""
    graph.insert_after(node, added)
    for reader, index in uses:
        reader.replace_input_with(index, added[-1].outputs[0])


def free_name(name: str, *used_names: Container[str], suffix: str = "") -> str:
    """Return `name`, or `name_1`, `name_2`, … if `name + suffix` is taken.

    Example:
        >>> free_name("x", {"x", "x_1"})
        'x_2'
    """
    candidate, count = name, 0
    while any(f"{candidate}{suffix}" in names for names in used_names):
        count += 1
        candidate = f"{name}_{count}"
    return candidate


def array_of(numbers: Numbers) -> np.ndarray:
    """Return numbers in the types of ONNX operators: Python integers in 64 bits, floats in 32; arrays stay as they are."""
    if isinstance(numbers, (np.ndarray, np.generic)):
        return np.asarray(numbers)
    array = np.array(numbers)
    return array.astype(np.float32 if array.dtype.kind == "f" else np.int64)


def initializer(graph: ir.Graph, name: str, numbers: Numbers) -> ir.Value:
    """Add an initializer to the graph; if the name is taken, a number is appended."""
    free, array = free_name(name, graph.initializers), array_of(numbers)
    value = ir.Value(
        name=free,
        shape=ir.Shape(array.shape),
        type=ir.TensorType(ir.DataType.from_numpy(array.dtype)),
        const_value=ir.tensor(array, name=free),
    )
    graph.register_initializer(value)
    return value


def set_constant_(
    graph: ir.Graph,
    value: ir.Value,
    readers: Sequence[ir.Node],
    array: np.ndarray | ir.TensorProtocol,
) -> None:
    """Change a constant for some of its readers, in place. Its other readers get a copy of the old one."""
    others = [(node, index) for node, index in value.uses() if node not in readers]
    if others:
        copy = initializer(graph, f"{value.name}.float", constant_of(value))
        for node, index in others:
            node.replace_input_with(index, copy)
    if isinstance(array, np.ndarray):
        array = ir.tensor(np.ascontiguousarray(array), name=value.name)
    value.const_value = array


def shared_initializer(graph: ir.Graph, name: str, numbers: Numbers) -> ir.Value:
    """Return the initializer of that name if it holds the same numbers, else a new one; for constants that many nodes read."""
    existing, array = graph.initializers.get(name), array_of(numbers)
    if existing is not None and np.array_equal(constant_of(existing), array):
        return existing
    return initializer(graph, name, array)


def reshape_target(graph: ir.Graph, sizes: Sequence[int]) -> ir.Value:
    """Return the constant target of a Reshape, which all Reshapes to the same sizes share."""
    return shared_initializer(graph, f"shape.{'x'.join(map(str, sizes))}", sizes)


def make_node(
    op_type: str,
    inputs: Sequence[ir.Value | None],
    output: str,
    attributes: Mapping[str, Any] | None = None,
    *,
    dtype: ir.DataType | None = ir.DataType.FLOAT,
    shape: Iterable[Any] | None = None,
) -> ir.Node:
    """Make a node with one output; node and output have the same name, so that graph viewers show module paths.

    Args:
        op_type: ONNX operator.
        inputs: input values; None for an optional input that is absent.
        output: name of the node and of its output.
        attributes: ONNX attributes.
        dtype: element type of the output; None if unknown.
        shape: shape of the output, integers or names of dynamic axes; None if unknown.
    """
    value = ir.Value(
        name=output,
        type=ir.TensorType(dtype) if dtype is not None else None,
        shape=ir.Shape(list(shape)) if shape is not None else None,
    )
    return ir.node(op_type, inputs, dict(attributes or {}), outputs=[value], name=output)


class Chain:
    """Writes nodes one after the other, each with the method that has the name of its operator.

        chain = Chain(graph, "classifier")
        product = chain.MatMul("matmul", x, weight)

    Node and output are then named `classifier.matmul`. What a name stands for is written once: the next time, the value that
    is there comes back. Keyword arguments are attributes, but for `dtype`, by default that of the chain, and `shape`.

    Args:
        graph: that the nodes are for.
        stem: begins all names; may be empty.
        dtype: type of the outputs.

    Attributes:
        nodes: in order; they are not in the graph yet.
        values: name of an output → the output.
    """

    def __init__(self, graph: ir.Graph, stem: str, dtype: ir.DataType = ir.DataType.FLOAT) -> None:
        self.graph, self.stem, self.dtype = graph, stem, dtype
        self.nodes: list[ir.Node] = []
        self.values: dict[str, ir.Value] = {}

    def __getattr__(self, op_type: str) -> Callable[..., ir.Value]:
        return functools.partial(self._write, op_type)

    def _write(
        self,
        op_type: str,
        part: str,
        *inputs: ir.Value | None,
        dtype: ir.DataType | None = None,
        shape: Iterable[Any] | None = None,
        **attributes: Any,
    ) -> ir.Value:
        name = ".".join(filter(None, (self.stem, part)))
        if name not in self.values:
            self.nodes.append(
                make_node(op_type, inputs, name, attributes, dtype=dtype or self.dtype, shape=shape)
            )
            self.values[name] = self.nodes[-1].outputs[0]
        return self.values[name]

    def replace_(self, node: ir.Node) -> None:
        """Replace a node; the last output takes over the readers, the name and the shape of the first old output."""
        for new in self.nodes:
            new.metadata_props.update(node.metadata_props)
        last = self.nodes[-1].outputs[0]
        ir.convenience.replace_nodes_and_values(
            self.graph, node, [node], self.nodes, list(node.outputs), [last] * len(node.outputs)
        )


def upward(
    value: ir.Value | None, through: Callable[[ir.Value], bool] = lambda value: True
) -> Iterator[ir.Value]:
    """Yield a value and the values that it is computed from, each once; of one that `through` refuses, not those behind it."""
    seen: set[ir.Value] = set()
    stack = [value]
    while stack:
        current = stack.pop()
        if current is None or current in seen:
            continue
        seen.add(current)
        yield current
        node = current.producer()
        if node is not None and through(current):
            stack.extend(node.inputs)


def ancestors(value: ir.Value) -> set[ir.Value]:
    """Return every value that a value depends on, itself included."""
    return set(upward(value))


def follows(value: ir.Value, source: ir.Value) -> bool:
    """Return whether a value depends on the numbers in `source`, not only on its shape and not through a MatMul."""
    return any(
        ancestor is source
        for ancestor in upward(
            value, lambda ancestor: producer(ancestor, "Shape", "MatMul") is None
        )
    )


def drop_states_(model: ir.Model) -> int:
    """Leave only the outputs that octobert reads, in place.

    Returns:
        The number of outputs that were dropped.
    """
    graph = model.graph
    names = read_outputs([str(value.name) for value in graph.outputs])
    dropped = len(graph.outputs) - len(names)
    graph.outputs[:] = [value for value in graph.outputs if value.name in names]
    return dropped


def clean_(model: ir.Model) -> None:
    """Remove unused nodes, initializers and opset imports, and sort the graph topologically."""
    drop_identities_(model)
    for graph_pass in (
        common.RemoveUnusedNodesPass(),
        common.RemoveUnusedOpsetsPass(),
        common.TopologicalSortPass(),
    ):
        graph_pass(model)


def drop_identities_(model: ir.Model) -> None:
    """Remove Identity nodes, in place; of a graph with branches or loops, those of the graph itself that are no outputs."""
    if len([*model.graph.all_nodes()]) == len(model.graph):
        common.IdentityEliminationPass()(model)
        return
    # Inside of a branch, an Identity is how a value from outside becomes an output.
    for node in of_type(model.graph, "Identity"):
        if not node.outputs[0].is_graph_output():
            ir.convenience.replace_all_uses_with(node.outputs[0], input_of(node, 0))
            model.graph.remove(node, safe=True)


def initializer_bytes(model: ir.Model) -> int:
    """Return the size of all weights and constants, in bytes."""
    return sum(
        v.const_value.nbytes for v in model.graph.initializers.values() if v.const_value is not None
    )


def in_memory(
    model: ir.Model, outputs: list[ir.Value]
) -> tuple[bytes, dict[str, np.ndarray], str | None]:
    """Return a model as a file without its weights, and these; the model stays as it is.

    Args:
        outputs: those of the file.

    Returns:
        The file; the weights that are in memory; and the folder of the file that has the others, None where it has none.
    """
    _set_version_(model)
    before, kept = list(model.graph.outputs), dict[str, ir.TensorProtocol]()
    weights: dict[str, np.ndarray] = {}
    folder: str | None = None
    for name, value in model.graph.initializers.items():
        tensor = value.const_value
        if tensor is None:
            continue
        if isinstance(tensor, ir.ExternalTensor) and tensor.nbytes >= _SMALL:
            place = os.fspath(tensor.base_dir)
            folder = folder or place or None
            # ONNX Runtime maps the file: a table of embeddings is half of a multilingual model, and few of its rows are read.
            if place and place == folder:
                continue
        # ONNX Runtime has none that nothing reads.
        if tensor.nbytes >= _SMALL and tensor.dtype in _WEIGHTS and value.uses():
            kept[name] = tensor
            weights[name] = np.require(tensor.numpy(), requirements=["C", "A"])
        elif isinstance(tensor, ir.ExternalTensor):
            value.const_value = ir.Tensor(tensor.numpy(), tensor.dtype, name=name)
    model.graph.outputs[:] = outputs
    try:
        for name, tensor in kept.items():
            model.graph.initializers[name].const_value = ir.ExternalTensor(
                "memory",
                0,
                tensor.nbytes,
                tensor.dtype,
                shape=ir.Shape(weights[name].shape),
                name=name,
            )
        return ir.to_proto(model).SerializeToString(), weights, folder
    finally:
        for name, tensor in kept.items():
            model.graph.initializers[name].const_value = tensor
        model.graph.outputs[:] = before


def save(model: ir.Model, path: Path) -> None:
    """Write a model; if it exceeds the protobuf limit, the weights go to `<name>.data` beside it.

    It has the least version of the file format that its opset needs, as runtimes refuse later ones. Weights that are still in a
    file beside another model are read, as that file is not beside the new one.
    """
    beside = initializer_bytes(model) > MAX_SINGLE_FILE_BYTES
    if not beside:
        ir.external_data.load_to_model(model)
    _set_version_(model)
    ir.save(model, path, external_data=f"{path.name}.data" if beside else None)


def save_all(models: Mapping[Path, ir.Model]) -> None:
    """Write models of the same weights; those of several are in one file, `<name>.data` beside the first."""
    (first, model), *others = models.items()
    if not others:
        save(model, first)
        return
    for each in models.values():
        ir.external_data.load_to_model(each)
        _set_version_(each)
    ir.save(model, first, external_data=f"{first.name}.data")
    stored = ir.load(first).graph.initializers
    for path, each in others:
        for name, value in each.graph.initializers.items():
            twin = stored[name].const_value if name in stored else None
            if isinstance(twin, ir.ExternalTensor) and np.array_equal(
                twin.numpy(), constant_of(value)
            ):
                value.const_value = twin
        ir.save(each, path)


def _set_version_(model: ir.Model) -> None:
    opset = onnx.helper.make_opsetid("", model.opset_imports[""])
    model.ir_version = max(LEAST_IR_VERSION, int(onnx.helper.find_min_ir_version_for([opset])))
