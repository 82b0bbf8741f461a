"""The one writer of QuantizeLinear and DequantizeLinear: a float graph and a plan in, a QDQ graph out.

Forms written:
    activation   x → QuantizeLinear → DequantizeLinear → operator; sites that share a value and a quantizer share the pair
    weight       int8 initializer → DequantizeLinear(axis) → operator
    embedding    Gather over the int8 table and over its scales, Cast, Mul: only the rows that are read are dequantized
Operators that a plan leaves alone keep reading the float value.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from octobert.errors import PlanError
from octobert.graph import ops
from octobert.plan import LIMITS, SYMMETRIC_LIMITS, Quantizer, QuantPlan, Site

# Below this a scale is no longer a normal float32, and 1/scale overflows in some kernels.
MIN_SCALE = float(np.finfo(np.float32).tiny)


def activation_parameters(quantizer: Quantizer) -> tuple[np.float32, np.generic]:
    """Scale and zero point of a per-tensor quantizer with a range.

    The interval is widened to include 0, as ONNX requires 0.0 to be representable (padding and ReLU zeros stay exact).

    Raises:
        PlanError: the quantizer has no range.
    """
    if quantizer.low is None or quantizer.high is None:
        raise PlanError("an activation's quantizer has no range", fix="calibrate first")
    low, high = min(float(quantizer.low), 0.0), max(float(quantizer.high), 0.0)
    if quantizer.symmetric:
        bound = max(-low, high)
        half = 127.0
        scale = max(bound / half, MIN_SCALE)
        zero = 0 if quantizer.dtype == "int8" else 128
    else:
        lowest, highest = LIMITS[quantizer.dtype]
        scale = max((high - low) / (highest - lowest), MIN_SCALE)
        zero = int(np.clip(round(lowest - low / scale), lowest, highest))
    return np.float32(scale), np.dtype(quantizer.dtype).type(zero)


def quantize_weight(array: np.ndarray, quantizer: Quantizer) -> tuple[np.ndarray, np.ndarray]:
    """Symmetric integers and scales of a weight.

    Args:
        array: float weights of any shape.
        quantizer: int8 symmetric; `axis` for one scale per channel.

    Returns:
        (integers of the same shape, scales of shape () or (channels,)).
    """
    lowest, highest = SYMMETRIC_LIMITS[quantizer.dtype]
    axes = tuple(i for i in range(array.ndim) if i != quantizer.axis) if quantizer.axis is not None else None
    bound = np.abs(array).max(axis=axes)
    scale = np.maximum(bound / highest, MIN_SCALE).astype(np.float32)
    shape = [-1 if i == quantizer.axis else 1 for i in range(array.ndim)]
    spread = scale.reshape(shape) if quantizer.axis is not None else scale
    integers = np.clip(np.rint(array / spread), lowest, highest).astype(quantizer.dtype)
    return integers, scale


def write(model: ir.Model, plan: QuantPlan) -> None:
    """Write a plan into a float graph, in place.

    Raises:
        PlanError: the plan quantizes nothing, or names something that is not in the graph.
    """
    if not plan.quantized:
        raise PlanError(
            "the plan quantizes nothing",
            where=f"target {plan.target}",
            got="; ".join(sorted({d.reason for d in plan.decisions})) or "no sites",
            fix="choose another placement or allow more layers",
        )
    graph = model.graph
    nodes = {str(node.name): node for node in graph}
    pairs: dict[tuple[str, Quantizer], ir.Value] = {}
    for site, quantizer in plan.quantized:
        node = nodes.get(site.node)
        if node is None or str(node.inputs[site.input].name) != site.value:
            raise PlanError("the plan does not fit the graph", where=site.node, fix="plan again from this graph")
        key = (site.value, quantizer)
        if key not in pairs:
            pairs[key] = _dequantized_(graph, node, site, quantizer)
        if site.role != "embedding.weight":
            node.replace_input_with(site.input, pairs[key])
    ops.clean_(model)


def _dequantized_(graph: ir.Graph, node: ir.Node, site: Site, quantizer: Quantizer) -> ir.Value:
    value = node.inputs[site.input]
    if site.role == "embedding.weight":
        return _write_embedding_(graph, node, quantizer)
    if site.is_weight:
        return _write_weight_(graph, node, value, quantizer)
    return _write_activation_(graph, node, value, quantizer)


def _write_activation_(graph: ir.Graph, node: ir.Node, value: ir.Value, quantizer: Quantizer) -> ir.Value:
    scale, zero = activation_parameters(quantizer)
    name = _free(graph, str(value.name))
    scale_value = ops.initializer(graph, f"{name}.scale", np.array(scale))
    zero_value = ops.initializer(graph, f"{name}.zero_point", np.array(zero))
    integer = ir.DataType.from_numpy(zero_value.const_value.numpy().dtype)
    quantize = ops.make_node("QuantizeLinear", [value, scale_value, zero_value], f"{name}.quantized", dtype=integer)
    dequantize = ops.make_node("DequantizeLinear", [quantize.outputs[0], scale_value, zero_value], f"{name}.dequantized")
    graph.insert_before(node, [quantize, dequantize])
    return dequantize.outputs[0]


def _write_weight_(graph: ir.Graph, node: ir.Node, value: ir.Value, quantizer: Quantizer) -> ir.Value:
    integers, scale = quantize_weight(value.const_value.numpy(), quantizer)
    name = str(value.name)
    weight = ops.initializer(graph, f"{name}.quantized", integers)
    scale_value = ops.initializer(graph, f"{name}.scale", scale)
    zero_value = ops.initializer(graph, f"{name}.zero_point", np.zeros_like(scale, dtype=quantizer.dtype))
    attributes = {} if quantizer.axis is None else {"axis": quantizer.axis}
    dequantize = ops.make_node("DequantizeLinear", [weight, scale_value, zero_value], f"{name}.dequantized", attributes)
    graph.insert_before(node, [dequantize])
    return dequantize.outputs[0]


def _write_embedding_(graph: ir.Graph, gather: ir.Node, quantizer: Quantizer) -> ir.Value:
    """table[ids] as int8 rows times their own scale; the result takes the place of the float Gather."""
    table, ids = gather.inputs
    integers, scale = quantize_weight(table.const_value.numpy(), quantizer)
    name, output = str(table.name), gather.outputs[0]
    rows = ops.initializer(graph, f"{name}.quantized", integers)
    row_scales = ops.initializer(graph, f"{name}.scale", scale.reshape(-1, 1))
    picked = ops.make_node("Gather", [rows, ids], f"{name}.rows", {"axis": 0}, dtype=ir.DataType.INT8)
    floats = ops.make_node("Cast", picked.outputs, f"{name}.rows_float", {"to": ir.DataType.FLOAT})
    scales = ops.make_node("Gather", [row_scales, ids], f"{name}.row_scales", {"axis": 0})
    product = ops.make_node("Mul", [floats.outputs[0], scales.outputs[0]], f"{name}.dequantized")
    graph.insert_before(gather, [picked, floats, scales, product])
    ir.convenience.replace_all_uses_with(output, product.outputs[0])
    return product.outputs[0]


def _free(graph: ir.Graph, name: str) -> str:
    candidate, count = name, 0
    while f"{candidate}.scale" in graph.initializers:
        count += 1
        candidate = f"{name}_{count}"
    return candidate
