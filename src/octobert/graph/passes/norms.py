"""Write norms in operators that ONNX Runtime vectorizes on CPUs.

Its LayerNormalization and SkipLayerNormalization process one number after another: 5 ns per number on one core, a tenth of the
time of an 8-bit model. InstanceNormalization over rows with one channel divides by the same deviation, epsilon included. With
scale, shift and residual adds it takes a third to a half of the time (`docs/evidence/runtimes.md`):

    LayerNormalization(x, weight, bias)   →   InstanceNormalization(x as [rows, 1, channels]) as [B, S, C] × weight + bias

InstanceNormalization runs on one core, LayerNormalization on all: use it with few cores (`Capabilities.fast_norms`).
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from octobert.graph import operators


def vectorize_norms_(model: ir.Model) -> int:
    """Rewrite every float32 LayerNormalization over the last axis, in place; return how many."""
    norms = [
        node for node in model.graph if node.op_type == "LayerNormalization" and _is_supported(node)
    ]
    for node in norms:
        _write_(model.graph, node)
    return len(norms)


def _is_supported(node: ir.Node) -> bool:
    """Return whether a norm is over the last axis, has a constant weight, and only its first output is read."""
    weight, axis = operators.const_array(node.inputs[1]), node.attributes.get_int("axis", -1)
    shape = operators.input_of(node, 0).shape
    last = axis == -1 or (shape is not None and axis == len(shape) - 1)
    unread = all(not value.uses() and not value.is_graph_output() for value in node.outputs[1:])
    return (
        last and unread and weight is not None and weight.dtype == np.float32 and weight.ndim == 1
    )


def _write_(graph: ir.Graph, node: ir.Node) -> None:
    x, weight, bias = operators.inputs_of(node, 3)
    channels = len(operators.constant_of(weight))
    chain = operators.Chain(graph, str(node.outputs[0].name))

    def constant(part: str, numbers: operators.Numbers) -> ir.Value:
        return operators.shared_initializer(graph, f"octobert.norm.{part}", numbers)

    one, zero, rows = (
        constant("one", [1.0]),
        constant("zero", [0.0]),
        constant(str(channels), [-1, 1, channels]),
    )
    epsilon = node.attributes.get_float("epsilon", 1e-5)
    unit = chain.InstanceNormalization(
        "unit_rows", chain.Reshape("rows", x, rows), one, zero, epsilon=epsilon
    )
    shape = chain.Shape("shape", x, dtype=ir.DataType.INT64)
    scaled = chain.Mul("scaled", chain.Reshape("unit", unit, shape), weight)
    if bias is not None:
        chain.Add("shifted", scaled, bias)
    chain.replace_(node)
