"""Norms in operators that ONNX Runtime computes with vectors on a CPU.

Its LayerNormalization and SkipLayerNormalization take one number after another, 5 ns each on one core: a tenth of an 8-bit
model's time. InstanceNormalization of rows with one channel divides by the same deviation, epsilon included. With scale, shift,
and the adds that were part of SkipLayerNormalization, it takes a third to a half of the time (`docs/speed.md`):

    LayerNormalization(x, weight, bias)   →   InstanceNormalization(x as [rows, 1, channels]) as [B, S, C] × weight + bias

It runs on one core, LayerNormalization on all, so it is for machines with few (`Capabilities.fast_norms`).
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from octobert.graph import operators


def vectorize_norms_(model: ir.Model) -> int:
    """Write every LayerNormalization of float32 over the last axis so, in place; how many."""
    graph = model.graph
    found = [node for node in graph if node.op_type == "LayerNormalization" and _plain(node)]
    for node in found:
        _write_(graph, node)
    return len(found)


def _plain(node: ir.Node) -> bool:
    """Over the last axis, with a constant weight, and nothing but the result is read."""
    weight, axis = operators.const_array(node.inputs[1]), node.attributes.get_int("axis", -1)
    rank = None if node.inputs[0].shape is None else len(node.inputs[0].shape)
    last = axis == -1 or (rank is not None and axis == rank - 1)
    unread = all(not value.uses() and not value.is_graph_output() for value in node.outputs[1:])
    return last and unread and weight is not None and weight.dtype == np.float32 and weight.ndim == 1


def _write_(graph: ir.Graph, node: ir.Node) -> None:
    x, weight, bias = (node.inputs[i] if i < len(node.inputs) else None for i in range(3))
    name, nodes = str(node.outputs[0].name), []
    rows = np.array([-1, 1, weight.const_value.shape[0]], dtype=np.int64)

    def add(op_type: str, inputs: list[ir.Value | None], part: str, **more: object) -> ir.Value:
        nodes.append(operators.make_node(op_type, inputs, f"{name}.{part}", **more))
        return nodes[-1].outputs[0]

    one = operators.shared_initializer(graph, "octobert.norm.one", np.ones(1, dtype=np.float32))
    zero = operators.shared_initializer(graph, "octobert.norm.zero", np.zeros(1, dtype=np.float32))
    flat = add("Reshape", [x, operators.shared_initializer(graph, f"octobert.norm.{rows[-1]}", rows)], "rows")
    epsilon = {"epsilon": node.attributes.get_float("epsilon", 1e-5)}
    unit = add("InstanceNormalization", [flat, one, zero], "unit_rows", attributes=epsilon)
    shape = add("Shape", [x], "shape", dtype=ir.DataType.INT64)
    scaled = add("Mul", [add("Reshape", [unit, shape], "unit"), weight], "scaled")
    if bias is not None:
        add("Add", [scaled, bias], "shifted")
    operators.replace_(graph, node, nodes)
