"""Find the encoder layers of a float graph by their structure. The graph is not changed.

Input: the ONNX graph of a BERT-family encoder from any exporter. Output: `EncoderLayer`s that refer to its nodes. The search
starts at each attention (`attention.find_attention`) and follows the residual adds, norms and feed-forwards around it. Pre-norm
and post-norm layers, several feed-forwards in sequence and bottlenecks (MobileBERT) are recognized.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import onnx_ir as ir

from octobert.core.errors import ModelError
from octobert.graph import operators
from octobert.graph.capture.attention import Attention, find_attention
from octobert.graph.parts import Linear, Norm, is_weight, linear_at, linear_of, norm_behind, norm_of

T = TypeVar("T")


@dataclass(frozen=True)
class FeedForward:
    """Two linear layers with an activation, optionally gated, between them, and the residual add that follows."""

    up: Linear
    down: Linear
    add: ir.Node

    @property
    def gated(self) -> bool:
        """Whether one half of the output of `up` is multiplied by the activation of the other half."""
        return self.up.sizes[1] == 2 * self.down.sizes[0]


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
    def width(self) -> int:
        """Channels of the hidden state between layers."""
        return self.linears.get("bottleneck", self.linears["ffn_down"]).sizes[1]


def find_layers(graph: ir.Graph) -> list[EncoderLayer]:
    """Return the encoder layers in order.

    Raises:
        ModelError: the graph has no attention, or the nodes around one do not form an encoder layer.
    """
    candidates = [find_attention(node) for node in graph if node.op_type == "Softmax"]
    attentions = [attention for attention in candidates if attention is not None]
    if not attentions:
        raise ModelError(
            "the graph contains no supported encoder",
            got=f"{len(graph)} nodes and no attention of the form MatMul, scale, mask, Softmax, MatMul",
            expected="a BERT-family encoder in plain ONNX operators",
            fix="export the float model without fused operators of a runtime",
        )
    return [_layer_around(attention) for attention in attentions]


def _layer_around(attention: Attention) -> EncoderLayer:
    """Return the encoder layer that an attention belongs to."""
    add = next(
        (n for n in operators.consumers(attention.output.y, "Add") if norm_behind(n.outputs[0])),
        None,
    )
    if add is None:
        raise _not_an_encoder(attention, "no residual add and norm follow the attention")
    norm = norm_behind(add.outputs[0])
    assert norm is not None
    linears = {"attention_output": attention.output}
    projections = {"query": attention.query, "key": attention.key, "value": attention.value}
    linears |= {"qkv": attention.query} if attention.fused else projections
    skip = next(v for v in add.inputs if v is not attention.output.y)
    assert skip is not None
    pre_norm = _feed_forward(norm.y, add.outputs[0])
    if pre_norm is not None:
        before = norm_of(attention.query.x) if attention.query.x is not skip else None
        norms = {"ffn_norm": norm} | ({"attention_norm": before} if before else {})
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
    linears |= _numbered("ffn_up", [block.up for block in blocks]) | _numbered(
        "ffn_down", [block.down for block in blocks]
    )
    return EncoderLayer(attention, linears, norms, _numbered("activation", blocks), output)


def _numbered(part: str, items: list[T]) -> dict[str, T]:
    """Return several parts by their roles: `ffn_up.0`, `ffn_up.1`, `ffn_up`; the last has no number."""
    roles = [*(f"{part}.{index}" for index in range(len(items) - 1)), part]
    return dict(zip(roles, items, strict=True))


def _feed_forward(x: ir.Value, skip: ir.Value) -> FeedForward | None:
    """Return the feed-forward that reads `x` and is added to `skip`, or None. Blocks that contain attention do not count."""
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
        "an attention is not part of a supported encoder layer",
        where=f"node {attention.softmax.name}",
        got=why,
        expected="attention, residual add, feed-forward, residual add, and a norm before or after each",
        fix="check that the model is a BERT-family encoder",
    )
