"""Write operators for older opsets: 16-bit Q/DQ in ONNX Runtime's domain before opset 21, and GELU as one operator.

GELU is found in primitive operators, x · ½(1 + erf(x / √2)) with factors in any order (Hendrycks and Gimpel, "Gaussian Error
Linear Units", 2016).
"""

from __future__ import annotations

import onnx_ir as ir

from octobert.graph import operators
from octobert.graph.passes import Pass, opset

# The last opset without 16-bit Quantize/DequantizeLinear; the other operators are the same as in opset 21.
OPSET = 20
# The first opset with Gelu.
_GELU_OPSET = 20
# Relative. Constants in the graph are float32, and exporters write them with more or fewer digits.
_SAME = 1e-4
_QUANT_TYPES = {
    ir.DataType.INT8: "QInt8",
    ir.DataType.UINT8: "QUInt8",
    ir.DataType.INT16: "QInt16",
    ir.DataType.UINT16: "QUInt16",
}


def pairs_(model: ir.Model) -> int:
    """Move all Q/DQ nodes to ONNX Runtime's domain if one of them has 16 bits, in place; return the number of nodes."""
    graph = model.graph
    if graph.opset_imports[""] <= OPSET:
        return 0
    nodes = [node for node in graph if node.op_type in operators.PAIR]
    for node in nodes:
        node.domain = operators.MICROSOFT
    graph.opset_imports[""] = OPSET
    graph.opset_imports.setdefault(operators.MICROSOFT, 1)
    for node in graph:
        node.version = None
    return len(nodes)


def pair_types(model: ir.Model) -> dict[str, str]:
    """Return the integer types of a graph, as onnxruntime's quantizer names them, or "none".

    Returns:
        `activation_dtype` and `weight_dtype` → the type that is most frequent.
    """
    types: dict[str, list[str]] = {"activation_dtype": [], "weight_dtype": []}
    for node in model.graph:
        if node.op_type == "DequantizeLinear":
            integers = operators.input_of(node, 0)
            if integers.dtype in _QUANT_TYPES:
                key = (
                    "activation_dtype"
                    if operators.const_array(integers) is None
                    else "weight_dtype"
                )
                types[key].append(_QUANT_TYPES[integers.dtype])
    return {key: max(names, key=names.count, default="none") for key, names in types.items()}


def fuse_own_gelu_(model: ir.Model) -> int:
    """Replace primitive GELUs by ONNX's own operator, in place, in the first opset that has it; return how many."""
    if model.graph.opset_imports[""] < _GELU_OPSET:
        opset.convert_(model, _GELU_OPSET)
    return fuse_gelu_(model)


def fuse_gelu_(model: ir.Model) -> int:
    """Replace primitive GELUs by one operator, ONNX's own from opset 20 on, in place; return how many."""
    graph, count = model.graph, 0
    domain = "" if graph.opset_imports[""] >= _GELU_OPSET else operators.MICROSOFT
    for erf in [node for node in graph if node.op_type == "Erf"]:
        scaled = operators.producer(erf.inputs[0], "Div", "Mul")
        if scaled is None or not _is_constant(
            scaled.inputs[1], 2.0**0.5 if scaled.op_type == "Div" else 0.5**0.5
        ):
            continue
        x, last = scaled.inputs[0], _last(scaled.inputs[0], erf)
        if last is None:
            continue
        end = last.outputs[0]
        name, last.name, end.name = str(end.name), f"{last.name}.product", f"{end.name}.product"
        node = operators.make_node("Gelu", [x], name, dtype=end.dtype, shape=end.shape)
        node.domain = domain
        graph.insert_before(last, [node])
        ir.convenience.replace_all_uses_with(end, node.outputs[0], replace_graph_outputs=True)
        count += 1
    if count and domain:
        graph.opset_imports.setdefault(domain, 1)
    operators.clean_(model)
    return count


def _last(x: ir.Value | None, erf: ir.Node) -> ir.Node | None:
    """Return the product (1 + output of `erf`) · x · ½, or None."""
    node, missing = operators.readers(erf.outputs[0])[0], {"x", "half"}
    if node.op_type != "Add" or not _is_constant(node.inputs[1], 1.0):
        return None
    while missing:
        product = operators.only_reader(node.outputs[0], "Mul")
        factors = (
            _factors(operators.other_input(product, node.outputs[0])[1], x)
            if product is not None
            else set()
        )
        if product is None or not factors or not factors <= missing:
            return None
        node, missing = product, missing - factors
    return node


def _factors(value: ir.Value | None, x: ir.Value | None) -> set[str]:
    """Return which of x and ½ a value is the product of; an empty set for any other value."""
    if _is_constant(value, 0.5):
        return {"half"}
    if value is x:
        return {"x"}
    half_x = operators.producer(value, "Mul")
    halved = half_x is not None and half_x.inputs[0] is x and _is_constant(half_x.inputs[1], 0.5)
    return {"x", "half"} if halved else set()


def _is_constant(value: ir.Value | None, number: float) -> bool:
    scalar = operators.const_scalar(value)
    return scalar is not None and abs(scalar - number) <= _SAME * number


GELU = Pass(fuse_gelu_)
OWN_GELU = Pass(fuse_own_gelu_)
PAIRS = Pass(pairs_)
