"""Find the encoder inside a float graph by its shape: attentions, feed-forwards, residual adds and norms, layer by layer.

In: any ONNX graph of a BERT-family family, whatever exporter wrote it (eager or SDPA attention, masks built by Add, Where or
IsNaN guards, scale on the scores or on Q and K). Norms may stand before attention and feed-forward or behind them, Q, K and V
may be one linear layer, rotated by position or not, and several feed-forwards may follow each other, between bottlenecks.
Out: `Layer`s that point at its nodes. Nothing is edited. The search starts at each Softmax between two matrix products of
computed values, which only attention has.
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from octobert.core.errors import ModelError
from octobert.graph import operators
from octobert.graph.capture.attention import Attention, find_attention
from octobert.graph.parts import Linear, Norm, is_weight, linear_at, linear_of, norm_behind, norm_of


@dataclass(frozen=True)
class FeedForward:
    """Two linear layers, an activation between them, perhaps times a gate, and a residual add."""

    up: Linear
    down: Linear
    add: ir.Node

    @property
    def gated(self) -> bool:
        """Whether half of what `up` makes is multiplied with the activation of the other half."""
        return self.up.sizes[1] == 2 * self.down.sizes[0]


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
        return self.linears.get("bottleneck", self.linears["ffn_down"]).sizes[1]


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


def _layer_around(attention: Attention) -> Layer:
    """The layer that an attention belongs to."""
    add = next((n for n in operators.consumers(attention.output.y, "Add") if norm_behind(n.outputs[0])), None)
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
        ends = [linear_at(node) for node in operators.consumers(state, "MatMul") if is_weight(node.inputs[1])]
        sums = [(one, add) for one in ends for add in operators.consumers(one.y, "Add")]
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
    for add in operators.consumers(skip, "Add"):
        other = [v for v in add.inputs if v is not skip]
        down = linear_of(other[0]) if len(other) == 1 else None
        if down is None:
            continue
        inside = operators.ancestors(down.x) - operators.ancestors(x)
        if any(operators.producer(v, "Softmax") for v in inside):
            continue
        for node in operators.consumers(x, "MatMul"):
            if is_weight(node.inputs[1]) and node.outputs[0] in inside:
                return FeedForward(linear_at(node), down, add)
    return None


def _not_an_encoder(attention: Attention, why: str) -> ModelError:
    return ModelError(
        "the graph has attention, but not in the form of a supported encoder",
        where=f"node {attention.softmax.name}",
        got=why,
        expected="an encoder layer: attention, residual add, feed-forward, residual add, and a norm before or behind each",
        fix="check that the model is an encoder of the BERT family",
    )
