"""Attention whose memory grows with the length of a text, not with its square, for ONNX Runtime on CPUs.

Each attention becomes an `If` on the padded length. Texts of up to `SHORT` tokens, or four windows, take what was there before.
Longer ones take `_WHOLE`, or `_WINDOWED` where a token sees a window of the text only. Masks of windows, [B, 1, S, S], are
computed for short texts; long ones have the mask of the padding, [B, 1, 1, S].

Input: a finished graph with dynamic shapes whose attentions are canonical and in float. Where one is not, or adds terms of
positions, which are as large as the scores, all stay as they are.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from string import Template
from typing import Any

import numpy as np
import onnx_ir as ir

from octobert.core.session import SHORT_METADATA, ExportOptions
from octobert.graph import operators, parity
from octobert.graph.capture.canonical import MASK_VALUE
from octobert.graph.passes import Pass

# Tokens of the longest text that is computed as before. Beyond, blocks are faster.
SHORT = 512
# Blocks of a window compute as much as all pairs do up to so many windows.
_WINDOWS = 4
# End of a Slice, as exporters write it.
_END = 2**31 - 1

# The kernel computes blocks of scores, one after another (Dao et al., "FlashAttention", 2022), but only without a mask. The
# mask is therefore one more channel: a query has 1 / scale there, and a key has what the mask adds to its scores.
_WHOLE = Template("""
<ir_version: 10, opset_import: ["": 18, "com.microsoft": 1]>
whole (float query, float key, float value, float mask) => (float[batch, sequence, channels] y) {
    channel = Constant <value_ints = [3]> ()
    one_more = Constant <value_ints = [0, 1]> ()
    scale = Constant <value_float = $scale> ()
    inverse = Reciprocal (scale)
    every_head = Constant <value_ints = [1, 1, $heads, 1]> ()
    merged = Constant <value_ints = [0, 0, -1]> ()
    query_rows = Transpose <perm = [0, 2, 1, 3]> (query)
    query_masked = Pad (query_rows, one_more, inverse, channel)
    query_merged = Reshape (query_masked, merged)
    mask_rows = Transpose <perm = [0, 3, 1, 2]> (mask)
    mask_heads = Expand (mask_rows, every_head)
    key_columns = Transpose <perm = $perm> (key)
    key_rows = Transpose <perm = [0, 3, 1, 2]> (key_columns)
    key_masked = Concat <axis = 3> (key_rows, mask_heads)
    key_merged = Reshape (key_masked, merged)
    value_rows = Transpose <perm = [0, 2, 1, 3]> (value)
    value_merged = Reshape (value_rows, merged)
    y = com.microsoft.MultiHeadAttention <num_heads = $heads, scale = $scale> (query_merged, key_merged, value_merged)
}""")

# Blocks of 2 · window queries, each with the keys of its own block and half a block on both sides. Keys beyond the ends of the
# text are masked as padding is.
_WINDOWED = Template("""
<ir_version: 10, opset_import: ["": 18]>
windowed (float query, float key, float value, float mask) => (float[batch, sequence, channels] y) {
    axis = Constant <value_ints = [2]> ()
    zero = Constant <value_ints = [0]> ()
    one = Constant <value_ints = [1]> ()
    last = Constant <value_ints = [-1]> ()
    end = Constant <value_ints = [2147483647]> ()
    hidden = Constant <value_float = $hidden> ()
    scale = Constant <value_float = $scale> ()
    half = Constant <value_ints = [$half]> ()
    block = Add (half, half)
    rows = Constant <value_ints = [0, 0, -1]> ()
    tokens = Shape <start = 2, end = 3> (query)
    negative = Neg (tokens)
    rest = Mod (negative, block)
    behind = Concat <axis = 0> (zero, rest)
    around = Add (behind, half)

    query_channels = Shape <start = 3> (query)
    query_blocked = Concat <axis = 0> (rows, block, query_channels)
    query_padded = Pad (query, behind, , axis)
    query_blocks = Reshape (query_padded, query_blocked)

    key_columns = Transpose <perm = $perm> (key)
    key_rows = Transpose <perm = [0, 1, 3, 2]> (key_columns)
    key_padded = Pad (key_rows, around, , axis)
    key_blocks = Reshape (key_padded, query_blocked)
    key_before = Slice (key_blocks, zero, last, axis)
    key_after = Slice (key_blocks, one, end, axis)
    key_both = Concat <axis = 3> (key_before, key_after)
    keys = Transpose <perm = [0, 1, 2, 4, 3]> (key_both)

    value_channels = Shape <start = 3> (value)
    value_blocked = Concat <axis = 0> (rows, block, value_channels)
    value_padded = Pad (value, around, , axis)
    value_blocks = Reshape (value_padded, value_blocked)
    value_before = Slice (value_blocks, zero, last, axis)
    value_after = Slice (value_blocks, one, end, axis)
    values = Concat <axis = 3> (value_before, value_after)

    mask_axis = Constant <value_ints = [3]> ()
    mask_blocked = Concat <axis = 0> (rows, one, block)
    mask_padded = Pad (mask, around, hidden, mask_axis)
    mask_blocks = Reshape (mask_padded, mask_blocked)
    mask_before = Slice (mask_blocks, zero, last, axis)
    mask_after = Slice (mask_blocks, one, end, axis)
    mask_both = Concat <axis = 4> (mask_before, mask_after)

    origin = Constant <value_int = 0> ()
    step = Constant <value_int = 1> ()
    most_queries = Squeeze (block)
    most_keys = Add (most_queries, most_queries)
    query_places = Range (origin, most_queries, step)
    query_column = Unsqueeze (query_places, one)
    key_places = Range (origin, most_keys, step)
    ahead = Sub (key_places, query_column)
    is_before = Less (ahead, origin)
    is_behind = Greater (ahead, most_queries)
    is_outside = Or (is_before, is_behind)
    nothing = Constant <value_float = 0.0> ()
    window = Where (is_outside, hidden, nothing)
    masks = Add (mask_both, window)

    scores = MatMul (query_blocks, keys)
    scaled_scores = Mul (scores, scale)
    masked_scores = Add (scaled_scores, masks)
    probs = Softmax <axis = -1> (masked_scores)
    context_blocks = MatMul (probs, values)
    context_joined = Concat <axis = 0> (rows, value_channels)
    context_rows = Reshape (context_blocks, context_joined)
    context_heads = Slice (context_rows, zero, tokens, axis)
    context_split = Transpose <perm = [0, 2, 1, 3]> (context_heads)
    y = Reshape (context_split, rows)
}""")

# What takes the place of masks: that of the padding, and for the first token alone what its window hides besides.
_MASKS = Template("""
<ir_version: 10, opset_import: ["": 18]>
masks (int64 attention_mask) => ($outputs) {
    hidden = Constant <value_float = $hidden> ()
    one = Constant <value_float = 1.0> ()
    axes = Constant <value_ints = [1, 2]> ()
    real = Unsqueeze (attention_mask, axes)
    real_float = Cast <to = 1> (real)
    absent = Sub (one, real_float)
    padding = Mul (absent, hidden)
    zero = Constant <value_ints = [0]> ()
    key = Constant <value_ints = [3]> ()
    tokens = Shape <start = 3> (padding)
    $masks
}""")
_MASK = Template("""
    seen_$i = Constant <value_ints = [$seen]> ()
    near_$i = Slice (padding, zero, seen_$i, key)
    near_tokens_$i = Shape <start = 3> (near_$i)
    rest_$i = Sub (tokens, near_tokens_$i)
    far_$i = Concat <axis = 0> (zero, rest_$i)
    mask_$i = Pad (near_$i, far_$i, hidden, key)
""")


@dataclass(frozen=True)
class _Attention:
    """An attention in canonical form.

    Args:
        nodes: what turns keys, the products with what is between them, and what merges heads.
        inputs: heads of queries, keys and values, and the mask.
        numbers: of the templates.
    """

    nodes: tuple[ir.Node, ...]
    inputs: tuple[ir.Value, ...]
    numbers: dict[str, object]


def bound_memory_(model: ir.Model, *, short: int = SHORT) -> int:
    """Let the memory of attention grow with the length of a text, in place.

    Args:
        short: tokens of the longest text that is computed as before; more where windows are wide.

    Returns:
        The number of attentions that compute long texts in another way; 0 where not all can.
    """
    graph = model.graph
    attentions = [_attention(softmax) for softmax in operators.of_type(graph, "Softmax")]
    found = [each for each in attentions if each is not None]
    whole = [each for each in found if not _is_row(each.inputs[0])]
    if not whole or len(found) < len(attentions):
        return 0
    windows = _windows(model, list({each.inputs[-1]: None for each in found}), short)
    if windows is None:
        return 0
    short = max(short, _WINDOWS * max(window or 0 for window in windows.values()))
    chain = operators.Chain(graph, "long_texts", dtype=ir.DataType.INT64)
    tokens = chain.Shape("tokens", graph.inputs[0], start=1, end=2)
    most = operators.initializer(graph, "long_texts.short", [short])
    is_long = chain.Greater("are_read", tokens, most, dtype=ir.DataType.BOOL)
    graph.insert_before(graph[0], chain.nodes)
    for each in whole:
        window = windows[each.inputs[-1]]
        template = _WHOLE if window is None else _WINDOWED
        text = template.substitute(each.numbers, half=window, hidden=MASK_VALUE)
        _branch_(is_long, each.nodes, each.nodes[-1].outputs, text, each.inputs)
    if not all(map(_is_row, windows)):
        ends = [_END if w is None or not _is_row(mask) else w + 1 for mask, w in windows.items()]
        text = _MASKS.substitute(
            hidden=MASK_VALUE,
            outputs=", ".join(f"float[batch, 1, 1, keys] mask_{i}" for i in range(len(ends))),
            masks="".join(_MASK.substitute(i=i, seen=end) for i, end in enumerate(ends)),
        )
        given = [value for value in graph.inputs if value.name == "attention_mask"]
        _branch_(is_long, _only_for(graph, windows), [*windows], text, given)
    model.metadata_props[SHORT_METADATA] = str(short)
    operators.clean_(model)
    return len(whole)


def _is_row(value: ir.Value) -> bool:
    """Return whether a value [B, H, S, D] or [B, 1, S, S] has one row for each text."""
    return value.shape is not None and value.shape[2] == 1


def _attention(softmax: ir.Node) -> _Attention | None:
    """The attention of a Softmax, or None where it has another form."""
    above = operators.above(softmax.inputs[0], "Add", "Mul", "MatMul")
    below = operators.below(softmax.outputs[0], "MatMul", "Transpose", "Reshape")
    if not above or not below:
        return None
    add, mul, scores = above
    query, key = operators.input_of(scores, 0), operators.input_of(scores, 1)
    scale, turn = operators.const_scalar(mul.inputs[1]), operators.producer(key, "Transpose")
    if not scale or turn is None or not operators.only_reader(key) or query.shape is None:
        return None
    inputs = query, *turn.inputs, below[0].inputs[1], add.inputs[1]
    perm = [*turn.attributes["perm"].as_ints()]
    return _Attention(
        (turn, scores, mul, add, softmax, *below),
        tuple(value for value in inputs if value is not None),
        {"heads": query.shape[1], "scale": scale, "perm": perm},
    )


def _windows(
    model: ir.Model, masks: list[ir.Value], short: int
) -> dict[ir.Value, int | None] | None:
    """How far a token sees on both sides by each mask, None for the whole text; None if a mask hides anything else.

    Args:
        short: the text that shows them has one token more.
    """
    bounds = [operators.const_array(v) for mask in masks for v in operators.ancestors(mask)]
    integers = [array for array in bounds if array is not None and array.dtype.kind == "i"]
    # The end of a window that is wider than the text would not be seen.
    if any(((array >= short) & (array < _END)).any() for array in integers):
        return None
    length = short + 1
    real = np.arange(length) < np.array([[length], [length // 2]])
    names = [str(value.name) for value in model.graph.inputs]
    feeds = {name: real.astype(int) * (name == "attention_mask") for name in names}
    (arrays,) = parity.onnx_outputs(model, [feeds], values=masks)
    apart = np.abs(np.subtract.outer(np.arange(length), np.arange(length)))
    windows: dict[ir.Value, int | None] = {}
    for mask, added in zip(masks, arrays, strict=True):
        window = int((added[0, 0, 0] == 0).sum()) - 1
        seen = (apart[: added.shape[2]] <= window) & real[:, None, None]
        if not window or not np.array_equal(added, np.where(seen, 0, np.float32(MASK_VALUE))):
            return None
        windows[mask] = None if window == short else window
    return windows


def _only_for(graph: ir.Graph, values: Collection[ir.Value]) -> tuple[ir.Node, ...]:
    """The nodes that compute values and are read for nothing else, in order."""
    inside: dict[ir.Node, None] = {}
    for node in reversed(graph):
        if all(
            v in values or (v.uses() and inside.keys() >= {*operators.readers(v)})
            for v in node.outputs
        ):
            inside[node] = None
    return tuple(reversed(inside))


def _branch_(
    condition: ir.Value,
    nodes: Sequence[ir.Node],
    outputs: Sequence[ir.Value],
    long: str,
    inputs: Sequence[ir.Value],
) -> None:
    """Move nodes into a branch of an `If`, whose outputs take over the readers and the names of theirs.

    Args:
        nodes: in order.
        outputs: of them.
        long: the other branch, where the condition is true, as text.
        inputs: what it reads.
    """
    whole, graph, name = nodes[0].graph, ir.from_onnx_text(long).graph, str(outputs[0].name)
    assert whole is not None
    for stand_in, value in zip(graph.inputs, inputs, strict=True):
        ir.convenience.replace_all_uses_with(stand_in, value)
    graph.inputs.clear()
    for node in graph:
        node.name = node.outputs[0].name = f"{name}.long.{node.outputs[0].name}"
    made = [ir.Value(name=value.name, type=value.type) for value in outputs]
    for old, new in zip(outputs, made, strict=True):
        for reader, index in list(old.uses()):
            if reader not in nodes:
                reader.replace_input_with(index, new)
        old.name = f"{old.name}.short"
    whole.remove(nodes)
    short = ir.Graph([], outputs, nodes=nodes, name=f"{name}.short")
    branches = {"then_branch": graph, "else_branch": short}
    whole.append(ir.node("If", [condition], branches, outputs=made, name=name))


def _options(form: ExportOptions) -> dict[str, Any] | None:
    wanted = form.long_texts and form.float_parts == "float32"
    return {} if wanted and form.shape is None and form.opset is None else None


BLOCKS = Pass(bound_memory_, _options)
