"""Attention in a graph, found by its shape: a Softmax between two matrix products of computed values, which nothing else has.

Eager or SDPA attention, masks built by Add, Where or IsNaN guards, the scale on the scores or on Q and K, Q, K and V from one
linear layer or from three, rotated by position or not, and terms of positions in the scores. Nothing is edited.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import onnx_ir as ir

from octobert.graph import operators
from octobert.graph.parts import Linear, is_weight, linear_at, linear_of

_LAYOUT_OPS = ("Transpose", "Reshape", "Identity", "Cast", "Unsqueeze", "Squeeze", "Flatten")
_GUARD_OPS = ("IsNaN", "Where", "Identity", "Dropout", "Cast", "Reshape")


@dataclass(frozen=True)
class Operand:
    """What enters a product of attention, and the linear layer that it comes from.

    Args:
        linear: the linear layer; Q, K and V may come from the same one.
        scale: what the graph multiplies it with on the way.
        heads: the value itself where more lies between than splitting heads, such as positions that rotate it: [B, H, S, K],
            for K [B, H, K, S]; None where it can be computed anew from the linear layer.
    """

    linear: Linear
    scale: float
    heads: ir.Value | None = None


@dataclass(frozen=True)
class Term:
    """What is added to the scores on their way to the softmax, or says where they are masked.

    Args:
        value: the term.
        scale: what the graph multiplies it with, together with the scores.
        shape: the shape that the graph gives to the sum, where it changes it.
        condition: a condition of Where, and not a summand.
    """

    value: ir.Value
    scale: float = 1.0
    shape: ir.Value | None = None
    condition: bool = False


@dataclass(frozen=True)
class Attention:
    """Scaled dot-product attention between its linear layers. `scale` multiplies the scores, wherever the graph had it."""

    softmax: ir.Node
    operands: tuple[Operand, Operand, Operand]
    output: Linear
    scale: float
    terms: tuple[Term, ...]

    @property
    def query(self) -> Linear:
        return self.operands[0].linear

    @property
    def key(self) -> Linear:
        return self.operands[1].linear

    @property
    def value(self) -> Linear:
        return self.operands[2].linear

    @property
    def fused(self) -> bool:
        """Whether Q, K and V are one linear layer."""
        return self.query.matmul is self.key.matmul is self.value.matmul

    @property
    def width(self) -> int:
        """Channels of Q, over all heads."""
        channels = self.query.sizes[1]
        return channels // 3 if self.fused else channels


def find_attention(softmax: ir.Node) -> Attention | None:
    """The attention around one Softmax, or None when it is no attention."""
    scores = _scores_above(softmax.inputs[0])
    product = _product_below(softmax.outputs[0])
    if scores is None or product is None:
        return None
    matmul, scale, terms = scores
    query, key, value = (_operand(v) for v in (matmul.inputs[0], matmul.inputs[1], product.inputs[1]))
    output = _linear_below(product.outputs[0])
    if query is None or key is None or value is None or output is None or value.scale != 1.0:
        return None
    if query.heads is not None or key.heads is not None:
        # One product takes both as they are, or neither.
        query, key = Operand(query.linear, 1.0, matmul.inputs[0]), Operand(key.linear, 1.0, matmul.inputs[1])
    return Attention(softmax, (query, key, value), output, scale * query.scale * key.scale, tuple(terms))


def _scores_above(value: ir.Value) -> tuple[ir.Node, float, list[Term]] | None:
    """Q·Kᵀ above a softmax input, with the scale and the terms met on the way up."""
    node = operators.producer(value, "MatMul", "Mul", "Div", "Add", "Where", "Identity", "Cast", "Reshape")
    if node is None:
        return None
    if node.op_type == "MatMul":
        computed = all(operators.const_array(v) is None for v in node.inputs)
        return (node, 1.0, []) if computed else None
    if node.op_type in ("Mul", "Div"):
        factor = operators.const_scalar(node.inputs[1])
        above = _scores_above(node.inputs[0]) if factor else None
        if above is None or not factor:
            return None
        factor = factor if node.op_type == "Mul" else 1.0 / factor
        return above[0], above[1] * factor, [replace(term, scale=term.scale * factor) for term in above[2]]
    if node.op_type == "Reshape":
        above = _scores_above(node.inputs[0])
        return above and (above[0], above[1], [replace(term, shape=node.inputs[1]) for term in above[2]])
    for index, operand in enumerate(node.inputs):
        above = _scores_above(operand) if operand is not None else None
        if above is not None:
            # What a Where puts in the place of masked scores is as good as minus infinity; its condition says which they are.
            rest = node.inputs[:1] if node.op_type == "Where" else [v for i, v in enumerate(node.inputs) if i != index]
            terms = [v for v in rest if v is not None and v is not operand and operators.const_array(v) is None]
            return above[0], above[1], above[2] + [Term(v, condition=node.op_type == "Where") for v in terms]
    return None


def _product_below(probs: ir.Value) -> ir.Node | None:
    """The product of the attention probabilities and V, below the softmax and its NaN guards."""
    seen, stack = set(), [probs]
    while stack:
        value = stack.pop()
        for node in operators.consumers(value):
            if node.op_type == "MatMul" and node.inputs[0] is value and not is_weight(node.inputs[1]):
                return node
            if node.op_type in _GUARD_OPS and node not in seen:
                seen.add(node)
                stack.extend(node.outputs)
    return None


def _operand(value: ir.Value | None) -> Operand | None:
    """What enters a product of attention."""
    linear, scale = _linear_above(value)
    if linear is not None:
        return Operand(linear, scale)
    nearest = _nearest_linears(value)
    return Operand(nearest[0], 1.0, value) if len(nearest) == 1 else None


def _linear_above(value: ir.Value | None) -> tuple[Linear | None, float]:
    """The linear layer above a head-split value, and the product of the scalars met on the way."""
    scale = 1.0
    while True:
        linear = linear_of(value)
        if linear is not None:
            return linear, scale
        node = operators.producer(value, *_LAYOUT_OPS, "Mul", "Div")
        if node is None:
            return None, scale
        if node.op_type in ("Mul", "Div"):
            factor = operators.const_scalar(node.inputs[1])
            if not factor:
                return None, scale
            scale *= factor if node.op_type == "Mul" else 1.0 / factor
        value = node.inputs[0]


def _nearest_linears(value: ir.Value | None) -> list[Linear]:
    """The linear layers that a value is computed from, without what these are computed from."""
    found: dict[ir.Node, Linear] = {}
    seen, stack = set(), [value]
    while stack:
        current = stack.pop()
        linear = linear_of(current)
        if linear is not None:
            found[linear.matmul] = linear
        elif current is not None and current not in seen:
            seen.add(current)
            node = current.producer()
            stack.extend(node.inputs if node is not None and node.op_type != "Shape" else ())
    return list(found.values())


def _linear_below(value: ir.Value) -> Linear | None:
    """The linear layer that reads the context after heads are merged."""
    while True:
        nodes = operators.consumers(value)
        matmuls = [n for n in nodes if n.op_type == "MatMul" and is_weight(n.inputs[1])]
        if matmuls:
            return linear_at(matmuls[0])
        layouts = [n for n in nodes if n.op_type in _LAYOUT_OPS]
        if len(layouts) != 1:
            return None
        value = layouts[0].outputs[0]
