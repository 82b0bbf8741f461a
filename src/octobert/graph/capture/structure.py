"""Find the encoder layers of a float graph by their structure. The graph is not changed.

Input: the ONNX graph of a BERT-family encoder from any exporter. Output: `EncoderLayer`s that refer to its nodes. The search
starts at each attention, a Softmax between two MatMuls of computed values, and follows the residual adds, norms and
feed-forwards around it. Recognized:

    attention   eager and SDPA; masks built by Add, Where or NaN guards; a scale on the scores or on Q and K; Q, K and V from
                one linear layer or from three; heads of K and V that several heads of Q share; rotary embeddings;
                relative-position terms in the scores
    layers      pre-norm and post-norm, and norms at the ends of branches; LayerNorm and RMS norm; gated feed-forwards with one
                linear layer or two before the gate; several feed-forwards in sequence, bottlenecks (MobileBERT)
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeVar

import onnx_ir as ir

from octobert.core.errors import ModelError
from octobert.graph import operators
from octobert.graph.parts import (
    Linear,
    Norm,
    branch_of,
    is_weight,
    linear_at,
    linear_of,
    norm_behind,
    norm_of,
)

T = TypeVar("T")
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
    """Scaled dot-product attention and its linear layers; `scale` is the total factor on the scores.

    Args:
        softmax, scores, context: the Softmax, Q·Kᵀ, and the product with V.
    """

    softmax: ir.Node
    scores: ir.Node
    context: ir.Node
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
        """True if one linear layer computes Q, K and V."""
        return self.query.matmul is self.key.matmul is self.value.matmul

    @property
    def width(self) -> int:
        """Channels of Q, summed over heads."""
        channels = self.query.sizes[1]
        return channels // 3 if self.fused else channels


@dataclass(frozen=True)
class FeedForward:
    """Two linear layers with an activation, optionally gated, between them, and the residual add that follows.

    Args:
        gate: the linear layer before the activation, which multiplies the output of `up`; None where `up` computes both.
        norm: of the output of `down`, before the residual add.
    """

    up: Linear
    down: Linear
    add: ir.Node
    gate: Linear | None = None
    norm: Norm | None = None

    @property
    def gated(self) -> bool:
        """True if something is multiplied by the output of the activation."""
        return self.gate is not None or self.up.sizes[1] == 2 * self.down.sizes[0]


@dataclass(frozen=True)
class EncoderLayer:
    """One encoder layer.

    Args:
        linears, norms: role (a key of `EncoderFamily.parts`) → the part.
        feed_forwards: role of the activation → the feed-forward around it, in order.
        output: the value that the next layer reads; in pre-norm models a residual sum.
    """

    attention: Attention
    linears: dict[str, Linear]
    norms: dict[str, Norm]
    feed_forwards: dict[str, FeedForward]
    output: ir.Value

    @property
    def roles(self) -> set[str]:
        """The roles of its parts."""
        return {*self.linears, *self.norms, *self.feed_forwards}

    @property
    def width(self) -> int:
        """Channels of the hidden state between layers."""
        return self.linears.get("bottleneck", self.linears["ffn_down"]).sizes[1]


def find_layers(graph: ir.Graph) -> list[EncoderLayer]:
    """Return the encoder layers in order.

    Raises:
        ModelError: the graph has no attention, or the nodes around one do not form an encoder layer.
    """
    layers, others = layers_in(graph)
    refused = [why for why in others.values() if isinstance(why, ModelError)]
    if refused:
        raise refused[0]
    if not layers:
        raise ModelError(
            "the graph contains no supported encoder",
            got=f"{len(graph)} nodes and no attention of the form MatMul, scale, mask, Softmax, MatMul",
            expected="a BERT-family encoder in plain ONNX operators",
            fix="export the float model without fused operators of a runtime",
        )
    return layers


def layers_in(graph: ir.Graph) -> tuple[list[EncoderLayer], dict[str, ModelError | None]]:
    """Return the encoder layers in order, and of each Softmax that is in none, why; None for no attention."""
    layers: list[EncoderLayer] = []
    others: dict[str, ModelError | None] = {}
    for node in operators.of_type(graph, "Softmax"):
        attention = find_attention(node)
        try:
            if attention is not None:
                layers.append(_layer_around(attention))
                continue
            others[str(node.name)] = None
        except ModelError as error:
            others[str(node.name)] = error
    return layers, others


def _layer_around(attention: Attention) -> EncoderLayer:
    """Return the encoder layer that an attention belongs to."""
    branch = norm_behind(attention.output.y)
    end = attention.output.y if branch is None else branch.y
    add = next((n for n in operators.consumers(end, "Add") if norm_behind(n.outputs[0])), None)
    if add is None:
        raise _not_an_encoder(attention, "no residual add and norm follow the attention")
    norm = norm_behind(add.outputs[0])
    assert norm is not None
    linears = {"attention_output": attention.output}
    projections = {"query": attention.query, "key": attention.key, "value": attention.value}
    linears |= {"qkv": attention.query} if attention.fused else projections
    skip = next(v for v in add.inputs if v is not end)
    assert skip is not None
    pre_norm = _feed_forward(norm.y, add.outputs[0])
    if pre_norm is not None:
        before = norm_of(attention.query.x) if attention.query.x is not skip else None
        norms = {"ffn_norm": norm} | ({"attention_norm": before} if before else {})
        norms |= {"branch_norm.attention": branch} if branch else {}
        norms |= {"branch_norm": pre_norm.norm} if pre_norm.norm else {}
        return _layer(attention, linears, norms, [pre_norm], pre_norm.add.outputs[0])
    norms = {"attention_norm": norm}
    state, feed_forwards, behind = norm.y, [], []
    while (block := _feed_forward(state, state)) is not None and (
        after := norm_behind(block.add.outputs[0])
    ) is not None:
        feed_forwards.append(block)
        behind.append(after)
        state = after.y
    if not feed_forwards:
        raise _not_an_encoder(
            attention, "no feed-forward with a residual add and a norm follows the attention"
        )
    norms |= _numbered("ffn_norm", behind)
    for role, narrow in (("input", skip), ("attention", attention.query.x)):
        entry = norm_of(narrow)
        bottleneck = linear_of(entry.x) if entry is not None else None
        if entry is not None and bottleneck is not None:
            linears[f"bottleneck.{role}"], norms[f"bottleneck_norm.{role}"] = bottleneck, entry
    if "bottleneck.input" in linears:
        ends = [
            linear_at(node)
            for node in operators.consumers(state, "MatMul")
            if is_weight(node.inputs[1])
        ]
        sums = [(end, add) for end in ends for add in operators.consumers(end.y, "Add")]
        wide = next(
            ((end, after) for end, add in sums if (after := norm_behind(add.outputs[0]))), None
        )
        if wide is None:
            raise _not_an_encoder(
                attention, "a bottleneck before the attention, but none after its feed-forwards"
            )
        linears["bottleneck"], norms["bottleneck_norm"] = wide
        state = wide[1].y
    return _layer(attention, linears, norms, feed_forwards, state)


def _layer(
    attention: Attention,
    linears: dict[str, Linear],
    norms: dict[str, Norm],
    blocks: list[FeedForward],
    output: ir.Value,
) -> EncoderLayer:
    for role, block in _numbered("ffn_up", blocks).items():
        linears |= ({f"{role}.gate": block.gate} if block.gate else {}) | {role: block.up}
    linears |= _numbered("ffn_down", [block.down for block in blocks])
    return EncoderLayer(attention, linears, norms, _numbered("activation", blocks), output)


def _numbered(part: str, items: list[T]) -> dict[str, T]:
    """Return several parts by their roles: `ffn_up.0`, `ffn_up.1`, `ffn_up`; the last has no number."""
    roles = [*(f"{part}.{index}" for index in range(len(items) - 1)), part]
    return dict(zip(roles, items, strict=True))


def _feed_forward(x: ir.Value, skip: ir.Value) -> FeedForward | None:
    """Return the feed-forward that reads `x` and is added to `skip`, or None. Blocks that contain attention do not count."""
    for add in operators.consumers(skip, "Add"):
        other = [v for v in add.inputs if v is not skip]
        down = branch_of(other[0]) if len(other) == 1 else None
        if down is None:
            continue
        inside = operators.ancestors(down.x) - operators.ancestors(x)
        if any(operators.producer(v, "Softmax") for v in inside):
            continue
        ups = [
            linear_at(node)
            for node in operators.consumers(x, "MatMul")
            if is_weight(node.inputs[1]) and node.outputs[0] in inside
        ]
        product, norm = operators.producer(down.x, "Mul"), norm_of(other[0])
        if len(ups) == 1:
            return FeedForward(ups[0], down, add, norm=norm)
        if len(ups) == 2 and product is not None:
            # The gate passes through the activation, the other layer does not.
            gate, up = sorted(ups, key=lambda linear: linear.y in product.inputs)
            return FeedForward(up, down, add, gate, norm)
    return None


def _not_an_encoder(attention: Attention, why: str) -> ModelError:
    return ModelError(
        "an attention is not part of a supported encoder layer",
        where=f"node {attention.softmax.name}",
        got=why,
        expected="attention, residual add, feed-forward, residual add, and a norm before or after each",
        fix="check that the model is a BERT-family encoder",
    )


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
        softmax,
        matmul,
        product,
        (query, key, value),
        output,
        scale * query.scale * key.scale,
        tuple(terms),
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
        value,
        lambda ancestor: (
            linear_of(ancestor) is None and operators.producer(ancestor, "Shape") is None
        ),
    )
    linears = [linear for ancestor in values if (linear := linear_of(ancestor)) is not None]
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
