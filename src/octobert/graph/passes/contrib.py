"""Write operators for older opsets: 16-bit Q/DQ in ONNX Runtime's domain before opset 21, and GELU as one operator."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from octobert.graph import gelu, operators
from octobert.graph.passes import opset

# The last opset without 16-bit Quantize/DequantizeLinear; the other operators are the same as in opset 21.
OPSET = 20
# The first opset with Gelu.
_GELU_OPSET = 20
_QUANT_TYPES = {
    ir.DataType.INT8: "QInt8",
    ir.DataType.UINT8: "QUInt8",
    ir.DataType.INT16: "QInt16",
    ir.DataType.UINT16: "QUInt16",
}


@dataclass(frozen=True)
class PairTypes:
    """Integer types of the activations and weights of a graph, as onnxruntime's quantizer names them, or "none"."""

    activation: str
    weight: str


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


def pair_types(model: ir.Model) -> PairTypes:
    """Return the types of a graph's activations and weights; the most frequent if there are several."""
    types: dict[bool, list[str]] = {True: [], False: []}
    for node in model.graph:
        if node.op_type == "DequantizeLinear":
            integers = operators.input_of(node, 0)
            if integers.dtype in _QUANT_TYPES:
                types[operators.const_array(integers) is not None].append(_QUANT_TYPES[integers.dtype])
    most = {is_weight: max(names, key=names.count, default="none") for is_weight, names in types.items()}
    return PairTypes(activation=most[False], weight=most[True])


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
        around = gelu.gelu_around(erf)
        if around is None:
            continue
        x, end = around
        last = end.producer()
        assert last is not None
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
