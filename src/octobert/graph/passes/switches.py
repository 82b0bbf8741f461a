"""Write a float graph in which every quantizer of a plan can be switched on and off at run time.

Each quantized value passes through an `If`: its quantized form if the switch is on, the float value if it is off. One session
can then measure the error of each quantizer alone; a branch that is off costs no time.
"""

from __future__ import annotations

from typing import Any

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
    nodes = operators.nodes_of(graph)
    scales = {**qdq.shared_scales(nodes, plan), **(scales or {})}
    switches = ir.Value(name=SWITCHES, shape=ir.Shape([None]), type=ir.TensorType(ir.DataType.BOOL))
    graph.inputs.append(switches)
    sites: dict[Key, list[Site]] = {}
    forms: dict[Key, ir.Value] = {}
    # Outputs last, as in `qdq.write`: until then all readers refer to the value by its own name.
    for site, quantizer in sorted(plan.quantized, key=lambda item: item[0].input == OUTPUT):
        node, key, is_output = nodes[site.node], (site.value, quantizer), site.input == OUTPUT
        if key in forms:
            node.replace_input_with(site.input, forms[key])
            sites[key].append(site)
            continue
        value = node.outputs[0] if is_output else operators.input_of(node, site.input)
        readers = list(value.uses()) if is_output else [(node, site.input)]
        scale = scales.get(site.value)
        added = _switch(
            graph, switches, len(sites), value, quantizer, scale, is_weight=site.is_weight
        )
        sites[key] = [site]
        (graph.insert_after if is_output else graph.insert_before)(node, added)
        if not is_output:
            forms[key] = added[-1].outputs[0]
        for reader, index in readers:
            reader.replace_input_with(index, added[-1].outputs[0])
    qdq.set_opset_(model, plan)
    return list(sites.values())


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
    chain = operators.Chain(graph, f"switch.{number}")
    index = operators.initializer(graph, f"{chain.stem}.index", number)
    on = chain.Gather("on", switches, index, dtype=ir.DataType.BOOL, axis=0)
    same = operators.make_node("Identity", [value], f"{chain.stem}.same")
    if is_weight:
        rounded = qdq.dequantized_weight(operators.constant_of(value), quantizer, scale).astype(
            np.float32
        )
        weight = operators.initializer(graph, f"{chain.stem}.weight", rounded)
        nodes = [operators.make_node("Identity", [weight], f"{chain.stem}.rounded")]
    elif quantizer.dynamic:
        first = qdq.make_dynamic(value, chain.stem)
        nodes = [
            first,
            operators.make_node("DequantizeLinear", first.outputs, f"{chain.stem}.dequantized"),
        ]
    else:
        nodes = qdq.make_pair(graph, chain.stem, value, quantizer)
    branches: dict[str, Any] = {
        "then_branch": ir.Graph([], [nodes[-1].outputs[0]], nodes=nodes, name=f"{chain.stem}.then"),
        "else_branch": ir.Graph([], [same.outputs[0]], nodes=[same], name=f"{chain.stem}.else"),
    }
    chain.If("value", on, **branches)
    return chain.nodes
