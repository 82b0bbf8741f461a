"""Find the encoder inside a float graph by its shape: attentions, feed-forwards, residual adds and norms, layer by layer.

In: any ONNX graph of a BERT-family encoder, whatever exporter wrote it (eager or SDPA attention, masks built by Add, Where or
IsNaN guards, scale on the scores or on Q and K). Norms may stand before attention and feed-forward or behind them, Q, K and V
may be one linear layer, rotated by position or not, and several feed-forwards may follow each other, between bottlenecks.
Out: `Layer`s that point at its nodes. Nothing is edited. The search starts at each Softmax between two matrix products of
computed values, which only attention has.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import onnx_ir as ir

from octobert.errors import ModelError
from octobert.graph import ops

_LAYOUT_OPS = ("Transpose", "Reshape", "Identity", "Cast", "Unsqueeze", "Squeeze", "Flatten")
_GUARD_OPS = ("IsNaN", "Where", "Identity", "Dropout", "Cast", "Reshape")


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

    @property
    def width(self) -> int:
        """Channels of `y`."""
        return int(self.weight.const_value.shape[1])


@dataclass(frozen=True)
class Norm:
    """A LayerNormalization, or only its last part, `x * weight + bias`, which is a Mul and an Add."""

    node: ir.Node
    mul: ir.Node | None = None

    @property
    def x(self) -> ir.Value:
        return (self.mul or self.node).inputs[0]  # type: ignore[return-value]

    @property
    def y(self) -> ir.Value:
        return self.node.outputs[0]

    @property
    def residual(self) -> ir.Node | None:
        """The residual add that it normalizes."""
        return ops.producer(self.x, "Add") if linear_of(self.x) is None else None


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
        return self.query.width // 3 if self.fused else self.query.width


@dataclass(frozen=True)
class FeedForward:
    """Two linear layers, an activation between them, perhaps times a gate, and a residual add."""

    up: Linear
    down: Linear
    add: ir.Node

    @property
    def gated(self) -> bool:
        """Whether half of what `up` makes is multiplied with the activation of the other half."""
        return self.up.width == 2 * int(self.down.weight.const_value.shape[0])


@dataclass(frozen=True)
class Layer:
    """One encoder layer.

    Args:
        linears, norms: role (see `encoder.Encoder.parts`) → the part.
        feed_forwards: role of the activation → the feed-forward around it, in order.
        output: what the next layer reads; where norms stand before attention, a residual sum.
    """

    attention: Attention
    linears: dict[str, Linear]
    norms: dict[str, Norm]
    feed_forwards: dict[str, FeedForward]
    output: ir.Value

    @property
    def width(self) -> int:
        """Channels of the hidden state between layers."""
        return self.linears.get("bottleneck", self.linears["ffn_down"]).width


def linear_of(value: ir.Value | None) -> Linear | None:
    """The linear layer whose output is `value`, or None."""
    node = ops.producer(value, "MatMul", "Add")
    if node is None:
        return None
    if node.op_type == "MatMul":
        return Linear(node, None) if _is_weight(node.inputs[1]) else None
    matmul = ops.producer(node.inputs[0], "MatMul")
    if matmul is None or not _is_vector(node.inputs[1]) or not _is_weight(matmul.inputs[1]):
        return None
    return Linear(matmul, node)


def norm_of(value: ir.Value | None) -> Norm | None:
    """The norm whose output is `value`, or None."""
    node = ops.producer(value, "LayerNormalization", "Add")
    if node is None or node.op_type == "LayerNormalization":
        return None if node is None else Norm(node)
    mul = ops.producer(node.inputs[0], "Mul")
    scaled = mul is not None and ops.const_array(mul.inputs[0]) is None and _is_vector(mul.inputs[1])
    return Norm(node, mul) if scaled and _is_vector(node.inputs[1]) else None


def norm_behind(value: ir.Value) -> Norm | None:
    """The norm that reads `value`, or None."""
    for node in ops.consumers(value, "LayerNormalization", "Mul"):
        ends = [node] if node.op_type == "LayerNormalization" else ops.consumers(node.outputs[0], "Add")
        for end in ends:
            norm = norm_of(end.outputs[0])
            if norm is not None and norm.x is value:
                return norm
    return None


def all_linears(graph: ir.Graph) -> list[Linear]:
    """Every product with a constant matrix, in graph order."""
    return [_linear_at(node) for node in graph if node.op_type == "MatMul" and _is_weight(node.inputs[1])]


def find_layers(graph: ir.Graph) -> list[Layer]:
    """The encoder layers in order.

    Raises:
        ModelError: there is no attention in the graph, or what surrounds one is not an encoder layer.
    """
    found = [find_attention(node) for node in graph if node.op_type == "Softmax"]
    attentions = [attention for attention in found if attention is not None]
    if not attentions:
        raise ModelError(
            "the graph has no supported encoder in it",
            got=f"{len(graph)} nodes and no attention of the form MatMul, scale, mask, Softmax, MatMul",
            expected="an encoder of the BERT family in plain ONNX operators",
            fix="export the model without runtime-specific fusions and without quantization",
        )
    return [_layer_around(attention) for attention in attentions]


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


def _is_weight(value: ir.Value | None) -> bool:
    return value is not None and value.const_value is not None and len(value.const_value.shape) == 2


def _is_vector(value: ir.Value | None) -> bool:
    constant = ops.const_array(value)
    return constant is not None and constant.ndim == 1


def _linear_at(matmul: ir.Node) -> Linear:
    """The linear layer of a product, with its bias where nothing else reads the product."""
    adds = [n for n in ops.consumers(matmul.outputs[0], "Add") if linear_of(n.outputs[0])]
    only = len(matmul.outputs[0].uses()) == 1 and len(adds) == 1
    return Linear(matmul, adds[0] if only else None)


def _scores_above(value: ir.Value) -> tuple[ir.Node, float, list[Term]] | None:
    """Q·Kᵀ above a softmax input, with the scale and the terms met on the way up."""
    node = ops.producer(value, "MatMul", "Mul", "Div", "Add", "Where", "Identity", "Cast", "Reshape")
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
        factor = factor if node.op_type == "Mul" else 1.0 / factor
        return above[0], above[1] * factor, [replace(term, scale=term.scale * factor) for term in above[2]]
    if node.op_type == "Reshape":
        above = _scores_above(node.inputs[0])
        return above and (above[0], above[1], [replace(t, shape=t.shape or node.inputs[1]) for t in above[2]])
    for index, operand in enumerate(node.inputs):
        above = _scores_above(operand) if operand is not None else None
        if above is not None:
            # What a Where puts in the place of masked scores is as good as minus infinity; its condition says which they are.
            rest = node.inputs[:1] if node.op_type == "Where" else [v for i, v in enumerate(node.inputs) if i != index]
            terms = [v for v in rest if v is not None and v is not operand and ops.const_array(v) is None]
            return above[0], above[1], above[2] + [Term(v, condition=node.op_type == "Where") for v in terms]
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
        node = ops.producer(value, *_LAYOUT_OPS, "Mul", "Div")
        if node is None:
            return None, scale
        if node.op_type in ("Mul", "Div"):
            factor = ops.const_scalar(node.inputs[1])
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
        nodes = ops.consumers(value)
        matmuls = [n for n in nodes if n.op_type == "MatMul" and _is_weight(n.inputs[1])]
        if matmuls:
            return _linear_at(matmuls[0])
        layouts = [n for n in nodes if n.op_type in _LAYOUT_OPS]
        if len(layouts) != 1:
            return None
        value = layouts[0].outputs[0]


def _layer_around(attention: Attention) -> Layer:
    """The layer that an attention belongs to."""
    add = next((n for n in ops.consumers(attention.output.y, "Add") if norm_behind(n.outputs[0])), None)
    if add is None:
        raise _not_an_encoder(attention, "its output is not added to its input and normalized")
    norm = norm_behind(add.outputs[0])
    assert norm is not None
    linears = {"attention_output": attention.output}
    linears |= {"qkv": attention.query} if attention.fused else _qkv(attention)
    skip = next(v for v in add.inputs if v is not attention.output.y)
    assert skip is not None
    found = _feed_forward(norm.y, add.outputs[0])
    if found is not None:
        before = norm_of(attention.query.x) if attention.query.x is not skip else None
        norms = {"ffn_norm": norm} | ({"attention_norm": before} if before else {})
        return _layer(attention, linears, norms, [found], found.add.outputs[0])
    norms = {"attention_norm": norm}
    state, feed_forwards, behind = norm.y, [], []
    while (found := _feed_forward(state, state)) is not None and (after := norm_behind(found.add.outputs[0])) is not None:
        feed_forwards.append(found)
        behind.append(after)
        state = after.y
    if not feed_forwards:
        raise _not_an_encoder(attention, "no feed-forward block with a residual add and a norm follows it")
    norms |= dict(zip(_numbered("ffn_norm", len(behind)), behind, strict=True))
    for role, narrow in (("input", skip), ("attention", attention.query.x)):
        entry = norm_of(narrow)
        bottleneck = linear_of(entry.x) if entry is not None else None
        if entry is not None and bottleneck is not None:
            linears[f"bottleneck.{role}"], norms[f"bottleneck_norm.{role}"] = bottleneck, entry
    if "bottleneck.input" in linears:
        ends = [_linear_at(node) for node in ops.consumers(state, "MatMul") if _is_weight(node.inputs[1])]
        sums = [(one, add) for one in ends for add in ops.consumers(one.y, "Add")]
        wide = next(((one, after) for one, add in sums if (after := norm_behind(add.outputs[0]))), None)
        if wide is None:
            raise _not_an_encoder(attention, "a bottleneck before it, and none behind its feed-forwards")
        linears["bottleneck"], norms["bottleneck_norm"] = wide
        state = wide[1].y
    return _layer(attention, linears, norms, feed_forwards, state)


def _qkv(attention: Attention) -> dict[str, Linear]:
    return {"query": attention.query, "key": attention.key, "value": attention.value}


def _layer(
    attention: Attention, linears: dict[str, Linear], norms: dict[str, Norm], blocks: list[FeedForward], output: ir.Value
) -> Layer:
    linears |= dict(zip(_numbered("ffn_up", len(blocks)), [b.up for b in blocks], strict=True))
    linears |= dict(zip(_numbered("ffn_down", len(blocks)), [b.down for b in blocks], strict=True))
    return Layer(attention, linears, norms, dict(zip(_numbered("activation", len(blocks)), blocks, strict=True)), output)


def _numbered(part: str, count: int) -> list[str]:
    """`ffn_up.0`, `ffn_up.1`, `ffn_up`: the last one goes by the name alone."""
    return [*(f"{part}.{i}" for i in range(count - 1)), part]


def _feed_forward(x: ir.Value, skip: ir.Value) -> FeedForward | None:
    """The feed-forward that reads `x` and is added to `skip`; there is no attention inside it."""
    for add in ops.consumers(skip, "Add"):
        other = [v for v in add.inputs if v is not skip]
        down = linear_of(other[0]) if len(other) == 1 else None
        if down is None:
            continue
        inside = ops.ancestors(down.x) - ops.ancestors(x)
        if any(ops.producer(v, "Softmax") for v in inside):
            continue
        for node in ops.consumers(x, "MatMul"):
            if _is_weight(node.inputs[1]) and node.outputs[0] in inside:
                return FeedForward(_linear_at(node), down, add)
    return None


def _not_an_encoder(attention: Attention, why: str) -> ModelError:
    return ModelError(
        "the graph has attention, but not in the form of a supported encoder",
        where=f"node {attention.softmax.name}",
        got=why,
        expected="an encoder layer: attention, residual add, feed-forward, residual add, and a norm before or behind each",
        fix="check that the model is an encoder of the BERT family",
    )
