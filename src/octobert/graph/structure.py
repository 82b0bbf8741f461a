"""Find the encoder inside a float graph by its shape: attentions, feed-forwards, residual adds and norms, layer by layer.

In: any ONNX graph of a post-norm BERT-family encoder, whatever exporter wrote it (eager or SDPA attention, masks built by
Add, Where or IsNaN guards, scale on the scores or on Q and K). Out: `Layer`s that point at its nodes. Nothing is edited.
The search starts at each Softmax between two matrix products of computed values, which only attention has.
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from octobert.errors import ModelError
from octobert.graph import ops

_LAYOUT_OPS = ("Transpose", "Reshape", "Identity", "Cast", "Unsqueeze", "Squeeze", "Flatten")
_GUARD_OPS = ("IsNaN", "Where", "Identity", "Dropout", "Cast")


@dataclass(frozen=True)
class Linear:
    """`y = x @ weight + bias`; `weight` is [in, out]. Without a bias, `y` is the product itself."""

    matmul: ir.Node
    add: ir.Node | None

    @property
    def x(self) -> ir.Value:
        return self.matmul.inputs[0]  # type: ignore[return-value]

    @property
    def weight(self) -> ir.Value:
        return self.matmul.inputs[1]  # type: ignore[return-value]

    @property
    def bias(self) -> ir.Value | None:
        return self.add.inputs[1] if self.add is not None else None

    @property
    def y(self) -> ir.Value:
        return (self.add or self.matmul).outputs[0]


@dataclass(frozen=True)
class Attention:
    """Scaled dot-product attention between its linear layers. `scale` multiplies the scores, wherever the graph had it."""

    softmax: ir.Node
    query: Linear
    key: Linear
    value: Linear
    output: Linear
    scale: float
    masks: tuple[ir.Value, ...]


@dataclass(frozen=True)
class Layer:
    """One encoder layer: attention, residual add, norm, feed-forward, residual add, norm."""

    attention: Attention
    attention_add: ir.Node
    attention_norm: ir.Node
    ffn_up: Linear
    ffn_down: Linear
    ffn_add: ir.Node
    ffn_norm: ir.Node


def linear_of(value: ir.Value | None) -> Linear | None:
    """The linear layer whose output is `value`, or None."""
    node = ops.producer(value, "MatMul", "Add")
    if node is None:
        return None
    if node.op_type == "MatMul":
        return Linear(node, None) if _is_weight(node.inputs[1]) else None
    matmul = ops.producer(node.inputs[0], "MatMul")
    bias = ops.const_array(node.inputs[1])
    if matmul is None or bias is None or bias.ndim != 1 or not _is_weight(matmul.inputs[1]):
        return None
    return Linear(matmul, node)


def all_linears(graph: ir.Graph) -> list[Linear]:
    """Every product with a constant matrix, in graph order."""
    found = []
    for node in graph:
        if node.op_type == "MatMul" and _is_weight(node.inputs[1]):
            adds = [n for n in ops.consumers(node.outputs[0], "Add") if linear_of(n.outputs[0])]
            only = len(node.outputs[0].uses()) == 1 and len(adds) == 1
            found.append(Linear(node, adds[0] if only else None))
    return found


def find_layers(graph: ir.Graph) -> list[Layer]:
    """The encoder layers in order.

    Raises:
        ModelError: there is no attention in the graph, or what surrounds one is not a post-norm encoder layer.
    """
    found = [find_attention(node) for node in graph if node.op_type == "Softmax"]
    attentions = [attention for attention in found if attention is not None]
    if not attentions:
        raise ModelError(
            "the graph has no supported encoder in it",
            got=f"{len(graph)} nodes and no attention of the form MatMul, scale, mask, Softmax, MatMul",
            expected="a BERT, DistilBERT, RoBERTa, XLM-R or ELECTRA encoder in plain ONNX operators",
            fix="export the model without runtime-specific fusions and without quantization",
        )
    return [_layer_around(attention) for attention in attentions]


def find_attention(softmax: ir.Node) -> Attention | None:
    """The attention around one Softmax, or None when it is no attention."""
    scores = _scores_above(softmax.inputs[0])
    product = _product_below(softmax.outputs[0])
    if scores is None or product is None:
        return None
    matmul, scale, masks = scores
    query, query_scale = _linear_above(matmul.inputs[0])
    key, key_scale = _linear_above(matmul.inputs[1])
    value, value_scale = _linear_above(product.inputs[1])
    output = _linear_below(product.outputs[0])
    if query is None or key is None or value is None or output is None or value_scale != 1.0:
        return None
    return Attention(softmax, query, key, value, output, scale * query_scale * key_scale, tuple(masks))


def _is_weight(value: ir.Value | None) -> bool:
    return value is not None and value.const_value is not None and len(value.const_value.shape) == 2


def _scores_above(value: ir.Value) -> tuple[ir.Node, float, list[ir.Value]] | None:
    """Q·Kᵀ above a softmax input, with the scale and the mask terms met on the way up."""
    node = ops.producer(value, "MatMul", "Mul", "Div", "Add", "Where", "Identity", "Cast")
    if node is None:
        return None
    if node.op_type == "MatMul":
        computed = all(ops.const_array(v) is None for v in node.inputs)
        return (node, 1.0, []) if computed else None
    if node.op_type in ("Mul", "Div"):
        factor = ops.const_scalar(node.inputs[1])
        above = _scores_above(node.inputs[0]) if factor else None
        if above is None or not factor:
            return None
        return above[0], above[1] * (factor if node.op_type == "Mul" else 1.0 / factor), above[2]
    for index, operand in enumerate(node.inputs):
        above = _scores_above(operand) if operand is not None else None
        if above is not None:
            rest = [v for i, v in enumerate(node.inputs) if i != index and v is not None]
            return above[0], above[1], above[2] + [v for v in rest if ops.const_array(v) is None]
    return None


def _product_below(probs: ir.Value) -> ir.Node | None:
    """The product of the attention probabilities and V, below the softmax and its NaN guards."""
    seen, stack = set(), [probs]
    while stack:
        value = stack.pop()
        for node in ops.consumers(value):
            if node.op_type == "MatMul" and node.inputs[0] is value and not _is_weight(node.inputs[1]):
                return node
            if node.op_type in _GUARD_OPS and node not in seen:
                seen.add(node)
                stack.extend(node.outputs)
    return None


def _linear_above(value: ir.Value | None) -> tuple[Linear | None, float]:
    """The linear layer above a head-split value, and the product of the scalars met on the way."""
    scale = 1.0
    while True:
        linear = linear_of(value)
        if linear is not None:
            return linear, scale
        node = ops.producer(value, *_LAYOUT_OPS, "Mul", "Div")
        if node is None:
            return None, scale
        if node.op_type in ("Mul", "Div"):
            factor = ops.const_scalar(node.inputs[1])
            if not factor:
                return None, scale
            scale *= factor if node.op_type == "Mul" else 1.0 / factor
        value = node.inputs[0]


def _linear_below(value: ir.Value) -> Linear | None:
    """The linear layer that reads the context after heads are merged."""
    while True:
        nodes = ops.consumers(value)
        matmuls = [n for n in nodes if n.op_type == "MatMul" and _is_weight(n.inputs[1])]
        if matmuls:
            adds = ops.consumers(matmuls[0].outputs[0], "Add")
            linear = linear_of(adds[0].outputs[0]) if adds else None
            return linear or Linear(matmuls[0], None)
        layouts = [n for n in nodes if n.op_type in _LAYOUT_OPS]
        if len(layouts) != 1:
            return None
        value = layouts[0].outputs[0]


def _layer_around(attention: Attention) -> Layer:
    """The layer that an attention belongs to."""
    attention_add, attention_norm = _residual(attention.output.y, attention)
    normed = attention_norm.outputs[0]
    for ffn_add in ops.consumers(normed, "Add"):
        other = [v for v in ffn_add.inputs if v is not normed]
        ffn_down = linear_of(other[0]) if len(other) == 1 else None
        norms = ops.consumers(ffn_add.outputs[0], "LayerNormalization")
        if ffn_down is None or not norms:
            continue
        inside = ops.ancestors(ffn_down.x) - ops.ancestors(normed)
        for node in ops.consumers(normed, "MatMul"):
            if _is_weight(node.inputs[1]) and node.outputs[0] in inside:
                adds = ops.consumers(node.outputs[0], "Add")
                ffn_up = (linear_of(adds[0].outputs[0]) if adds else None) or Linear(node, None)
                return Layer(attention, attention_add, attention_norm, ffn_up, ffn_down, ffn_add, norms[0])
    raise _not_an_encoder(attention, "no feed-forward block with a residual add and a LayerNormalization follows it")


def _residual(value: ir.Value, attention: Attention) -> tuple[ir.Node, ir.Node]:
    for add in ops.consumers(value, "Add"):
        norms = ops.consumers(add.outputs[0], "LayerNormalization")
        if norms:
            return add, norms[0]
    raise _not_an_encoder(attention, "its output is not added to its input and normalized")


def _not_an_encoder(attention: Attention, why: str) -> ModelError:
    return ModelError(
        "the graph has attention, but not in the form of a supported encoder",
        where=f"node {attention.softmax.name}",
        got=why,
        expected="a post-norm encoder layer: attention, residual add, LayerNormalization, feed-forward, residual add, "
        "LayerNormalization",
        fix="check that the model is a BERT, DistilBERT, RoBERTa, XLM-R or ELECTRA encoder",
    )
