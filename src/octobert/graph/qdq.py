"""The only writer of 8-bit operators: it writes a plan into a float graph.

Forms:
    activation   x → QuantizeLinear → DequantizeLinear → operator; sites with the same value and quantizer share the pair
    output       operator → the same pair → all readers of the value
    weight       int8 initializer → DequantizeLinear(axis) → operator
    groups       int4 initializer → DequantizeLinear(axis=0, block_size) → operator
    weight pair  float initializer → QuantizeLinear(axis) → DequantizeLinear(axis) → operator
    per token    nothing: the runtime quantizes the activation; the group of channels is in the metadata of the file
    dynamic      x → DynamicQuantizeLinear, once for all readers → MatMulInteger → Cast → Mul with both scales
    embedding    Gather from the int8 table and from its scales, Cast, Mul: only the rows that are read are dequantized
Operators that the plan leaves in float keep reading the float value, in float32. If the plan asks for float16 or bfloat16,
`passes.float16` converts the finished graph; weights and tables are rounded here with scales that the type can represent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir

from octobert.core.errors import PlanError
from octobert.core.plan import (
    FLOAT,
    GROUP_METADATA,
    LIMITS,
    OUTPUT,
    FloatType,
    Quantizer,
    QuantPlan,
    Site,
    middle_of,
)
from octobert.graph import operators
from octobert.graph.passes import float16

# The smallest normal float32. With smaller scales, 1/scale overflows in some kernels.
MIN_SCALE = float(np.finfo(np.float32).tiny)
# The first opset whose Quantize/DequantizeLinear take the type, if later than the canonical one.
_OPSETS = {"int4": 21, "int16": 21, "uint16": 21, "float8e4m3": 19}
# Of the sum of two neighbours that share 16 bits: 128 · 255 fits, 129 · 255 does not.
PAIR_LIMIT = 128
# Ends of the interval that `weight_ranges: mse` tries, as fractions of the largest weight.
_FRACTIONS = np.linspace(0.6, 1.0, 41)

Scales = Mapping[str, np.ndarray]


def activation_parameters(quantizer: Quantizer) -> tuple[np.float32, np.generic]:
    """Return scale and zero point of a per-tensor quantizer with a range.

    The interval is widened to include 0, so that padding and zeros of ReLU stay exact.
    Source: ONNX operator specification, QuantizeLinear.

    Raises:
        PlanError: the quantizer has no range.

    Example:
        >>> scale, zero = activation_parameters(Quantizer(dtype="uint8", symmetric=False, low=-1.0, high=1.55))
        >>> round(float(scale), 4), int(zero)
        (0.01, 100)
    """
    if quantizer.low is None or quantizer.high is None:
        raise PlanError(
            "the quantizer of an activation has no range",
            expected="low and high",
            fix="calibrate first",
        )
    low, high = min(float(quantizer.low), 0.0), max(float(quantizer.high), 0.0)
    lowest, highest = quantizer.limits
    if quantizer.symmetric:
        # uint8: 128 stands for zero, with 127 numbers on either side.
        zero = 0 if lowest < 0 else (highest + 1) // 2
        scale = max(max(-low, high) / (highest - zero), MIN_SCALE)
    else:
        scale = max((high - low) / (highest - lowest), MIN_SCALE)
        zero = int(np.clip(round(lowest - low / scale), lowest, highest))
    return np.float32(scale), numpy_type(quantizer).type(zero)


def numpy_type(quantizer: Quantizer) -> np.dtype:
    """Return the NumPy type of quantized numbers."""
    return np.dtype(ml_dtypes.float8_e4m3fn if quantizer.dtype == "float8e4m3" else quantizer.dtype)


def rounded_activation(values: np.ndarray, quantizer: Quantizer) -> np.ndarray:
    """Return values after quantization and dequantization."""
    scale, zero = activation_parameters(quantizer)
    shift = np.float32(zero)
    # QuantizeLinear clips to the limits of the type: symmetric int8 reaches -128.
    integers = _nearest(values / scale, quantizer)
    integers += shift
    np.clip(integers, *LIMITS[quantizer.dtype], out=integers)
    integers -= shift
    integers *= scale
    return integers


def _nearest(values: np.ndarray, quantizer: Quantizer) -> np.ndarray:
    """Return the nearest numbers of the type; integers take the place of the values, and are not clipped."""
    values = np.asarray(values)
    if quantizer.dtype == "float8e4m3":
        return np.asarray(
            np.clip(values, *LIMITS[quantizer.dtype])
            .astype(numpy_type(quantizer))
            .astype(np.float32)
        )
    np.rint(values, out=values)
    return values


def weight_scale(array: np.ndarray, quantizer: Quantizer) -> np.ndarray:
    """Return the scale of a weight, of shape () or (channels,), or (groups, channels) of a weight with groups.

    `weight_ranges: mse` chooses, per scale, the end of the interval with the least squared error.

    Raises:
        PlanError: the input channels of a weight do not divide into groups.
    """
    highest = quantizer.weight_limits[1]
    if not quantizer.symmetric:
        highest = LIMITS[quantizer.dtype][1]
    shape: tuple[int, ...] = array.shape
    axes: tuple[int, ...] | None = None
    if quantizer.group is not None:
        if len(array) % quantizer.group:
            raise PlanError(
                "the input channels of a layer do not divide into groups",
                got=f"{len(array)} channels, groups of {quantizer.group}",
                fix=f"set group to a divisor of {len(array)}",
            )
        shape, axes = (-1, quantizer.group, array.shape[1]), (1,)
    else:
        axes = _other_axes(array, quantizer.axis)
    bound: np.ndarray = _largest(array.reshape(shape), axes)
    if quantizer.limits_pairs:
        bound = np.maximum(bound, _largest(pair_sums(array).reshape(shape), axes))
    if not quantizer.symmetric:
        bound = np.maximum(array.max(axis=axes), 0) - np.minimum(array.min(axis=axes), 0)
    if quantizer.weight_ranges == "max":
        scale: np.ndarray = np.maximum(bound / highest, MIN_SCALE).astype(np.float32)
        return scale
    scales = [np.maximum(bound * fraction / highest, MIN_SCALE) for fraction in _FRACTIONS]
    errors = [
        ((array - dequantized_weight(array, quantizer, scale)) ** 2).reshape(shape).sum(axis=axes)
        for scale in scales
    ]
    best = _FRACTIONS[np.argmin(errors, axis=0)]
    scale = np.maximum(bound * best / highest, MIN_SCALE).astype(np.float32)
    return scale


def _largest(array: np.ndarray, axes: tuple[int, ...] | None) -> np.ndarray:
    """Return the largest magnitudes over axes, without a copy of the array."""
    largest: np.ndarray = np.maximum(array.max(axis=axes), -array.min(axis=axes))
    return largest


def has_pairs(weight: Any) -> bool:
    """Return whether the products of neighbouring input channels, 0 and 1, 2 and 3, share 16 bits. They do where the channels
    are packed in fours; OpenVINO packs another number of channels differently.

    Args:
        weight: [in, ...].
    """
    return len(weight) % 4 == 0


def pair_sums(weight: Any) -> Any:
    """Return each weight plus the one whose product shares 16 bits with its own, on CPUs without VNNI (VPMADDUBSW).

    Args:
        weight: [in, ...], an array or a tensor. Without pairs (`has_pairs`), another weight can be as large.
    """
    if not has_pairs(weight):
        return 2 * weight
    pairs = weight.reshape(-1, 2, *weight.shape[1:])
    return (pairs + pairs[:, [1, 0]]).reshape(weight.shape)


def within_pairs(numbers: Any) -> Any:
    """Return numbers of which no two that share 16 bits are more than `PAIR_LIMIT` when they are rounded.

    Args:
        numbers: weights in steps of their scale, [in, ...], an array or a tensor.

    Example:
        >>> within_pairs(np.array([127.0, 21.5, 100.0, -100.0])).tolist()
        [116.5, 11.0, 100.0, -100.0]
    """
    # Each of two halves that are rounded up adds one half.
    sums, limit = pair_sums(numbers), PAIR_LIMIT - 0.5
    return numbers - (sums - sums.clip(-limit, limit)) / 2


def _other_axes(array: np.ndarray, axis: int | None) -> tuple[int, ...] | None:
    """Return the axes that share a scale; None for all of them."""
    return None if axis is None else tuple(i for i in range(array.ndim) if i != axis)


def number_limits(
    array: np.ndarray, quantizer: Quantizer, scale: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the lowest and highest number of a weight around zero, in a form that broadcasts over it.

    Args:
        array: float weights.
        quantizer: asymmetric ones have their zero point where the smallest weight is the first number of the type.
        scale: as of `weight_scale`.
    """
    lowest, highest = map(np.asarray, quantizer.weight_limits)
    if quantizer.symmetric:
        if quantizer.limits_pairs and not has_pairs(array):
            highest = np.asarray(PAIR_LIMIT // 2)
            lowest = -highest
        return lowest, highest
    axes = _other_axes(array, quantizer.axis)
    first, last = LIMITS[quantizer.dtype]
    least = np.minimum(array.min(axis=axes, keepdims=axes is not None), 0)
    below = np.clip(np.rint(-least / spread(scale, array.shape, quantizer.axis)), first, last)
    return first - below, last - below


def quantize_weight(
    array: np.ndarray, quantizer: Quantizer, scale: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return a weight as integers or 8-bit numbers around zero, with its scales.

    Args:
        array: float weights of any shape; two axes if the quantizer is asymmetric.
        quantizer: with `axis`, there is one scale per channel, or one per group of input channels and channel.
        scale: as of `weight_scale`, which computes it by default.

    Returns:
        (numbers around zero in the shape of `array`, scales).

    Example:
        >>> integers, scale = quantize_weight(np.array([[1.27, -0.5]]), Quantizer(dtype="int8", symmetric=True))
        >>> integers.tolist(), round(float(scale), 4)
        ([[127, -50]], 0.01)
    """
    scale = weight_scale(array, quantizer) if scale is None else scale
    numbers = array / spread(scale, array.shape, quantizer.axis)
    if quantizer.limits_pairs:
        numbers = within_pairs(numbers)
    # In place: a table of embeddings is half of a multilingual model.
    integers = _nearest(numbers, quantizer)
    np.clip(integers, *number_limits(array, quantizer, scale), out=integers)
    if not quantizer.symmetric:
        return integers.astype(np.int16), scale
    return integers.astype(np.int8 if quantizer.dtype == "uint8" else numpy_type(quantizer)), scale


def dequantized_weight(
    array: np.ndarray, quantizer: Quantizer, scale: np.ndarray | None = None
) -> np.ndarray:
    """Return a weight after quantization and dequantization."""
    integers, scale = quantize_weight(array, quantizer, scale)
    weight: np.ndarray = integers.astype(np.float32) * spread(scale, array.shape, quantizer.axis)
    return weight


def spread(scale: np.ndarray, shape: Sequence[int], axis: int | None) -> np.ndarray:
    """Return a scale in a form that broadcasts over an array of a shape."""
    if scale.ndim > 1:
        return np.repeat(scale, shape[0] // len(scale), axis=0)
    return (
        scale.reshape([-1 if i == axis else 1 for i in range(len(shape))])
        if axis is not None
        else scale
    )


def write(model: ir.Model, plan: QuantPlan, scales: Scales | None = None) -> None:
    """Write a plan into a float graph, in place.

    Args:
        plan: its sites refer to nodes of this graph.
        scales: name of a weight → its scale, for weights whose scale a weight correction chose.

    Raises:
        PlanError: the plan quantizes nothing, or refers to a site that is not in the graph.
    """
    if not plan.quantized and plan.method != FLOAT:
        raise PlanError(
            "the plan quantizes nothing",
            where=f"target {plan.target}",
            got="; ".join(sorted({d.reason for d in plan.decisions})) or "no sites",
            fix="choose another placement or allow more layers",
        )
    graph = model.graph
    nodes = operators.nodes_of(graph)
    scales = {**shared_scales(nodes, plan), **(scales or {})}
    # (value, quantizer) → the output of the pair that all sites with both of them share.
    pairs: dict[tuple[str, Quantizer], ir.Value] = {}
    dynamic: list[Site] = []
    # Of layers whose input is quantized per token.
    widths: list[int] = []
    # Outputs last: until then all readers refer to the value by its own name.
    for site, quantizer in sorted(plan.quantized, key=lambda item: item[0].input == OUTPUT):
        node = nodes.get(site.node)
        values = (
            []
            if node is None
            else node.outputs
            if site.input == OUTPUT
            else node.inputs[site.input : site.input + 1]
        )
        value = values[0] if values else None
        if (
            node is None
            or value is None
            or str(value.name) != site.value
            or (site.is_weight and value.const_value is None)
        ):
            raise PlanError(
                "the plan was made for another graph",
                where=site.node,
                fix="make the plan from this graph",
            )
        if quantizer.dynamic and quantizer.group is not None:
            widths.append(int(operators.constant_of(node.inputs[1]).shape[0]))
        elif quantizer.dynamic:
            dynamic.append(site)
        elif site.role == "embedding.weight":
            _write_embedding_(graph, node, *_rounded(value, quantizer, scales, plan.float_parts))
        elif site.input == OUTPUT:
            _write_activation_(graph, node, site, value, quantizer)
        else:
            key = (site.value, quantizer)
            if key not in pairs and site.is_weight:
                integers, scale = _rounded(value, quantizer, scales, plan.float_parts)
                pairs[key] = _write_weight_(graph, node, site.value, quantizer, integers, scale)
            elif key not in pairs:
                pairs[key] = _write_activation_(graph, node, site, value, quantizer)
            node.replace_input_with(site.input, pairs[key])
    _write_dynamic_(graph, nodes, dynamic)
    if plan.group is not None:
        # OpenVINO leaves layers in float that are narrower than a group.
        model.metadata_props[GROUP_METADATA] = str(min(plan.group, *widths))
    set_opset_(model, plan)
    operators.clean_(model)


def _rounded(
    value: ir.Value, quantizer: Quantizer, scales: Scales, parts: FloatType
) -> tuple[np.ndarray, np.ndarray]:
    """Return integers and scales of a weight, with scales that the type of the float parts can represent."""
    array, name = operators.constant_of(value), str(value.name)
    scale = scales[name] if name in scales else weight_scale(array, quantizer)
    return quantize_weight(array, quantizer, float16.rounded_scale(scale, parts))


def set_opset_(model: ir.Model, plan: QuantPlan) -> None:
    """Raise the opset of the model if the types of the plan require it, in place."""
    required = max((_OPSETS.get(quantizer.dtype, 0) for _, quantizer in plan.quantized), default=0)
    model.graph.opset_imports[""] = max(model.graph.opset_imports[""], required)


def shared_scales(nodes: Mapping[str, ir.Node], plan: QuantPlan) -> dict[str, np.ndarray]:
    """Return the scales of weights that share an interval: the largest scale of each group."""
    groups: dict[str, list[tuple[str, np.ndarray]]] = {}
    for site, quantizer in plan.quantized:
        if quantizer.shared is not None and site.is_weight and site.node in nodes:
            array = operators.const_array(nodes[site.node].inputs[site.input])
            if array is not None:
                groups.setdefault(quantizer.shared, []).append(
                    (site.value, weight_scale(array, quantizer))
                )
    return {
        value: np.max([s for _, s in group], axis=0)
        for group in groups.values()
        for value, _ in group
    }


def _write_dynamic_(graph: ir.Graph, nodes: Mapping[str, ir.Node], sites: list[Site]) -> None:
    """Write x @ W with x quantized at run time; ONNX Runtime fuses this into DynamicQuantizeMatMul."""
    quantized: dict[str, list[ir.Value]] = {}
    for site in sites:
        matmul = nodes[site.node]
        dequantize = operators.producer(matmul.inputs[1], "DequantizeLinear")
        if dequantize is None:
            raise PlanError(
                "a dynamically quantized activation needs an 8-bit weight",
                where=site.node,
                fix="quantize both or none",
            )
        if site.value not in quantized:
            node = make_dynamic(operators.input_of(matmul, 0), site.value)
            graph.insert_before(matmul, [node])
            quantized[site.value] = list(node.outputs)
        integers, scale, zero = quantized[site.value]
        weight, weight_scales = dequantize.inputs[:2]
        chain = operators.Chain(graph, str(matmul.outputs[0].name))
        product = chain.MatMulInteger("integer", integers, weight, zero, dtype=ir.DataType.INT32)
        floats = chain.Cast("cast", product, to=ir.DataType.FLOAT)
        chain.Mul("dequantized", floats, chain.Mul("scales", scale, weight_scales))
        chain.replace_(matmul)


def _write_activation_(
    graph: ir.Graph, node: ir.Node, site: Site, value: ir.Value, quantizer: Quantizer
) -> ir.Value:
    """Write a pair before a node, or after it for all readers of its output; a graph output stays the float value."""
    after, readers = site.input == OUTPUT, list(value.uses())
    pair = make_pair(
        graph,
        operators.free_name(site.value, graph.initializers, suffix=".scale"),
        value,
        quantizer,
    )
    (graph.insert_after if after else graph.insert_before)(node, pair)
    for reader, index in readers if after else ():
        reader.replace_input_with(index, pair[-1].outputs[0])
    return pair[-1].outputs[0]


def make_pair(graph: ir.Graph, name: str, value: ir.Value, quantizer: Quantizer) -> list[ir.Node]:
    """Make QuantizeLinear and DequantizeLinear of an activation; their constants are added to the graph, the nodes are not."""
    scale, zero = activation_parameters(quantizer)
    chain, integer = operators.Chain(graph, name), ir.DataType.from_numpy(zero.dtype)
    constants = [
        operators.initializer(graph, f"{name}.scale", scale),
        operators.initializer(graph, f"{name}.zero_point", zero),
    ]
    quantized = chain.QuantizeLinear("quantized", value, *constants, dtype=integer)
    chain.DequantizeLinear("dequantized", quantized, *constants)
    return chain.nodes


def make_dynamic(value: ir.Value, name: str) -> ir.Node:
    """Make DynamicQuantizeLinear of a value; its outputs are the integers, their scale and their zero point."""
    outputs = [ir.Value(name=f"{name}.{part}") for part in ("quantized", "scale", "zero_point")]
    return ir.node("DynamicQuantizeLinear", [value], outputs=outputs, name=f"{name}.quantized")


def _write_weight_(
    graph: ir.Graph,
    node: ir.Node,
    name: str,
    quantizer: Quantizer,
    integers: np.ndarray,
    scale: np.ndarray,
) -> ir.Value:
    dtype, zero = numpy_type(quantizer), middle_of(quantizer.dtype)
    constants = [operators.initializer(graph, f"{name}.scale", scale)]
    attributes: dict[str, Any] = {} if quantizer.axis is None else {"axis": quantizer.axis}
    if quantizer.group is None:
        zeros = np.full_like(scale, zero, dtype=dtype)
        if not quantizer.symmetric:
            axes = _other_axes(integers, quantizer.axis)
            zeros = np.maximum(0, -integers.min(axis=axes)).astype(dtype).reshape(scale.shape)
        constants.append(operators.initializer(graph, f"{name}.zero_point", zeros))
    else:
        # Without zero points, which are 0: OpenVINO subtracts them at run time, half as much time again.
        attributes = {"axis": 0, "block_size": quantizer.group}
    chain = operators.Chain(graph, name)
    if quantizer.weight_form == "pair":
        # Store the dequantized integers, not the original weight: QuantizeLinear then yields exactly these integers, whichever
        # way a runtime rounds halves, although it does not know the narrower limits of mse, pairs or symmetric int8.
        exact = integers.astype(np.float32) * spread(scale, integers.shape, quantizer.axis)
        weight = operators.initializer(graph, f"{name}.rounded", exact.astype(np.float32))
        integer = ir.DataType.from_numpy(dtype)
        weight = chain.QuantizeLinear("quantized", weight, *constants, dtype=integer, **attributes)
    else:
        stored = integers
        if quantizer.dtype == "uint8":
            shift = spread(zeros.astype(np.int16), integers.shape, quantizer.axis)
            stored = (integers.astype(np.int16) + shift).astype(dtype)
        weight = operators.initializer(graph, f"{name}.quantized", stored)
    result = chain.DequantizeLinear("dequantized", weight, *constants, **attributes)
    graph.insert_before(node, chain.nodes)
    return result


def _write_embedding_(
    graph: ir.Graph, gather: ir.Node, integers: np.ndarray, scale: np.ndarray
) -> None:
    """Replace a float Gather from the embedding table by a Gather of int8 rows, times their scales."""
    table, ids = operators.input_of(gather, 0), operators.input_of(gather, 1)
    chain = operators.Chain(graph, str(table.name))
    rows = operators.initializer(graph, f"{chain.stem}.quantized", integers)
    row_scales = operators.initializer(graph, f"{chain.stem}.scale", scale.reshape(-1, 1))
    picked = chain.Gather("rows", rows, ids, dtype=ir.DataType.INT8, axis=0)
    floats = chain.Cast("rows_float", picked, to=ir.DataType.FLOAT)
    product = chain.Mul("dequantized", floats, chain.Gather("row_scales", row_scales, ids, axis=0))
    graph.insert_before(gather, chain.nodes)
    ir.convenience.replace_all_uses_with(gather.outputs[0], product)
