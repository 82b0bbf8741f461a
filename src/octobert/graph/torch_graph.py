"""A float ONNX graph as a PyTorch module, for derivatives of its outputs.

`to_torch` writes one call (torch.fx) of a function in `torch_operators` per node, with weights as buffers. Needs torch, but not
transformers.
"""

from __future__ import annotations

import inspect
import operator
import re
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from torch import fx

from octobert.core.errors import ModelError
from octobert.graph import operators, torch_operators

_TYPES = {
    ir.DataType.FLOAT: torch.float32,
    ir.DataType.DOUBLE: torch.float64,
    ir.DataType.INT64: torch.int64,
    ir.DataType.INT32: torch.int32,
    ir.DataType.INT8: torch.int8,
    ir.DataType.UINT8: torch.uint8,
    ir.DataType.BOOL: torch.bool,
}
# Integer constants with one axis that are longer are positions or ids, not sizes.
_LONGEST_SIZE = 8


def to_torch(model: ir.Model, *, also: Sequence[ir.Value] = ()) -> fx.GraphModule:
    """Return a module that takes the graph's inputs in order and returns a tuple of its outputs.

    Args:
        model: a float graph.
        also: values of the graph that are returned behind its outputs.

    Returns:
        The module. `meta["initializers"]` has the names of its buffers that are initializers: buffer → initializer.

    Raises:
        ModelError: an operator, an attribute or a type is not supported.

    Example:
        >>> module = to_torch(onnx_ir.load("model.onnx"))                                # doctest: +SKIP
        >>> (logits,) = module(ids, mask, types)                                         # doctest: +SKIP
    """
    return _Writer(model).module(also)


class _Writer:
    """Writes one graph: ONNX value → node of the fx graph, tuple or number."""

    def __init__(self, model: ir.Model) -> None:
        self._source = model.graph
        self._root, self._graph = torch.nn.Module(), fx.Graph()
        self._values: dict[ir.Value, Any] = {}

    def module(self, also: Sequence[ir.Value]) -> fx.GraphModule:
        for index, value in enumerate(self._source.inputs):
            # fx writes the names of placeholders into Python source, so no name of the file may be one.
            self._values[value] = self._graph.placeholder(f"input_{index}")
        for node in self._source:
            # Constants are written at their first reader.
            if node.op_type != "Constant":
                self._write(node)
        self._graph.output(tuple(self._value(value) for value in (*self._source.outputs, *also)))
        self._graph.eliminate_dead_code()
        module = fx.GraphModule(self._root, self._graph).eval()
        written = {
            name: self._values.get(value) for name, value in self._source.initializers.items()
        }
        buffers = {
            node.target: name
            for name, node in written.items()
            if isinstance(node, fx.Node) and node.op == "get_attr"
        }
        module.meta["initializers"] = {
            buffer: name for buffer, name in buffers.items() if hasattr(module, str(buffer))
        }
        return module

    def _write(self, node: ir.Node) -> None:
        function = torch_operators.OPERATORS.get(node.op_type)
        if function is None or node.domain not in ("", "ai.onnx"):
            raise ModelError(
                "PyTorch cannot run an operator",
                where=f"node {node.name}",
                got=node.op_type,
            )
        accepted = inspect.signature(function).parameters
        options = {
            name: self._attribute(node, attribute) for name, attribute in node.attributes.items()
        }
        for name in options:
            if name not in accepted:
                raise ModelError(
                    "PyTorch cannot run an attribute",
                    where=f"node {node.name}",
                    got=f"{node.op_type}.{name}",
                )
        result = self._call(function, *(self._value(value) for value in node.inputs), **options)
        if len(node.outputs) == 1:
            self._values[node.outputs[0]] = result
            return
        for index, output in enumerate(node.outputs):
            self._values[output] = self._call(operator.getitem, result, index)

    def _attribute(self, node: ir.Node, attribute: ir.Attr) -> Any:
        if node.op_type == "Cast" and attribute.name == "to":
            dtype = ir.DataType(attribute.value)
            if dtype not in _TYPES:
                raise ModelError(
                    "PyTorch cannot run a type", where=f"node {node.name}", got=dtype.name
                )
            return _TYPES[dtype]
        if attribute.type == ir.AttributeType.TENSOR:
            return attribute.value.numpy().item()
        return (
            tuple(attribute.value)
            if isinstance(attribute.value, (list, tuple))
            else attribute.value
        )

    def _call(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> fx.Node:
        return self._graph.call_function(function, arguments, options)

    def _value(self, value: ir.Value | None) -> Any:
        """Return the node or number of a value."""
        if value is None:
            return None
        if value not in self._values:
            self._values[value] = self._constant(str(value.name), operators.constant_of(value))
        return self._values[value]

    def _constant(self, name: str, array: np.ndarray) -> Any:
        if array.dtype == np.int64 and array.ndim <= 1 and array.size <= _LONGEST_SIZE:
            return tuple(array.tolist()) if array.ndim else int(array)
        with warnings.catch_warnings():
            # Nothing writes to weights, so that those of a file need no copy.
            warnings.filterwarnings("ignore", "The given NumPy array is not writable")
            return self._buffer(name, torch.from_numpy(np.asarray(array, order="C")))

    def _buffer(self, name: str, tensor: torch.Tensor) -> fx.Node:
        stem = re.sub(r"\W", "_", name, flags=re.ASCII)
        free = operators.free_name(stem if stem[:1].isalpha() else f"c_{stem}", dir(self._root))
        self._root.register_buffer(free, tensor)
        return self._graph.get_attr(free)
