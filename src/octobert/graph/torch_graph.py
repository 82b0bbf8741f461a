"""An ONNX graph as a PyTorch module: what `torch-cpu` and `torch-cuda` run, and what is trained of a graph that was cut.

`to_torch` writes one call (torch.fx) of a function in `torch_operators` per node, with weights as buffers. torch.compile
compiles the module as a whole, with dynamic batch and sequence. A linear layer with Q/DQ on both inputs becomes

    int8 x · int8 W → int32 − zero point · column sums of W → · scale of x · scales of W

A value is quantized once for all its readers. uint8 is stored as int8, minus 128, as is the zero point. All other Q/DQ
pairs, those of the attention products too, are simulated: the value is rounded, and computed with in float. Float graphs
work as well, and graphs that `float16` converted. Needs torch, but not transformers.
"""

from __future__ import annotations

import inspect
import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from torch import fx

from octobert.core.errors import ModelError
from octobert.core.plan import LIMITS
from octobert.graph import operators, torch_operators
from octobert.graph.passes import float16
from octobert.graph.stored import StoredWeight

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


def to_torch(
    model: ir.Model,
    dtype: torch.dtype = torch.float32,
    *,
    int_mm: bool = True,
    also: Sequence[ir.Value] = (),
) -> fx.GraphModule:
    """Return a module that takes the graph's inputs in order and returns a tuple of its outputs.

    Args:
        model: a canonical graph, float or with Quantize/DequantizeLinear.
        dtype: of the float operators. With float16 and bfloat16 the operators that the pass `float16` leaves in float32 stay
            float32; softmax computes in float32. With float32, a graph that is float16 already stays as it is.
        int_mm: compute integer products with `torch._int_mm`; else in float32, block by block, with the same result.
        also: values of the graph that are returned behind its outputs. With a float graph in float32 only.

    Returns:
        The module. `meta["initializers"]` has the names of its buffers that are initializers: buffer → initializer.

    Raises:
        ModelError: an operator, an attribute or a type is not supported.

    Example:
        >>> module = to_torch(onnx_ir.load("model_quantized.onnx"))                      # doctest: +SKIP
        >>> (logits,) = module(ids, mask, types)                                         # doctest: +SKIP
    """
    if dtype is not torch.float32 and not is_half(model):
        model = ir.from_proto(ir.to_proto(model))
        float16.convert_(model)
    return _Writer(model, torch.float16 if dtype is torch.float32 else dtype, int_mm=int_mm).module(
        also
    )


def is_half(model: ir.Model) -> bool:
    """Return whether float operators of a graph are float16."""
    return any(
        node.op_type == "Cast" and node.attributes["to"].value == ir.DataType.FLOAT16
        for node in model.graph
    ) or any(value.dtype == ir.DataType.FLOAT16 for value in model.graph.initializers.values())


class _Writer:
    """Writes one graph: ONNX value → node of the fx graph, tuple or number."""

    def __init__(self, model: ir.Model, half_type: torch.dtype, *, int_mm: bool) -> None:
        self._source = model.graph
        self._types = {**_TYPES, ir.DataType.FLOAT16: half_type}
        self._units = int_mm
        self._root, self._graph = torch.nn.Module(), fx.Graph()
        self._values: dict[ir.Value, Any] = {}
        self._scales: dict[ir.Value, fx.Node] = {}
        # By weight and scale of the input, because several layers may share both.
        self._weights: dict[
            tuple[ir.Value, ir.Value | None], tuple[fx.Node, fx.Node | None, fx.Node]
        ] = {}

    def module(self, also: Sequence[ir.Value] = ()) -> fx.GraphModule:
        for index, value in enumerate(self._source.inputs):
            # fx writes the names of placeholders into Python source, so no name of the file may be one.
            self._values[value] = self._graph.placeholder(f"input_{index}")
        first = self._values[self._source.inputs[0]]
        self._device = self._call(getattr, first, "device")
        for node in self._source:
            # Q/DQ nodes are written by their readers: an integer product reads the integers only.
            if node.op_type not in (*operators.PAIR, "Constant"):
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
        layer = _Linear.from_node(node)
        if layer is not None:
            self._values[node.outputs[0]] = self._linear(layer)
            return
        function = torch_operators.OPERATORS.get(node.op_type)
        if function is None or node.domain not in ("", "ai.onnx"):
            raise ModelError(
                "PyTorch cannot run an operator",
                where=f"node {node.name}",
                got=node.op_type,
                fix="choose an ONNX Runtime or OpenVINO target",
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
        if "device" in accepted:
            options["device"] = self._device
        result = self._call(function, *(self._value(value) for value in node.inputs), **options)
        if len(node.outputs) == 1:
            self._values[node.outputs[0]] = result
            return
        for index, output in enumerate(node.outputs):
            self._values[output] = self._call(operator.getitem, result, index)

    def _attribute(self, node: ir.Node, attribute: ir.Attr) -> Any:
        if node.op_type == "Cast" and attribute.name == "to":
            return self._type(ir.DataType(attribute.value), node)
        if attribute.type == ir.AttributeType.TENSOR:
            return attribute.value.numpy().item()
        return (
            tuple(attribute.value)
            if isinstance(attribute.value, (list, tuple))
            else attribute.value
        )

    def _type(self, dtype: ir.DataType | None, node: ir.Node) -> torch.dtype:
        if dtype is None or dtype not in self._types:
            raise ModelError(
                "PyTorch cannot run a type",
                where=f"node {node.name}",
                got=dtype.name if dtype is not None else "no type",
            )
        return self._types[dtype]

    def _call(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> fx.Node:
        return self._graph.call_function(function, arguments, options)

    def _value(self, value: ir.Value | None) -> Any:
        """Return the node or number of a value. Constants and Q/DQ are written at their first reader."""
        if value is None:
            return None
        if value not in self._values:
            array = operators.const_array(value)
            if array is not None:
                self._values[value] = self._constant(str(value.name), array, value.dtype)
            else:
                self._values[value] = self._scaled(value)
        return self._values[value]

    def _constant(self, name: str, array: np.ndarray, dtype: ir.DataType | None) -> Any:
        if array.dtype == np.int64 and array.ndim <= 1 and array.size <= _LONGEST_SIZE:
            return tuple(array.tolist()) if array.ndim else int(array)
        tensor = torch.from_numpy(np.array(array))
        return self._buffer(
            name, tensor.to(self._types[dtype]) if dtype == ir.DataType.FLOAT16 else tensor
        )

    def _buffer(self, name: str, tensor: torch.Tensor) -> fx.Node:
        stem = re.sub(r"\W", "_", name, flags=re.ASCII)
        free = operators.free_name(stem if stem[:1].isalpha() else f"c_{stem}", dir(self._root))
        self._root.register_buffer(free, tensor)
        return self._graph.get_attr(free)

    # --- 8 bits

    def _scaled(self, value: ir.Value) -> Any:
        """Return the output of a QuantizeLinear (integers) or of a DequantizeLinear (floats)."""
        node = value.producer()
        assert node is not None
        weight = StoredWeight.from_node(node)
        quantized = _Activation.from_node(node)
        scale_type = operators.input_of(node, 1).dtype
        if weight is not None:
            return self._buffer(
                str(value.name), torch.from_numpy(weight.floats).to(self._type(scale_type, node))
            )
        if quantized is None:
            raise ModelError(
                "PyTorch cannot run this quantization",
                where=f"node {node.name}",
                got=node.op_type,
                fix="quantize each activation with one constant scale",
            )
        scale, zero = self._scale(operators.input_of(quantized.node, 1)), quantized.zero_point
        numbers = self._value(node.inputs[0])
        if node.op_type == "QuantizeLinear":
            return self._call(
                torch_operators.quantize, numbers, scale, zero, quantized.limits, quantized.dtype
            )
        return self._call(
            torch_operators.dequantize, numbers, scale, zero, self._type(scale_type, node)
        )

    def _scale(self, value: ir.Value) -> fx.Node:
        """Return the scale of an activation in float32."""
        if value not in self._scales:
            number = torch.tensor(operators.const_scalar(value), dtype=torch.float32)
            self._scales[value] = self._buffer(f"{value.name}.float32", number)
        return self._scales[value]

    def _linear(self, layer: _Linear) -> fx.Node:
        quantized, weight = layer.activation, layer.weight
        key = (weight.value, quantized.node.inputs[1])
        if key not in self._weights:
            self._weights[key] = self._stored(layer)
        integers = self._value(quantized.node.outputs[0])
        dtype = self._type(layer.dtype, quantized.node)
        options = {"width": weight.integers.shape[1], "dtype": dtype, "units": self._units}
        return self._call(torch_operators.integer_linear, integers, *self._weights[key], **options)

    def _stored(self, layer: _Linear) -> tuple[fx.Node, fx.Node | None, fx.Node]:
        """Return the buffers of a linear layer: integers, correction for the zero point, scales."""
        name = str(layer.weight.value.name)
        integers = layer.weight.integers
        zero = layer.activation.zero_point
        added = [(0, -size % torch_operators.INT_MM_MULTIPLE) for size in integers.shape]
        # Column-major, as NVIDIA's 8-bit products need it.
        columns = np.ascontiguousarray(np.pad(integers, added).T)
        shift = -zero * integers.sum(axis=0, dtype=np.int32)
        scale = np.array(
            operators.const_scalar(layer.activation.node.inputs[1]) * layer.weight.scale,
            dtype=np.float32,
        )
        return (
            self._buffer(f"{name}.integers", torch.from_numpy(columns).t()),
            self._buffer(f"{name}.shift", torch.from_numpy(shift)) if zero else None,
            self._buffer(f"{name}.scales", torch.from_numpy(scale)),
        )


@dataclass(frozen=True)
class _Activation:
    """A QuantizeLinear with one constant scale, and its integers as stored here: uint8 minus 128, 16 bits as int32."""

    node: ir.Node
    zero_point: int
    limits: tuple[int, int]
    dtype: torch.dtype

    @staticmethod
    def from_node(node: ir.Node | None) -> _Activation | None:
        """Return how a QuantizeLinear or DequantizeLinear quantizes, or None if it has no constant scale."""
        if node is not None and node.op_type == "DequantizeLinear":
            # Both nodes of a pair have the same scale and zero point.
            quantize = operators.producer(node.inputs[0], "QuantizeLinear")
            node = (
                quantize
                if quantize is not None and quantize.inputs[1:] == node.inputs[1:]
                else None
            )
        if node is None or operators.const_scalar(node.inputs[1]) is None:
            return None
        zero = operators.const_array(node.inputs[2]) if len(node.inputs) > 2 else np.uint8(0)
        if zero is None or zero.size != 1 or zero.dtype.name not in LIMITS:
            return None
        name, lowest, highest = zero.dtype.name, *LIMITS[zero.dtype.name]
        less = 128 if name == "uint8" else 0
        return _Activation(
            node,
            int(zero) - less,
            (lowest - less, highest - less),
            torch.int8 if name in ("int8", "uint8") else torch.int32,
        )


@dataclass(frozen=True)
class _Linear:
    """A MatMul of 8-bit activations with an 8-bit matrix, and the type of its result."""

    activation: _Activation
    weight: StoredWeight
    dtype: ir.DataType

    @staticmethod
    def from_node(node: ir.Node) -> _Linear | None:
        """Return the layer of a MatMul, or None unless both inputs are 8-bit with scales that factor out of the sum."""
        if node.op_type != "MatMul":
            return None
        (left, dtype), (right, _) = (_dequantizing(value) for value in node.inputs)
        activation, weight = _Activation.from_node(left), StoredWeight.from_node(right)
        if activation is None or weight is None or left is None or dtype is None:
            return None
        fits = (
            weight.integers.dtype == np.int8
            and weight.integers.ndim == 2
            and (not weight.scale.ndim or weight.axis == 1)
        )
        return (
            _Linear(activation, weight, dtype) if fits and activation.dtype is torch.int8 else None
        )


def _dequantizing(value: ir.Value | None) -> tuple[ir.Node | None, ir.DataType | None]:
    """Return the DequantizeLinear before a value, and the value's type, which a Cast may have changed (`float16`)."""
    cast = operators.producer(value, "Cast")
    node = operators.producer(value if cast is None else cast.inputs[0], "DequantizeLinear")
    if node is None:
        return None, None
    return node, operators.input_of(node, 1).dtype if cast is None else ir.DataType(
        cast.attributes["to"].as_int()
    )
