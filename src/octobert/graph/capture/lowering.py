"""Take fused operators apart: Gelu of opset 20, and those that ONNX Runtime's optimizer writes (`com.microsoft`).

Afterwards norms and linear layers have the same form, whichever tool wrote the graph.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from octobert.graph import operators

FUSED = ("SkipLayerNormalization", "BiasGelu", "Gelu", "FusedMatMul", "FusedGemm")


def lower_fused_(graph: ir.Graph) -> None:
    """Replace the fused operators in `FUSED` by plain ONNX, in place; others stay."""
    for node in [n for n in graph if n.domain == operators.MICROSOFT]:
        if node.op_type == "SkipLayerNormalization":
            _lower_skip_norm_(graph, node)
        elif node.op_type == "BiasGelu":
            _lower_bias_gelu_(graph, node)
        elif node.op_type == "FusedMatMul":
            _lower_fused_matmul_(graph, node)
        elif node.op_type == "FusedGemm" and _attribute(node, "activation", "") in ("Tanh", "Relu"):
            _lower_fused_gemm_(graph, node)
    for node in [n for n in graph if n.op_type == "Gelu"]:
        _lower_gelu_(graph, node)


def order_gelu_(graph: ir.Graph) -> None:
    """Rewrite x * (0.5 * (1 + erf(…))), from torch's exporter, as (x * (1 + erf(…))) * 0.5, in place.

    ONNX Runtime fuses only the second form, together with the bias before it; the first stays six operators.
    """
    for erf in [node for node in graph if node.op_type == "Erf"]:
        plus = operators.readers(erf.outputs[0])
        halved = operators.readers(plus[0].outputs[0]) if len(plus) == 1 and plus[0].op_type == "Add" else []
        if len(halved) != 1 or halved[0].op_type != "Mul" or plus[0].outputs[0] not in halved[0].inputs:
            continue
        place = 1 - list(halved[0].inputs).index(plus[0].outputs[0])
        half = halved[0].inputs[place]
        outer = operators.readers(halved[0].outputs[0])
        if operators.const_scalar(half) != 0.5 or len(outer) != 1 or outer[0].op_type != "Mul":
            continue
        other = 1 - list(outer[0].inputs).index(halved[0].outputs[0])
        x = outer[0].inputs[other]
        halved[0].replace_input_with(place, x)
        outer[0].replace_input_with(other, half)
        halved[0].outputs[0].shape = outer[0].outputs[0].shape


def _lower_gelu_(graph: ir.Graph, node: ir.Node) -> None:
    """Write Gelu in a form that every runtime fuses.

    Exact: (x * (1 + erf(x / sqrt 2))) * 0.5. Approximate: 0.5 x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x³))).
    """
    x, name = node.inputs[0], str(node.outputs[0].name)
    nodes: list[ir.Node] = []

    def constant(key: str, number: float) -> ir.Value:
        return operators.shared_initializer(graph, f"octobert.gelu.{key}", np.array(number, dtype=np.float32))

    def add(op_type: str, first: ir.Value | None, second: ir.Value | None, part: str) -> ir.Value:
        nodes.append(operators.make_node(op_type, [first, second] if second is not None else [first], f"{name}.{part}"))
        return nodes[-1].outputs[0]

    unit, half = constant("one", 1.0), constant("half", 0.5)
    if _attribute(node, "approximate", "none") == "tanh":
        cubic = add("Mul", add("Pow", x, constant("three", 3.0), "cube"), constant("cubic", 0.044715), "cubic")
        inner = add("Mul", add("Add", x, cubic, "inner"), constant("root", (2.0 / np.pi) ** 0.5), "scaled")
        add("Mul", add("Mul", x, half, "half"), add("Add", add("Tanh", inner, None, "tanh"), unit, "add"), "gelu")
    else:
        erf = add("Erf", add("Div", x, constant("root_two", 2.0**0.5), "div"), None, "erf")
        add("Mul", add("Mul", x, add("Add", erf, unit, "add"), "double"), half, "gelu")
    operators.replace_(graph, node, nodes)


def _lower_skip_norm_(graph: ir.Graph, node: ir.Node) -> None:
    """Outputs of the operator: norm(input + bias + skip), mean, inverse deviation, the sum."""
    x, skip, gamma, beta, bias = (node.inputs[i] if i < len(node.inputs) else None for i in range(5))
    name = str(node.outputs[0].name)
    nodes = []
    if bias is not None:
        nodes.append(operators.make_node("Add", [x, bias], f"{name}.biased"))
        x = nodes[-1].outputs[0]
    nodes.append(operators.make_node("Add", [x, skip], f"{name}.sum"))
    total = nodes[-1].outputs[0]
    attributes = {"axis": -1, "epsilon": float(_attribute(node, "epsilon", 1e-12))}
    nodes.append(operators.make_node("LayerNormalization", [total, gamma, beta], f"{name}.norm", attributes))
    if len(node.outputs) > 3:
        ir.convenience.replace_all_uses_with(node.outputs[3], total)
    operators.replace_(graph, node, nodes)


def _lower_bias_gelu_(graph: ir.Graph, node: ir.Node) -> None:
    name = str(node.outputs[0].name)
    biased = operators.make_node("Add", list(node.inputs), f"{name}.biased")
    operators.replace_(graph, node, [biased, operators.make_node("Gelu", biased.outputs, f"{name}.plain")])


def _lower_fused_matmul_(graph: ir.Graph, node: ir.Node) -> None:
    """alpha · A B, where transA and transB swap the last two axes; operands that are not constant have rank four."""
    if any(_attribute(node, flag, 0) for flag in ("transBatchA", "transBatchB")):
        return
    name = str(node.outputs[0].name)
    nodes: list[ir.Node] = []
    operands = []
    for value, flag in zip(node.inputs, ("transA", "transB"), strict=True):
        constant = operators.const_array(value)
        if not _attribute(node, flag, 0):
            operands.append(value)
        elif constant is not None:
            operands.append(operators.initializer(graph, f"{name}.{flag}", np.ascontiguousarray(constant.swapaxes(-1, -2))))
        else:
            nodes.append(operators.make_node("Transpose", [value], f"{name}.{flag}", {"perm": [0, 1, 3, 2]}))
            operands.append(nodes[-1].outputs[0])
    nodes.append(operators.make_node("MatMul", operands, f"{name}.product"))
    alpha = float(_attribute(node, "alpha", 1.0))
    if alpha != 1.0:
        factor = operators.initializer(graph, f"{name}.alpha", np.array(alpha, dtype=np.float32))
        nodes.append(operators.make_node("Mul", [nodes[-1].outputs[0], factor], f"{name}.scaled"))
    operators.replace_(graph, node, nodes)


def _lower_fused_gemm_(graph: ir.Graph, node: ir.Node) -> None:
    name = str(node.outputs[0].name)
    attributes = {k: _attribute(node, k, d) for k, d in (("alpha", 1.0), ("beta", 1.0), ("transA", 0), ("transB", 0))}
    gemm = operators.make_node("Gemm", list(node.inputs), f"{name}.gemm", attributes)
    operators.replace_(
        graph, node, [gemm, operators.make_node(str(_attribute(node, "activation", "")), gemm.outputs, f"{name}.activation")]
    )


def _attribute(node: ir.Node, name: str, default: Any) -> Any:
    attribute = node.attributes.get(name)
    return default if attribute is None else attribute.value
