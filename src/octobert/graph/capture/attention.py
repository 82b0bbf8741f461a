"""Find attention in a graph by its structure: a Softmax between two MatMuls of computed values. The graph is not changed.

Recognized: eager and SDPA attention; masks built by Add, Where or NaN guards; a scale on the scores or on Q and K; Q, K and V
from one linear layer or from three; rotary embeddings; relative-position terms in the scores.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import onnx_ir as ir

from octobert.graph import operators
from octobert.graph.parts import Linear, is_weight, linear_at, linear_of

_LAYOUT_OPS = ("Transpose", "Reshape", "Identity", "Cast", "Unsqueeze", "Squeeze", "Flatten")
_GUARD_OPS = ("IsNaN", "Where", "Identity", "Dropout", "Cast", "Reshape")


@dataclass(frozen=True)
class AttentionInput:
    """Q, K or V, and the linear layer that computes it.

    Args:
        linear: the linear layer; Q, K and V may come from the same one.
        scale: scalar factor between the linear layer and the attention product.
        heads: the input of the attention product, [B, H, S, K] (K: [B, H, K, S]), if the graph does more than split heads
            on the way, such as rotary embeddings; None if it can be recomputed from the linear layer.
    """

    linear: Linear
    scale: float
    heads: ir.Value | None = None


@dataclass(frozen=True)
class Term:
    """A value that is added to the scores before the Softmax, or a condition that masks them.

    Args:
        value: the term.
        scale: factor that is applied to the sum of scores and term.
        shape: target of a Reshape of that sum; None if there is none.
        condition: True for the condition of a Where, False for a summand.
    """

    value: ir.Value
    scale: float = 1.0
    shape: ir.Value | None = None
    condition: bool = False


@dataclass(frozen=True)
class Attention:
    """Scaled dot-product attention and its linear layers; `scale` is the total factor on the scores."""

    softmax: ir.Node
    inputs: tuple[AttentionInput, AttentionInput, AttentionInput]
    output: Linear
    scale: float
    terms: tuple[Term, ...]

    @property
    def query(self) -> Linear:
        return self.inputs[0].linear

    @property
    def key(self) -> Linear:
        return self.inputs[1].linear

    @property
    def value(self) -> Linear:
        return self.inputs[2].linear

    @property
    def fused(self) -> bool:
        """Whether one linear layer computes Q, K and V."""
        return self.query.matmul is self.key.matmul is self.value.matmul

    @property
    def width(self) -> int:
        """Channels of Q, summed over heads."""
        channels = self.query.sizes[1]
        return channels // 3 if self.fused else channels


def find_attention(softmax: ir.Node) -> Attention | None:
    """Return the attention around a Softmax, or None if the Softmax is not part of one."""
    scores = _scores_above(operators.input_of(softmax, 0))
    product = _product_below(softmax.outputs[0])
    if scores is None or product is None:
        return None
    matmul, scale, terms = scores
    query, key, value = (
        _attention_input(v) for v in (matmul.inputs[0], matmul.inputs[1], product.inputs[1])
    )
    output = _linear_below(product.outputs[0])
    if query is None or key is None or value is None or output is None or value.scale != 1.0:
        return None
    if query.heads is not None or key.heads is not None:
        # The product is rebuilt from both linear layers, or keeps both of its inputs.
        query = AttentionInput(query.linear, 1.0, matmul.inputs[0])
        key = AttentionInput(key.linear, 1.0, matmul.inputs[1])
    return Attention(
        softmax, (query, key, value), output, scale * query.scale * key.scale, tuple(terms)
    )


def _scores_above(value: ir.Value) -> tuple[ir.Node, float, list[Term]] | None:
    """Return Q·Kᵀ above a Softmax input, with the scale and the terms on the way."""
    node = operators.producer(
        value, "MatMul", "Mul", "Div", "Add", "Where", "Identity", "Cast", "Reshape"
    )
    if node is None:
        return None
    if node.op_type == "MatMul":
        computed = all(operators.const_array(v) is None for v in node.inputs)
        return (node, 1.0, []) if computed else None
    if node.op_type in ("Mul", "Div"):
        factor = _factor(node)
        above = _scores_above(operators.input_of(node, 0)) if factor else None
        if above is None or not factor:
            return None
        return (
            above[0],
            above[1] * factor,
            [replace(term, scale=term.scale * factor) for term in above[2]],
        )
    if node.op_type == "Reshape":
        above = _scores_above(operators.input_of(node, 0))
        return above and (
            above[0],
            above[1],
            [replace(term, shape=node.inputs[1]) for term in above[2]],
        )
    for index, operand in enumerate(node.inputs):
        above = _scores_above(operand) if operand is not None else None
        if above is not None:
            # A Where replaces masked scores by a large negative number; only its condition matters.
            rest = (
                node.inputs[:1]
                if node.op_type == "Where"
                else [v for i, v in enumerate(node.inputs) if i != index]
            )
            terms = [
                v
                for v in rest
                if v is not None and v is not operand and operators.const_array(v) is None
            ]
            return (
                above[0],
                above[1],
                above[2] + [Term(v, condition=node.op_type == "Where") for v in terms],
            )
    return None


def _factor(node: ir.Node) -> float | None:
    """Return the constant that a Mul or Div multiplies by; None, or 0, if there is none."""
    factor = operators.const_scalar(node.inputs[1])
    return 1.0 / factor if factor and node.op_type == "Div" else factor


def _product_below(probs: ir.Value) -> ir.Node | None:
    """Return probs·V, below the Softmax and its NaN guards."""
    seen, stack = set(), [probs]
    while stack:
        value = stack.pop()
        for node in operators.consumers(value):
            if (
                node.op_type == "MatMul"
                and node.inputs[0] is value
                and not is_weight(node.inputs[1])
            ):
                return node
            if node.op_type in _GUARD_OPS and node not in seen:
                seen.add(node)
                stack.extend(node.outputs)
    return None


def _attention_input(value: ir.Value | None) -> AttentionInput | None:
    """Return Q, K or V from an input of an attention product."""
    linear, scale = _linear_above(value)
    if linear is not None:
        return AttentionInput(linear, scale)
    nearest = _nearest_linears(value)
    return AttentionInput(nearest[0], 1.0, value) if len(nearest) == 1 else None


def _linear_above(value: ir.Value | None) -> tuple[Linear | None, float]:
    """Return the linear layer above a value that was split into heads, and the product of the scalar factors on the way."""
    scale = 1.0
    while True:
        linear = linear_of(value)
        if linear is not None:
            return linear, scale
        node = operators.producer(value, *_LAYOUT_OPS, "Mul", "Div")
        if node is None:
            return None, scale
        if node.op_type in ("Mul", "Div"):
            factor = _factor(node)
            if not factor:
                return None, scale
            scale *= factor
        value = node.inputs[0]


def _nearest_linears(value: ir.Value | None) -> list[Linear]:
    """Return the linear layers that a value depends on directly, not through another linear layer."""
    values = operators.upward(
        value, lambda each: linear_of(each) is None and operators.producer(each, "Shape") is None
    )
    linears = [linear for each in values if (linear := linear_of(each)) is not None]
    return list({linear.matmul: linear for linear in linears}.values())


def _linear_below(value: ir.Value) -> Linear | None:
    """Return the linear layer that reads the context after its heads are merged."""
    while True:
        nodes = operators.consumers(value)
        matmuls = [n for n in nodes if n.op_type == "MatMul" and is_weight(n.inputs[1])]
        if matmuls:
            return linear_at(matmuls[0])
        layouts = [n for n in nodes if n.op_type in _LAYOUT_OPS]
        if len(layouts) != 1:
            return None
        value = layouts[0].outputs[0]
