"""The linter: checks any Q/DQ ONNX file against the table of a target.

Input: a file and `Capabilities`. Output: findings (refused, runs in float, note), each with its operators and a fix.
Nothing is run; `inspector` shows what a runtime really runs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, get_args

import numpy as np
import onnx_ir as ir

from octobert.core.capability import Capabilities, kind_of
from octobert.core.onnx_files import read_onnx
from octobert.core.plan import LIMITS, DType, FloatType, middle_of
from octobert.core.profile import Finding, Lint, Severity
from octobert.graph import operators, parts

_PRODUCTS = ("MatMul", "Gemm")
# Products that are integers in any file that has them.
_INTEGER_OPERATORS = ("QLinearMatMul", "MatMulIntegerToFloat")
# Operators that only move numbers, and run in their type.
_MOVES = (
    "Reshape",
    "Transpose",
    "Squeeze",
    "Unsqueeze",
    "Flatten",
    "Slice",
    "Split",
    "Concat",
    "Gather",
    "Identity",
    "Expand",
    "Cast",
)
_ONNX = ("", "ai.onnx")
_FLOATS = {
    ir.DataType.FLOAT: "float32",
    ir.DataType.FLOAT16: "float16",
    ir.DataType.BFLOAT16: "bfloat16",
}
_DTYPES: dict[ir.DataType, DType] = {
    ir.DataType.INT4: "int4",
    ir.DataType.INT8: "int8",
    ir.DataType.UINT8: "uint8",
    ir.DataType.INT16: "int16",
    ir.DataType.UINT16: "uint16",
    ir.DataType.FLOAT8E4M3FN: "float8e4m3",
}
# The size limit of protobuf messages, and so of ONNX files.
_PROTOBUF_BYTES = 2**31


def lint(path: Path, capabilities: Capabilities) -> Lint:
    """Check an ONNX file against the table of a target.

    Args:
        path: the ONNX file.
        capabilities: the target's table.

    Raises:
        ModelError: the file is not an ONNX model, or its external data is missing or elsewhere.
    """
    graph = read_onnx(path).graph
    broken: dict[_Rule, list[str]] = defaultdict(list)
    for name, rule in _about_nodes(graph, capabilities):
        broken[rule].append(name)
    products = [
        node
        for node in graph
        if node.op_type in _PRODUCTS and node.domain in _ONNX and not parts.is_apart(node)
    ]
    integer = [node for node in products if _why_float(node, capabilities) is None]
    whole = [
        node
        for node in graph
        if node.op_type in _INTEGER_OPERATORS and node.op_type not in capabilities.onnx.refuses
    ]
    findings = [
        *_about_file(path, graph, capabilities),
        *(
            Finding(**rule._asdict(), nodes=tuple(names[:5]), count=len(names))
            for rule, names in broken.items()
        ),
    ]
    order = get_args(Severity)
    findings.sort(key=lambda finding: order.index(finding.severity))
    return Lint(
        file=str(path),
        target=capabilities.name,
        products=len(products) + len(whole),
        integer=len(integer) + len(whole),
        findings=tuple(findings),
    )


class _Rule(NamedTuple):
    """A rule that a file breaks."""

    severity: Severity
    rule: str
    text: str
    fix: str | None = None


def _about_file(path: Path, graph: ir.Graph, target: Capabilities) -> Iterator[Finding]:
    opset = graph.opset_imports.get("", 0)
    low, high = target.onnx.opset
    if not low <= opset <= high:
        yield Finding(
            severity="refused",
            rule="opset",
            text=f"the file has opset {opset}, but {target.name} takes {low} to {high}",
            fix=f"export it with opset {min(high, max(low, opset))}",
        )
    inputs = [v for v in graph.inputs if v.name not in graph.initializers]
    free = [
        str(v.name)
        for v in inputs
        if v.shape is None or any(not isinstance(size, int) for size in v.shape)
    ]
    if free and target.shapes == "fixed":
        yield Finding(
            severity="refused",
            rule="shape",
            text=f"{target.name} needs a static shape, but these inputs have free axes",
            nodes=tuple(free),
            count=len(free),
            fix="make batch and sequence static (octobert does, with the recipe's shape)",
        )
    elif free and target.shapes == "profiles":
        yield Finding(
            severity="note",
            rule="shape",
            text="axes are free: the engine needs a profile with minimum, optimum and maximum shapes",
            nodes=tuple(free),
            count=len(free),
        )
    if path.stat().st_size >= _PROTOBUF_BYTES:
        yield Finding(
            severity="refused",
            rule="size",
            text="the file has 2 GiB or more, which protobuf cannot read",
            fix="save its weights as external data",
        )


def _about_nodes(graph: ir.Graph, target: Capabilities) -> Iterator[tuple[str, _Rule]]:
    """Yield (name of a node or a constant, a rule that it breaks)."""
    for node in graph:
        name = str(node.name or (node.outputs[0].name if node.outputs else node.op_type))
        yield from ((name, rule) for rule in _about_node(node, target))
    constants = [
        (str(v.name), v.const_value)
        for v in graph.initializers.values()
        if v.const_value is not None
    ]
    constants += [
        (str(n.outputs[0].name), n.attributes["value"].as_tensor())
        for n in graph
        if n.op_type == "Constant" and "value" in n.attributes
    ]
    for name, tensor in constants:
        yield from ((name, rule) for rule in _about_constant(tensor, target))


def _about_node(node: ir.Node, target: Capabilities) -> Iterator[_Rule]:
    if node.op_type in target.onnx.refuses:
        yield _Rule(
            "refused",
            "operator",
            f"{target.name} does not support {node.op_type}",
            "quantize statically",
        )
    elif node.domain not in (*_ONNX, *target.onnx.domains):
        yield _Rule(
            "refused",
            "domain",
            f"{target.name} does not support {node.domain}.{node.op_type}",
            "export plain ONNX operators",
        )
    elif node.op_type == "DequantizeLinear":
        yield from _about_dequantize(node, target)
    elif parts.is_apart(node):
        return  # in float on purpose
    elif node.op_type in _PRODUCTS:
        why = _why_float(node, target)
        if why is not None:
            yield _Rule("float", "product", f"{node.op_type} runs in float: {why[0]}", why[1])
    elif target.integer_only and not _is_integer(node, target):
        yield _Rule(
            "float",
            "operator",
            f"{node.op_type} runs in float: its inputs and outputs are not all quantized",
        )


def _about_dequantize(node: ir.Node, target: Capabilities) -> Iterator[_Rule]:
    """Yield the broken rules of one Q/DQ pair, or of one weight."""
    source, scale = node.inputs[0], operators.const_array(node.inputs[1])
    assert source is not None
    if source.dtype == ir.DataType.INT32:
        if not target.weights.int32_bias:
            yield _Rule(
                "refused",
                "bias",
                f"{target.name} does not take biases that are int32 behind DequantizeLinear",
                "leave biases float (onnxruntime: QuantizeBias: False)",
            )
        return
    if scale is not None and not (
        np.all(np.isfinite(scale.astype(np.float32))) and np.all(scale.astype(np.float32) > 0)
    ):
        yield _Rule(
            "refused", "scale", "a scale is zero, negative or not a number", "calibrate again"
        )
        return
    dtype, symmetric = _type_of(node)
    if dtype is None:
        yield _Rule(
            "refused",
            "type",
            f"{target.name} does not take values of type {_pair_type(node)}",
            "quantize to 8 bits",
        )
    elif _weight_behind(node) is None:
        yield from _about_activation(dtype, symmetric, scale, target)
    elif any(reader.op_type in _PRODUCTS for reader, _ in node.outputs[0].uses()):
        yield from _about_weight(node, dtype, symmetric, scale, target)


def _about_activation(
    dtype: DType, symmetric: bool, scale: np.ndarray | None, target: Capabilities
) -> Iterator[_Rule]:
    if not _accepts(target.activations.accepted, dtype, symmetric):
        yield _Rule(
            "refused",
            "activation",
            f"{target.name} takes {_activations(target)} activations, not {kind_of(dtype, symmetric)}",
            f"quantize activations to {_activations(target)}",
        )
    if scale is not None and target.activations.smallest_range:
        low, high = LIMITS[dtype]
        if float(scale.max()) * (high - low) < target.activations.smallest_range:
            yield _Rule(
                "refused",
                "range",
                f"a range is narrower than {target.name}'s minimum, {target.activations.smallest_range:g}",
                f"widen it (onnxruntime: MinimumRealRange {target.activations.smallest_range:g})",
            )


def _about_weight(
    node: ir.Node, dtype: DType, symmetric: bool, scale: np.ndarray | None, target: Capabilities
) -> Iterator[_Rule]:
    if dtype not in target.weights.accepted or not target.weights.takes(dtype, symmetric):
        expected = " or ".join(target.weights.accepted)
        yield _Rule(
            "refused",
            "weight",
            f"{target.name} takes symmetric {expected} weights, not {kind_of(dtype, symmetric)}",
            f"quantize weights to {expected}",
        )
    if scale is not None and scale.size > 1 and dtype != "int4":
        yield from _about_channels(node, target)
    if target.weights.form == "pair" and operators.const_array(node.inputs[0]) is not None:
        yield _Rule(
            "note",
            "weight-form",
            f"weights are integers; {target.name} prefers float weights with Q/DQ and folds them itself",
            "weight_form: pair (onnxruntime: AddQDQPairToWeight)",
        )


def _about_channels(node: ir.Node, target: Capabilities) -> Iterator[_Rule]:
    """Yield the broken rules of per-channel scales. The channels are the output axis, which is the first one in some Gemms."""
    if target.weights.axis is None:
        yield _Rule(
            "refused", "channels", f"{target.name} takes one scale per weight", "per_channel: false"
        )
        return
    if node.attributes.get_int("block_size", 0):
        yield _Rule(
            "float",
            "channels",
            f"{target.name} dequantizes weights with one scale per block",
            "per_channel: true",
        )
        return
    axis = node.attributes.get_int("axis", 1)
    for reader, index in node.outputs[0].uses():
        if reader.op_type not in _PRODUCTS or index != 1:
            continue
        swapped = reader.attributes.get_int("transB", 0)
        expected = 0 if reader.op_type == "Gemm" and swapped else target.weights.axis
        if axis % 2 != expected:
            text = f"{target.name} takes one scale per output channel (axis {expected}), not per index of axis {axis}"
            yield _Rule("refused", "channels", text, "quantize weights per output channel")


def _about_constant(tensor: ir.TensorProtocol, target: Capabilities) -> Iterator[_Rule]:
    """Yield the broken rules of a constant. Only small constants are read."""
    float_types: tuple[FloatType, ...] = (*target.float_parts.in_files, "float32")
    kind = _FLOATS.get(tensor.dtype)
    if tensor.dtype == ir.DataType.DOUBLE:
        yield _Rule("refused", "type", f"{target.name} does not take float64", "export in float32")
    elif kind is not None and kind not in float_types:
        yield _Rule(
            "refused",
            "type",
            f"{target.name} takes float parts of type {' or '.join(float_types)}, not {kind}",
            "float_parts: float32",
        )
    elif kind is not None and tensor.size <= 64:
        lowest = float(np.min(tensor.numpy().astype(np.float32), initial=0.0))
        if lowest < target.onnx.lowest_constant:
            yield _Rule(
                "refused",
                "constant",
                f"a constant is below {target.onnx.lowest_constant:g}, which {target.name} treats as minus infinity",
                "mask with -1e4 instead",
            )


def _why_float(node: ir.Node, target: Capabilities) -> tuple[str, str | None] | None:
    """Return why a product runs in float, and a fix; None if it runs in integers."""
    sides = [operators.producer(value, "DequantizeLinear") for value in node.inputs[:2]]
    if all(side is None for side in sides):
        return "neither input is quantized", None
    if not target.qdq:
        return f"{target.name} computes only its own integer operators, not Q/DQ", "placement: auto"
    weight = sides[1]
    if weight is not None and _type_of(weight)[0] == "int4" and "token" in target.weights.int4:
        # The runtime quantizes the other input itself, per token.
        return None
    if any(side is None for side in sides):
        side = sides[0] or sides[1]
        which = "weight" if side is not None and _weight_behind(side) is not None else "activation"
        return f"only its {which} is quantized", None
    for side in sides:
        assert side is not None
        dtype, symmetric = _type_of(side)
        if dtype is None:
            return f"an input of type {_pair_type(side)}", None
        if _weight_behind(side) is None and not _accepts(
            target.activations.computed, dtype, symmetric
        ):
            return (
                f"{kind_of(dtype, symmetric)} activations are dequantized first",
                f"quantize them to {_activations(target)}",
            )
    return None


def _is_integer(node: ir.Node, target: Capabilities) -> bool:
    """Return whether a target for whole graphs runs an operator in integers, or has nothing to compute."""
    if (
        node.op_type in (*operators.PAIR, *_MOVES, "Constant", "Shape")
        or not node.outputs
        or node.outputs[0].dtype not in (*_FLOATS, None)
    ):
        return True
    computed = [v for v in node.inputs if v is not None and operators.const_array(v) is None]
    inputs = all(operators.producer(v, "DequantizeLinear") for v in computed)
    outputs = all(reader.op_type == "QuantizeLinear" for reader, _ in node.outputs[0].uses())
    return (
        node.op_type in target.integer_operators
        and inputs
        and (outputs or node.outputs[0].is_graph_output())
    )


def _weight_behind(node: ir.Node) -> ir.Value | None:
    """Return the constant before a DequantizeLinear, stored as integers or as floats with Q/DQ."""
    value = node.inputs[0]
    quantize = operators.producer(value, "QuantizeLinear")
    value = quantize.inputs[0] if quantize is not None else value
    return value if operators.const_array(value) is not None else None


def _pair_type(node: ir.Node) -> ir.DataType:
    """Return the integer type of a DequantizeLinear's input: its own, or that of the zero point."""
    for value in (node.inputs[0], _zero_point(node)):
        if value is not None and value.dtype is not None:
            return value.dtype
        array = operators.const_array(value)
        if array is not None:
            return ir.DataType.from_numpy(array.dtype)
    return ir.DataType.UINT8


def _zero_point(node: ir.Node) -> ir.Value | None:
    return node.inputs[2] if len(node.inputs) > 2 else None


def _type_of(node: ir.Node) -> tuple[DType | None, bool]:
    """Return the type of a pair, or None if targets take no such type; and whether its zero point is in the middle."""
    dtype, value = _DTYPES.get(_pair_type(node)), _zero_point(node)
    zero = np.zeros(1, dtype=np.int8) if value is None else operators.const_array(value)
    return dtype, dtype is not None and zero is not None and bool(
        np.all(zero.astype(np.float32) == middle_of(dtype))
    )


def _accepts(pairs: Sequence[tuple[DType, bool]], dtype: DType, symmetric: bool) -> bool:
    """Return whether a type is accepted. Targets that take asymmetric types take symmetric ones too."""
    return (dtype, False) in pairs or (symmetric and (dtype, True) in pairs)


def _activations(target: Capabilities) -> str:
    return " or ".join(kind_of(*pair) for pair in target.activations.computed)
