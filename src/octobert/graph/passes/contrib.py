"""ONNX Runtime's own operators where ONNX has none: 16-bit pairs before opset 21, and GELU as one operator before 20."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from octobert.graph import gelu, operators

# The last opset whose operators mean what those of opset 21 mean, and that has no 16-bit pairs.
OPSET = 20
# ONNX has Gelu from here on.
_GELU_OPSET = 20
_WORDS = {
    ir.DataType.INT8: "QInt8",
    ir.DataType.UINT8: "QUInt8",
    ir.DataType.INT16: "QInt16",
    ir.DataType.UINT16: "QUInt16",
}


@dataclass(frozen=True)
class PairTypes:
    """The integer types of a graph's pairs, as onnxruntime's quantizer calls them; "none" where there are none."""

    activation: str
    weight: str


def pairs_(model: ir.Model) -> int:
    """Write all pairs in ONNX Runtime's domain if one of them has 16 bits, in place; how many nodes changed."""
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
    """The types of a graph's activations and weights; of several, the one that most have."""
    found: dict[bool, list[str]] = {True: [], False: []}
    for node in model.graph:
        if node.op_type == "DequantizeLinear" and node.inputs[0].dtype in _WORDS:
            is_weight = operators.const_array(node.inputs[0]) is not None
            found[is_weight].append(_WORDS[node.inputs[0].dtype])
    most = {key: max(words, key=words.count, default="none") for key, words in found.items()}
    return PairTypes(activation=most[False], weight=most[True])


def fuse_gelu_(model: ir.Model) -> int:
    """GELU in its parts becomes one operator, ONNX's own from opset 20 on, in place; how many did."""
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
