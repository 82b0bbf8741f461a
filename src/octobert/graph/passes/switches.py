"""Write a float graph in which every quantizer of a plan can be switched on and off at run time.

Each quantized value passes through an `If`: its quantized form if the switch is on, the float value if it is off. One session
can then measure the error of each quantizer alone; a branch that is off costs no time.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from octobert.core.plan import OUTPUT, Quantizer, QuantPlan, Site
from octobert.graph import operators, qdq

SWITCHES = "switches"
Key = tuple[str, Quantizer]


def write_(model: ir.Model, plan: QuantPlan, scales: qdq.Scales | None = None) -> list[list[Site]]:
    """Write a switch for every quantized value, in place.

    Returns:
        The sites of each switch, in the order of the new graph input `switches` [N] bool.
    """
    graph = model.graph
    nodes = {str(node.name): node for node in graph}
    scales = {**qdq.shared_scales(nodes, plan), **(scales or {})}
    switches = ir.Value(name=SWITCHES, shape=ir.Shape([None]), type=ir.TensorType(ir.DataType.BOOL))
    graph.inputs.append(switches)
    order: dict[Key, int] = {}
    sites: list[list[Site]] = []
    forms: dict[Key, ir.Value] = {}
    # Outputs last, as in `qdq.write`: until then all readers refer to the value by its own name.
    for site, quantizer in sorted(plan.quantized, key=lambda item: item[0].input == OUTPUT):
        node = nodes[site.node]
        key = (site.value, quantizer)
        if key in forms:
            node.replace_input_with(site.input, forms[key])
            sites[order[key]].append(site)
            continue
        order[key] = len(sites)
        sites.append([site])
        value = node.outputs[0] if site.input == OUTPUT else operators.input_of(node, site.input)
        readers = list(value.uses()) if site.input == OUTPUT else [(node, site.input)]
        scale = scales.get(site.value)
        added = _switch(graph, switches, order[key], value, quantizer, scale, is_weight=site.is_weight)
        (graph.insert_after if site.input == OUTPUT else graph.insert_before)(node, added)
        if site.input != OUTPUT:
            forms[key] = added[-1].outputs[0]
        for reader, index in readers:
            reader.replace_input_with(index, added[-1].outputs[0])
    qdq.set_opset_(model, plan)
    return sites


def _switch(
    graph: ir.Graph,
    switches: ir.Value,
    number: int,
    value: ir.Value,
    quantizer: Quantizer,
    scale: np.ndarray | None,
    *,
    is_weight: bool,
) -> list[ir.Node]:
    """Make the nodes switches[number] → If → the quantized form of a value, or the value."""
    name = f"switch.{number}"
    index = operators.initializer(graph, f"{name}.index", np.array(number, dtype=np.int64))
    pick = operators.make_node("Gather", [switches, index], f"{name}.on", {"axis": 0}, dtype=ir.DataType.BOOL)
    same = operators.make_node("Identity", [value], f"{name}.same")
    if is_weight:
        rounded = qdq.dequantized_weight(operators.constant_of(value), quantizer, scale).astype(np.float32)
        nodes = [operators.make_node("Identity", [operators.initializer(graph, f"{name}.weight", rounded)], f"{name}.rounded")]
    else:
        nodes = _fake_quantized(graph, name, value, quantizer)
    branches = {
        "then_branch": ir.Graph([], [nodes[-1].outputs[0]], nodes=nodes, name=f"{name}.then"),
        "else_branch": ir.Graph([], [same.outputs[0]], nodes=[same], name=f"{name}.else"),
    }
    return [pick, operators.make_node("If", [pick.outputs[0]], f"{name}.value", branches)]


def _fake_quantized(graph: ir.Graph, name: str, value: ir.Value, quantizer: Quantizer) -> list[ir.Node]:
    if not quantizer.dynamic:
        return qdq.make_pair(graph, name, value, quantizer)
    first = qdq.make_dynamic(value, name)
    return [first, operators.make_node("DequantizeLinear", list(first.outputs), f"{name}.dequantized")]
