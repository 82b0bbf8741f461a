"""The one writer of 8-bit operators: a float graph and a plan in, a quantized graph out.

Forms written:
    activation   x → QuantizeLinear → DequantizeLinear → operator; sites that share a value and a quantizer share the pair
    output       the same pair behind the operator; everything that read the value reads the pair
    weight       int8 initializer → DequantizeLinear(axis) → operator
    weight pair  float initializer → QuantizeLinear(axis) → DequantizeLinear(axis) → operator
    dynamic      x → DynamicQuantizeLinear, once for all its readers → MatMulInteger → Cast → Mul with both scales
    embedding    Gather over the int8 table and over its scales, Cast, Mul: only the rows that are read are dequantized
Operators that a plan leaves alone keep reading the float value, in float32. Where the plan wants another type for all that,
`half` converts the finished graph in the end; weights and tables are rounded here with scales that the type can hold.
"""

from __future__ import annotations

from collections.abc import Mapping

import ml_dtypes
import numpy as np
import onnx_ir as ir

from octobert.core.errors import PlanError
from octobert.core.plan import FLOAT, LIMITS, OUTPUT, FloatType, Quantizer, QuantPlan, Site, middle_of
from octobert.graph import operators
from octobert.graph.passes import float16

# Below this a scale is no longer a normal float32, and 1/scale overflows in some kernels.
MIN_SCALE = float(np.finfo(np.float32).tiny)
# Where ONNX has Quantize/DequantizeLinear of a type later than the canonical opset; operators mean the same there.
_OPSETS = {"int16": 21, "uint16": 21, "float8e4m3": 19}
# Fractions of the largest weight that `least: mse` tries as the interval's end.
_FRACTIONS = np.linspace(0.6, 1.0, 41)

Scales = Mapping[str, np.ndarray]


def activation_parameters(quantizer: Quantizer) -> tuple[np.float32, np.generic]:
    """Scale and zero point of a per-tensor quantizer with a range.

    The interval is widened to include 0, as ONNX requires 0.0 to be representable (padding and ReLU zeros stay exact).

    Raises:
        PlanError: the quantizer has no range.
    """
    if quantizer.low is None or quantizer.high is None:
        raise PlanError("an activation's quantizer has no range", fix="calibrate first")
    low, high = min(float(quantizer.low), 0.0), max(float(quantizer.high), 0.0)
    lowest, highest = quantizer.limits
    if quantizer.symmetric:
        # uint8: 128 is zero, and 127 steps lie on either side.
        zero = 0 if lowest < 0 else (highest + 1) // 2
        scale = max(max(-low, high) / (highest - zero), MIN_SCALE)
    else:
        scale = max((high - low) / (highest - lowest), MIN_SCALE)
        zero = int(np.clip(round(lowest - low / scale), lowest, highest))
    return np.float32(scale), numpy_type(quantizer).type(zero)


def numpy_type(quantizer: Quantizer) -> np.dtype:
    """The type of a quantizer's numbers in NumPy."""
    return np.dtype(ml_dtypes.float8_e4m3fn if quantizer.dtype == "float8e4m3" else quantizer.dtype)


def rounded_activation(values: np.ndarray, quantizer: Quantizer) -> np.ndarray:
    """Values as they are after quantization and dequantization."""
    scale, zero = activation_parameters(quantizer)
    shift = np.float32(zero)
    # QuantizeLinear knows the type's own limits only: symmetric int8 reaches -128.
    return (np.clip(_nearest(values / scale, quantizer) + shift, *LIMITS[quantizer.dtype]) - shift) * scale


def _nearest(values: np.ndarray, quantizer: Quantizer) -> np.ndarray:
    """The nearest numbers of the type, without its ends."""
    if quantizer.dtype == "float8e4m3":
        return np.clip(values, *LIMITS[quantizer.dtype]).astype(numpy_type(quantizer)).astype(np.float32)
    return np.rint(values)


def weight_scale(array: np.ndarray, quantizer: Quantizer) -> np.ndarray:
    """The scale of a weight, of shape () or (channels,).

    `least: mse` takes, channel by channel, the end of the interval whose rounding and clipping errors together are least.
    """
    highest = quantizer.weight_limits[1]
    axes = tuple(i for i in range(array.ndim) if i != quantizer.axis) if quantizer.axis is not None else None
    bound = np.abs(array).max(axis=axes)
    if quantizer.weight_ranges == "max":
        return np.maximum(bound / highest, MIN_SCALE).astype(np.float32)
    scales = [np.maximum(bound * fraction / highest, MIN_SCALE) for fraction in _FRACTIONS]
    errors = [((array - dequantized_weight(array, quantizer, scale)) ** 2).sum(axis=axes) for scale in scales]
    best = _FRACTIONS[np.argmin(errors, axis=0)]
    return np.maximum(bound * best / highest, MIN_SCALE).astype(np.float32)


def quantize_weight(array: np.ndarray, quantizer: Quantizer, scale: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Symmetric 8-bit numbers and scales of a weight.

    Args:
        array: float weights of any shape.
        quantizer: symmetric; `axis` for one scale per channel.
        scale: where it is known already; else from the weights.

    Returns:
        (8-bit numbers around zero of the same shape, scales of shape () or (channels,)).
    """
    scale = weight_scale(array, quantizer) if scale is None else scale
    lowest, highest = quantizer.weight_limits
    integers = np.clip(_nearest(array / spread(scale, array.ndim, quantizer.axis), quantizer), lowest, highest)
    return integers.astype(np.int8 if quantizer.dtype == "uint8" else numpy_type(quantizer)), scale


def dequantized_weight(array: np.ndarray, quantizer: Quantizer, scale: np.ndarray | None = None) -> np.ndarray:
    """A weight as it is after quantization and dequantization."""
    integers, scale = quantize_weight(array, quantizer, scale)
    return integers.astype(np.float32) * spread(scale, array.ndim, quantizer.axis)


def spread(scale: np.ndarray, ndim: int, axis: int | None) -> np.ndarray:
    """A scale in the shape that multiplies the array."""
    return scale.reshape([-1 if i == axis else 1 for i in range(ndim)]) if axis is not None else scale


def write(model: ir.Model, plan: QuantPlan, scales: Scales | None = None) -> None:
    """Write a plan into a float graph, in place.

    Args:
        scales: weight → its scale, where a refiner chose it.

    Raises:
        PlanError: the plan quantizes nothing, or names something that is not in the graph.
    """
    if not plan.quantized and plan.method != FLOAT:
        raise PlanError(
            "the plan quantizes nothing",
            where=f"target {plan.target}",
            got="; ".join(sorted({d.reason for d in plan.decisions})) or "no sites",
            fix="choose another placement or allow more layers",
        )
    graph = model.graph
    nodes = {str(node.name): node for node in graph}
    scales = {**shared_scales(nodes, plan), **(scales or {})}
    # Value and quantizer → the 8-bit form that all their sites share; a weight that several layers share is there once.
    pairs: dict[tuple[str, Quantizer], ir.Value] = {}
    dynamic: list[Site] = []
    # Outputs last: until then every reader still reads the value by its own name.
    for site, quantizer in sorted(plan.quantized, key=lambda one: one[0].input == OUTPUT):
        node = nodes.get(site.node)
        values = [] if node is None else node.outputs if site.input == OUTPUT else node.inputs[site.input : site.input + 1]
        value = values[0] if values else None
        if node is None or value is None or str(value.name) != site.value or (site.is_weight and value.const_value is None):
            raise PlanError("the plan does not fit the graph", where=site.node, fix="plan again from this graph")
        if quantizer.dynamic:
            dynamic.append(site)
        elif site.role == "embedding.weight":
            _write_embedding_(graph, node, *_rounded(value, quantizer, scales, plan.float_parts))
        elif site.input == OUTPUT:
            _write_output_(graph, node, value, quantizer)
        else:
            key = (site.value, quantizer)
            if key not in pairs and site.is_weight:
                integers, scale = _rounded(value, quantizer, scales, plan.float_parts)
                pairs[key] = _write_weight_(graph, node, site.value, quantizer, integers, scale)
            elif key not in pairs:
                pairs[key] = _write_activation_(graph, node, value, quantizer)
            node.replace_input_with(site.input, pairs[key])
    _write_dynamic_(graph, nodes, dynamic)
    set_opset_(model, plan)
    operators.clean_(model)


def _rounded(value: ir.Value, quantizer: Quantizer, scales: Scales, parts: FloatType) -> tuple[np.ndarray, np.ndarray]:
    """Integers and scales of a weight, with a scale that was chosen for it, and that the type of the float parts can hold."""
    array, name = value.const_value.numpy(), str(value.name)
    scale = scales[name] if name in scales else weight_scale(array, quantizer)
    return quantize_weight(array, quantizer, float16.rounded_scale(scale, parts))


def set_opset_(model: ir.Model, plan: QuantPlan) -> None:
    """Raise the opset where types of the plan need it."""
    least = max((_OPSETS.get(quantizer.dtype, 0) for _, quantizer in plan.quantized), default=0)
    model.graph.opset_imports[""] = max(model.graph.opset_imports[""], least)


def shared_scales(nodes: Mapping[str, ir.Node], plan: QuantPlan) -> dict[str, np.ndarray]:
    """Weights that have one interval in common: the largest of their scales."""
    groups: dict[str, list[tuple[str, np.ndarray]]] = {}
    for site, quantizer in plan.quantized:
        if quantizer.shared is not None and site.is_weight and site.node in nodes:
            array = operators.const_array(nodes[site.node].inputs[site.input])
            if array is not None:
                groups.setdefault(quantizer.shared, []).append((site.value, weight_scale(array, quantizer)))
    return {value: np.max([s for _, s in group], axis=0) for group in groups.values() for value, _ in group}


def _write_output_(graph: ir.Graph, node: ir.Node, value: ir.Value, quantizer: Quantizer) -> None:
    """A pair behind an operator; its readers read the pair, and a graph output keeps its name."""
    readers = list(value.uses())
    pair = _write_activation_(graph, node, value, quantizer, after=True)
    for reader, index in readers:
        reader.replace_input_with(index, pair)


def _write_dynamic_(graph: ir.Graph, nodes: Mapping[str, ir.Node], sites: list[Site]) -> None:
    """x @ W with x quantized from its own values: what ONNX Runtime fuses into its DynamicQuantizeMatMul."""
    quantized: dict[str, list[ir.Value]] = {}
    for site in sites:
        matmul = nodes[site.node]
        dequantize = operators.producer(matmul.inputs[1], "DequantizeLinear")
        if dequantize is None:
            raise PlanError(
                "a dynamic activation needs an 8-bit weight beside it", where=site.node, fix="quantize both or none"
            )
        if site.value not in quantized:
            node = make_dynamic(matmul.inputs[0], site.value)  # type: ignore[arg-type]
            graph.insert_before(matmul, [node])
            quantized[site.value] = list(node.outputs)
        integers, scale, zero = quantized[site.value]
        name = str(matmul.outputs[0].name)
        weight, weight_scales = dequantize.inputs[0], dequantize.inputs[1]
        product = operators.make_node("MatMulInteger", [integers, weight, zero], f"{name}.integer", dtype=ir.DataType.INT32)
        floats = operators.make_node("Cast", product.outputs, f"{name}.cast", {"to": ir.DataType.FLOAT})
        both = operators.make_node("Mul", [scale, weight_scales], f"{name}.scales")
        result = operators.make_node("Mul", [floats.outputs[0], both.outputs[0]], f"{name}.dequantized")
        nodes_new = [product, floats, both, result]
        ir.convenience.replace_nodes_and_values(graph, matmul, [matmul], nodes_new, [matmul.outputs[0]], [result.outputs[0]])


def _write_activation_(
    graph: ir.Graph, node: ir.Node, value: ir.Value, quantizer: Quantizer, *, after: bool = False
) -> ir.Value:
    pair = make_pair(graph, _free(graph, str(value.name)), value, quantizer)
    (graph.insert_after if after else graph.insert_before)(node, pair)
    return pair[-1].outputs[0]


def make_pair(graph: ir.Graph, name: str, value: ir.Value, quantizer: Quantizer) -> list[ir.Node]:
    """QuantizeLinear and DequantizeLinear of an activation, with their constants; the nodes are not in the graph yet."""
    scale, zero = activation_parameters(quantizer)
    scale_value = operators.initializer(graph, f"{name}.scale", np.array(scale))
    zero_value = operators.initializer(graph, f"{name}.zero_point", np.array(zero))
    integer = ir.DataType.from_numpy(zero.dtype)
    quantize = operators.make_node("QuantizeLinear", [value, scale_value, zero_value], f"{name}.quantized", dtype=integer)
    dequantize = operators.make_node("DequantizeLinear", [quantize.outputs[0], scale_value, zero_value], f"{name}.dequantized")
    return [quantize, dequantize]


def make_dynamic(value: ir.Value, name: str) -> ir.Node:
    """DynamicQuantizeLinear of a value; its outputs are the integers, their scale and their zero point."""
    outputs = [ir.Value(name=f"{name}.{part}") for part in ("quantized", "scale", "zero_point")]
    return ir.node("DynamicQuantizeLinear", [value], outputs=outputs, name=f"{name}.quantized")


def _write_weight_(
    graph: ir.Graph, node: ir.Node, name: str, quantizer: Quantizer, integers: np.ndarray, scale: np.ndarray
) -> ir.Value:
    dtype, zero = numpy_type(quantizer), middle_of(quantizer.dtype)
    scale_value = operators.initializer(graph, f"{name}.scale", scale)
    zero_value = operators.initializer(graph, f"{name}.zero_point", np.full_like(scale, zero, dtype=dtype))
    attributes = {} if quantizer.axis is None else {"axis": quantizer.axis}
    nodes: list[ir.Node] = []
    if quantizer.weight_form == "pair":
        # Not the weight as it was, but what its integers stand for: whoever quantizes that gets these very integers, however
        # it rounds halves, and though QuantizeLinear knows nothing of narrower limits (`least: mse`, 7 bits, symmetric int8).
        exact = integers.astype(np.float32) * spread(scale, integers.ndim, quantizer.axis)
        weight = operators.initializer(graph, f"{name}.rounded", exact.astype(np.float32))
        inputs, integer = [weight, scale_value, zero_value], ir.DataType.from_numpy(dtype)
        nodes.append(operators.make_node("QuantizeLinear", inputs, f"{name}.quantized", attributes, dtype=integer))
        weight = nodes[0].outputs[0]
    else:
        stored = integers if not zero else (integers.astype(np.int16) + zero).astype(dtype)
        weight = operators.initializer(graph, f"{name}.quantized", stored)
    nodes.append(operators.make_node("DequantizeLinear", [weight, scale_value, zero_value], f"{name}.dequantized", attributes))
    graph.insert_before(node, nodes)
    return nodes[-1].outputs[0]


def _write_embedding_(graph: ir.Graph, gather: ir.Node, integers: np.ndarray, scale: np.ndarray) -> None:
    """table[ids] as int8 rows times their own scale; the result takes the place of the float Gather."""
    table, ids = gather.inputs
    name, output = str(table.name), gather.outputs[0]
    rows = operators.initializer(graph, f"{name}.quantized", integers)
    row_scales = operators.initializer(graph, f"{name}.scale", scale.reshape(-1, 1))
    picked = operators.make_node("Gather", [rows, ids], f"{name}.rows", {"axis": 0}, dtype=ir.DataType.INT8)
    floats = operators.make_node("Cast", picked.outputs, f"{name}.rows_float", {"to": ir.DataType.FLOAT})
    scales = operators.make_node("Gather", [row_scales, ids], f"{name}.row_scales", {"axis": 0})
    product = operators.make_node("Mul", [floats.outputs[0], scales.outputs[0]], f"{name}.dequantized")
    graph.insert_before(gather, [picked, floats, scales, product])
    ir.convenience.replace_all_uses_with(output, product.outputs[0])


def _free(graph: ir.Graph, name: str) -> str:
    candidate, count = name, 0
    while f"{candidate}.scale" in graph.initializers:
        count += 1
        candidate = f"{name}_{count}"
    return candidate
