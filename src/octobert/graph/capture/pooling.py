"""Append the pooling of sentence embeddings to a graph.

Mean pooling averages the states of all tokens but padding; CLS pooling takes the first token. Normalization divides by the L2
norm, as the Normalize module of sentence-transformers does.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from octobert.graph import operators
from octobert.models.pooling import Pooling

# Lower bounds of the divisors in torch.nn.functional.normalize and in sentence-transformers' mean pooling.
_MIN_NORM = 1e-12
_MIN_TOKENS = 1e-9


def append_pooling_(model: ir.Model, states: ir.Value, pooling: Pooling, name: str) -> None:
    """Make the pooled vector [B, D] the only output of a graph.

    Args:
        model: changed in place.
        states: the token states [B, S, D].
        pooling: mean or CLS, and whether the vector is divided by its L2 norm.
        name: of the new output.
    """
    graph = model.graph
    nodes: list[ir.Node] = []

    def constant(name: str, value: object, dtype: type) -> ir.Value:
        return operators.initializer(graph, f"pooling.{name}", np.array(value, dtype=dtype))

    def add(op_type: str, inputs: list[ir.Value], output: str, **attributes: object) -> ir.Value:
        nodes.append(operators.make_node(op_type, inputs, output, attributes))
        return nodes[-1].outputs[0]

    if pooling.mode == "cls":
        pooled = add("Gather", [states, constant("first", 0, np.int64)], "pooling.cls", axis=1)
    else:
        mask = next(v for v in graph.inputs if v.name == "attention_mask")
        weights = add("Cast", [mask], "pooling.mask", to=ir.DataType.FLOAT)
        weights = add("Unsqueeze", [weights, constant("last", [-1], np.int64)], "pooling.weights")
        axis = constant("token_axis", [1], np.int64)
        total = add("ReduceSum", [add("Mul", [states, weights], "pooling.masked"), axis], "pooling.sum", keepdims=0)
        count = add("ReduceSum", [weights, axis], "pooling.count", keepdims=0)
        count = add("Max", [count, constant("min_tokens", _MIN_TOKENS, np.float32)], "pooling.bounded_count")
        pooled = add("Div", [total, count], "pooling.mean")
    if pooling.normalize:
        axes = constant("feature_axis", [-1], np.int64)
        norm = add("ReduceL2", [pooled, axes], "pooling.norm", keepdims=1)
        norm = add("Max", [norm, constant("min_norm", _MIN_NORM, np.float32)], "pooling.bounded_norm")
        pooled = add("Div", [pooled, norm], "pooling.normalized")
    pooled.name = name
    graph.extend(nodes)
    graph.outputs[:] = [pooled]
