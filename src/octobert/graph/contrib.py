"""ONNX Runtime's own operators where ONNX has none: 16-bit pairs before opset 21, and GELU as one operator before 20."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from octobert.graph import ops

DOMAIN = "com.microsoft"
# The last opset whose operators mean what those of opset 21 mean, and that has no 16-bit pairs.
OPSET = 20
# ONNX has Gelu from here on.
_GELU_OPSET = 20
_PAIR = ("QuantizeLinear", "DequantizeLinear")
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
    nodes = [node for node in graph if node.op_type in _PAIR]
    for node in nodes:
        node.domain = DOMAIN
    graph.opset_imports[""] = OPSET
    graph.opset_imports.setdefault(DOMAIN, 1)
    for node in graph:
        node.version = None
    return len(nodes)


def pair_types(model: ir.Model) -> PairTypes:
    """The types of a graph's activations and weights; of several, the one that most have."""
    found: dict[bool, list[str]] = {True: [], False: []}
    for node in model.graph:
        if node.op_type == "DequantizeLinear" and node.inputs[0].dtype in _WORDS:
            is_weight = ops.const_array(node.inputs[0]) is not None
            found[is_weight].append(_WORDS[node.inputs[0].dtype])
    most = {key: max(words, key=words.count, default="none") for key, words in found.items()}
    return PairTypes(activation=most[False], weight=most[True])


def fuse_gelu_(model: ir.Model) -> int:
    """(x * (1 + erf(x / sqrt 2))) * 0.5, as the canonical graph has it, becomes one Gelu, in place; how many did."""
    graph, count = model.graph, 0
    for erf in [node for node in graph if node.op_type == "Erf"]:
        divided = ops.producer(erf.inputs[0], "Div")
        plus = ops.consumers(erf.outputs[0], "Add")
        double = ops.consumers(plus[0].outputs[0], "Mul") if len(plus) == 1 else []
        half = ops.consumers(double[0].outputs[0], "Mul") if len(double) == 1 else []
        if divided is None or len(half) != 1 or divided.inputs[0] not in double[0].inputs:
            continue
        constants = [ops.const_scalar(v) for node in (divided, plus[0], half[0]) for v in node.inputs]
        numbers = sorted(number for number in constants if number is not None)
        if [round(number, 5) for number in numbers] != [0.5, 1.0, 1.41421]:
            continue
        last = half[0]
        gelu = ops.make_node("Gelu", [divided.inputs[0]], f"{last.outputs[0].name}", shape=last.outputs[0].shape)
        gelu.domain = "" if graph.opset_imports[""] >= _GELU_OPSET else DOMAIN
        last.outputs[0].name = f"{last.outputs[0].name}.product"
        chain = [last, double[0], plus[0], erf, divided]
        ir.convenience.replace_nodes_and_values(graph, last, chain, [gelu], [last.outputs[0]], [gelu.outputs[0]])
        count += 1
    if count and graph.opset_imports[""] < _GELU_OPSET:
        graph.opset_imports.setdefault(DOMAIN, 1)
    ops.clean_(model)
    return count
