"""ONNX Runtime's fused operators for encoders (`com.microsoft`), written into canonical graphs, float or with Q/DQ.

    Attention                 Q, K and V as one product, scores, mask, softmax and context: where all three are plain linear
                              layers over one value
    MultiHeadAttention        the same behind linear layers of its own: where they are quantized, read different values, or are
                              read by something else too (DeBERTa compares Q and K with positions)
    SkipLayerNormalization    a residual add, the bias of the linear layer before it, and the norm
    BiasGelu, Gelu, FastGelu  the activation (FastGelu by tanh), with the bias of the linear layer before it
    EmbedLayerNormalization   the tables of words, positions and, where there are any, segments; their sum, and its norm

ONNX Runtime fuses norms and activations itself when it opens a file, but attention only in forms that exporters of today no
longer write. Q/DQ pairs stay where the plan put them: what lies between them is fused, nothing across them. The padding mask is
read as it is, one integer a token, so padding may be on either side. `check` proves that a fused graph computes the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir

from octobert.core.frozen import FrozenModel
from octobert.core.results import Parity
from octobert.graph import gelu, operators, parity, parts

# What values that are rounded to the next integer may come to at the outputs: measured 5e-3 on twelve layers of random
# weights, and 3e-7 on two, where none was. Errors finer than this are found in the graph without its pairs.
ROUNDED = 5e-2


class Fusions(FrozenModel):
    """What was fused.

    Args:
        counts: operator → how many were written.
        left: what stayed as it was: the operator that it could have been, why not, and how often.
    """

    counts: dict[str, int]
    left: tuple[str, ...]


def fuse_(model: ir.Model) -> Fusions:
    """Write the fused operators wherever they compute what the graph computes, in place.

    Args:
        model: a canonical graph, float or as `qdq.write` left it, with float32 where it is float.
    """
    graph = model.graph
    work = _Work(graph)
    model.opset_imports.setdefault(operators.MICROSOFT, 1)
    for softmax in [node for node in graph if node.op_type == "Softmax"]:
        work.try_("MultiHeadAttention", _fuse_attention_, softmax)
    for node in list(graph):
        if node.op_type == "LayerNormalization":
            if not (_reads_words(node) and work.try_("EmbedLayerNormalization", _fuse_embeddings_, node)):
                work.try_("SkipLayerNormalization", _fuse_norm_, node)
        elif (norm := parts.norm_of(node.outputs[0])) is not None and _residual(norm.x) is not None:
            work.left["SkipLayerNormalization: the norm is only a scale and a shift"] += 1
    for node in [node for node in graph if node.op_type in ("Erf", "Tanh")]:
        _fuse_gelu_(work, node)
    operators.clean_(model)
    left = tuple(f"{reason} ({count})" for reason, count in work.left.items())
    return Fusions(counts=dict(sorted(work.counts.items())), left=left)


def check(fused: ir.Model, unfused: ir.Model, batches: parity.Batches) -> Parity:
    """Prove that a fused graph computes what it was made from, with padding on the right and on the left.

    A float32 sum in another order can round an 8-bit value to the next integer, and what follows differs by whole steps. So a
    graph with Q/DQ is compared twice: without its pairs, when it is a float graph and must agree as closely as one, and as it
    is, within `ROUNDED`.

    Args:
        batches: token ids and masks, padded on either side; each is run as it is and mirrored.

    Returns:
        The comparison without pairs, which is the sharp one.

    Raises:
        ParityError: they differ by more than rounding.
        ModelError: one of them does not run.
    """
    mirrored = [{name: np.flip(array, axis=1).copy() for name, array in batch.items()} for batch in batches]
    feeds = [parity.only(batch, unfused) for batch in (*batches, *mirrored)]
    if _rounds(unfused):
        _compare(fused, unfused, feeds, ROUNDED)
        fused, unfused = _without_pairs(fused), _without_pairs(unfused)
    return _compare(fused, unfused, feeds, ROUNDED if _rounds(unfused) else parity.TOLERANCE)


def _compare(fused: ir.Model, unfused: ir.Model, feeds: parity.Batches, tolerance: float) -> Parity:
    names, against = [str(v.name) for v in unfused.graph.outputs], "the graph it was made from"
    # Every node as it is written: kernels of 8-bit products that saturate on some CPUs are no matter of fusion.
    reference = parity.onnx_outputs(unfused, feeds, names, optimized=False)
    return parity.compare(fused, feeds, reference, against, what="the fused graph", tolerance=tolerance, optimized=False)


def _rounds(model: ir.Model) -> bool:
    return any(node.op_type in ("QuantizeLinear", "DynamicQuantizeLinear") for node in model.graph)


def _without_pairs(model: ir.Model) -> ir.Model:
    """A copy that reads what enters each Q/DQ pair where it read what comes out."""
    copy = model.clone()
    for node in [node for node in copy.graph if node.op_type == "DequantizeLinear"]:
        quantize = operators.producer(node.inputs[0], "QuantizeLinear")
        if quantize is not None:
            ir.convenience.replace_all_uses_with(node.outputs[0], quantize.inputs[0])
    operators.clean_(copy)
    return copy


class _Unfit(Exception):
    """Why something cannot be fused."""


@dataclass
class _Work:
    """A graph while it is fused, and the account of it."""

    graph: ir.Graph
    counts: Counter[str] = field(default_factory=Counter)
    left: Counter[str] = field(default_factory=Counter)
    # Values that several fused operators read, made once: integers of an input, packed weights, sums of biases.
    made: dict[tuple[ir.Value, ...], Any] = field(default_factory=dict)

    def try_(self, kind: str, fuse: Any, node: ir.Node) -> bool:
        """Fuse what is around a node, or note why it cannot be."""
        try:
            fuse(self, node)
        except _Unfit as unfit:
            if str(unfit):
                self.left[f"{kind}: {unfit}"] += 1
            return False
        return True

    def write_(
        self,
        kind: str,
        inputs: Sequence[ir.Value | None],
        old: ir.Value,
        attributes: dict[str, Any],
        total: ir.Value | None = None,
    ) -> None:
        """A fused operator in the place of the node that makes `old`; its fourth output takes the place of `total`."""
        node = old.producer()
        assert node is not None
        outputs = [ir.Value(type=old.type, shape=old.shape)]
        if kind == "EmbedLayerNormalization":  # has a second output that nobody reads, and cannot be without it
            outputs.append(ir.Value(name=f"{old.name}.mask_index", type=ir.TensorType(ir.DataType.INT32)))
        if total is not None:
            outputs += [ir.Value(name=""), ir.Value(name=""), ir.Value(type=total.type, shape=total.shape)]
        fused = ir.node(kind, inputs, attributes, domain=operators.MICROSOFT, outputs=outputs, name=str(node.name))
        self.graph.insert_before(node, [fused])
        for before, after in ((old, outputs[0]), (total, outputs[-1])):
            if before is not None:
                ir.convenience.replace_all_uses_with(before, after, replace_graph_outputs=True)
                after.name, before.name = before.name, f"{before.name}.unfused"
        self.counts[kind] += 1

    def integers(self, value: ir.Value) -> ir.Value:
        """An input of the graph as int32, which the fused operators take."""
        if (value,) not in self.made:
            cast = operators.make_node(
                "Cast", [value], f"{value.name}.int32", {"to": ir.DataType.INT32}, dtype=ir.DataType.INT32
            )
            self.graph.insert_before(self.graph[0], [cast])
            self.made[value,] = cast.outputs[0]
        return self.made[value,]


def _above(value: ir.Value | None, *op_types: str) -> ir.Node:
    """The node that makes a value, which is one of these types."""
    node = operators.producer(value, *op_types)
    if node is None:
        raise _Unfit(_why(operators.producer(value)))
    return node


def _below(value: ir.Value, *op_types: str) -> ir.Node:
    """The only node that reads a value, which is one of these types."""
    readers = operators.readers(value)
    if len(readers) != 1 or readers[0].op_type not in op_types or value.is_graph_output():
        raise _Unfit(_why(readers[0] if readers else None))
    return readers[0]


def _why(node: ir.Node | None) -> str:
    quantized = node is not None and node.op_type in operators.PAIR
    return "values inside it are quantized" if quantized else "it is written in a form that is not known"


def _fuse_attention_(work: _Work, softmax: ir.Node) -> None:
    masked = _above(softmax.inputs[0], "Add")
    product = _below(softmax.outputs[0], "MatMul")
    scores, terms = _above(masked.inputs[0], "Add", "Mul"), []
    while scores.op_type == "Add":
        terms.append(scores.inputs[1])
        scores = _above(scores.inputs[0], "Add", "Mul")
    pair = _above(scores.inputs[0], "MatMul")
    merged = _below(_below(product.outputs[0], "Transpose").outputs[0], "Reshape")
    query, heads = _split(pair.inputs[0], (0, 2, 1, 3))
    key, _ = _split(pair.inputs[1], (0, 2, 3, 1))
    value, _ = _split(product.inputs[1], (0, 2, 1, 3))
    mask, mask_value = _padding(masked.inputs[1])
    bias = _position_bias(work, merged, terms)
    attributes = {"num_heads": heads, "scale": operators.const_scalar(scores.inputs[1]), "mask_filter_value": mask_value}
    operands = [query, key, value]
    # What is packed into one product must be read by the attention alone, or it would be computed twice.
    linears = [one for v in operands if (one := parts.linear_of(v)) is not None and len(operators.readers(v)) == 1]
    inputs: list[ir.Value | None]
    if len(linears) == 3 and len({(one.x, one.width, one.bias is None) for one in linears}) == 1:
        weight = _joined(work, [one.weight for one in linears], "weight")
        biases = _joined(work, [one.bias for one in linears if one.bias is not None], "bias")
        kind, inputs = "Attention", [linears[0].x, weight, biases, work.integers(mask), None, bias]
    else:
        adds = [_above(v, "Add") for v in operands if _is_biased(v)]
        adds = adds if len(adds) == len(operands) else []
        biases = _joined(work, [v for add in adds if (v := add.inputs[1]) is not None], "bias")
        operands = [v for add in adds if (v := add.inputs[0]) is not None] or operands
        kind, inputs = "MultiHeadAttention", [*operands, biases, work.integers(mask), bias]
    work.write_(kind, inputs if bias is not None else inputs[:-1], merged.outputs[0], attributes)


def _split(value: ir.Value | None, perm: tuple[int, ...]) -> tuple[ir.Value, int]:
    """What a value of [B, H, S, K] or [B, H, K, S] was before it was split into heads, and how many they are."""
    node = operators.producer(value)
    reshape = operators.producer(node.inputs[0], "Reshape") if node is not None and node.op_type == "Transpose" else None
    shape = operators.const_array(reshape.inputs[1]) if reshape is not None else None
    if node is None or reshape is None or shape is None or shape[:2].tolist() != [0, 0] or len(shape) != 4:
        quantized = node is not None and (node.op_type in operators.PAIR or operators.producer(node.inputs[0], *operators.PAIR))
        raise _Unfit("values inside it are quantized" if quantized else "Q and K are rotated by their positions")
    if tuple(node.attributes["perm"].value) != perm:
        raise _Unfit(_why(node))
    return reshape.inputs[0], int(shape[2])  # type: ignore[return-value]


def _padding(bias: ir.Value | None) -> tuple[ir.Value, float]:
    """The mask [B, S] behind the bounded constant that is added to the scores of padding, and that constant."""
    mul = _above(bias, "Mul")
    sub = operators.producer(mul.inputs[0], "Sub")
    cast = operators.producer(sub.inputs[1], "Cast") if sub is not None else None
    unsqueeze = operators.producer(cast.inputs[0], "Unsqueeze") if cast is not None else None
    mask = unsqueeze.inputs[0] if unsqueeze is not None else None
    bound = operators.const_scalar(mul.inputs[1])
    if mask is None or bound is None or not mask.is_graph_input():
        raise _Unfit("its mask holds more than padding")
    return mask, bound


def _position_bias(work: _Work, before: ir.Node, terms: Sequence[ir.Value]) -> ir.Value | None:
    """The sum of the terms of positions, each [1 or B, 1 or H, S, S]."""
    for term in terms:
        if term.shape is None or len(term.shape) != 4 or str(term.shape[2]) != str(term.shape[3]):
            raise _Unfit("what positions add to its scores has another shape than these")
    if len(terms) < 2:
        return terms[0] if terms else None
    if tuple(terms) not in work.made:
        total = terms[0]
        for index, term in enumerate(terms[1:]):
            add = operators.make_node("Add", [total, term], f"{before.name}.positions_{index}")
            work.graph.insert_before(before, [add])
            total = add.outputs[0]
        work.made[tuple(terms)] = total
    return work.made[tuple(terms)]


def _joined(work: _Work, constants: Sequence[ir.Value], name: str) -> ir.Value | None:
    """Constants of Q, K and V side by side, if there are any; layers that share theirs share the result."""
    if not constants:
        return None
    if tuple(constants) not in work.made:
        stem = str(constants[0].name).rsplit(".", 2)[0]
        whole = np.concatenate([v.const_value.numpy() for v in constants], axis=-1)
        work.made[tuple(constants)] = operators.initializer(work.graph, f"{stem}.qkv.{name}", whole)
    return work.made[tuple(constants)]


def _fuse_norm_(work: _Work, norm: ir.Node) -> None:
    if operators.producer(norm.inputs[0], *operators.PAIR):
        raise _Unfit("what it reads is quantized")
    add = _residual(norm.inputs[0])
    if add is None:
        raise _Unfit
    if any(operators.producer(v, *operators.PAIR) for v in add.inputs):
        raise _Unfit("the residual add reads quantized values")
    x, skip = add.inputs
    # The bias belongs to the first; a summand that is the same for all rows, as positions are, may only be the second.
    if _is_one_row(x) or (_is_biased(skip) and not _is_biased(x) and not _is_one_row(skip)):
        x, skip = skip, x
    bias = None
    if _is_biased(x):
        x, bias = x.producer().inputs
    beta = norm.inputs[2] if len(norm.inputs) > 2 else None
    total = add.outputs[0] if len(operators.readers(add.outputs[0])) > 1 or add.outputs[0].is_graph_output() else None
    inputs = [x, skip, norm.inputs[1], beta, bias]
    work.write_("SkipLayerNormalization", inputs, norm.outputs[0], {"epsilon": _epsilon(norm)}, total)


def _residual(value: ir.Value | None) -> ir.Node | None:
    """The sum of two computed values that a value is, or None."""
    add = operators.producer(value, "Add")
    return add if add is not None and all(operators.const_array(v) is None for v in add.inputs) else None


def _is_one_row(value: ir.Value | None) -> bool:
    return value is not None and value.shape is not None and value.shape[0] == 1


def _is_biased(value: ir.Value | None) -> bool:
    """Whether a value is a sum with a constant vector, and is read once."""
    node = operators.producer(value, "Add")
    alone = value is not None and len(value.uses()) == 1 and not value.is_graph_output()
    return node is not None and alone and parts.is_vector(node.inputs[1])


def _epsilon(norm: ir.Node) -> float:
    return float(norm.attributes["epsilon"].value) if "epsilon" in norm.attributes else 1e-5


def _summands(value: ir.Value | None) -> list[ir.Value]:
    node = operators.producer(value, "Add")
    return [one for v in node.inputs for one in _summands(v)] if node is not None else [value] if value is not None else []


def _lookup(value: ir.Value) -> ir.Node | None:
    """The Gather from a constant table that makes a value, or its rows before they are dequantized."""
    node = operators.producer(value, "Gather", "Mul")
    if node is not None and node.op_type == "Mul":
        cast = operators.producer(node.inputs[0], "Cast")
        node = operators.producer(cast.inputs[0], "Gather") if cast is not None else None
    return node if node is not None and parts.is_weight(node.inputs[0]) else None


def _input(value: ir.Value | None) -> str | None:
    """The name of the graph input that a value is, whatever its integer type."""
    value = cast.inputs[0] if (cast := operators.producer(value, "Cast")) is not None else value
    return value.name if value is not None and value.is_graph_input() else None


def _reads_words(norm: ir.Node) -> bool:
    """Whether it is the norm of the embeddings."""
    found = [_lookup(value) for value in _summands(norm.inputs[0])]
    return any(node is not None and _input(node.inputs[1]) == "input_ids" for node in found)


def _fuse_embeddings_(work: _Work, norm: ir.Node) -> None:
    tables: dict[str, ir.Value] = {}
    integers = False
    for value in _summands(norm.inputs[0]):
        node = _lookup(value)
        integers = integers or (node is not None and node.outputs[0] is not value)
        role = _input(node.inputs[1]) or _positions(node.inputs[1]) if node is not None else None
        if node is None or role is None or role in tables:
            raise _Unfit("it sums something else than words, segments and positions counted from the first token")
        tables[role] = node.inputs[0]  # type: ignore[assignment]
    segments = [v for v in work.graph.inputs if v.name == "token_type_ids" and v.name in tables]
    if "positions" not in tables or len(tables) != 2 + len(segments):
        raise _Unfit("it has no table of positions")
    if len(norm.inputs) < 3:
        raise _Unfit("its norm has no bias")
    if integers:
        raise _Unfit("a table is int8")
    ids = next(v for v in work.graph.inputs if v.name == "input_ids")
    inputs: list[ir.Value | None] = [work.integers(ids), work.integers(segments[0]) if segments else None]
    inputs += [tables["input_ids"], tables["positions"], tables.get("token_type_ids"), *norm.inputs[1:3]]
    work.write_("EmbedLayerNormalization", inputs, norm.outputs[0], {"epsilon": _epsilon(norm)})


def _positions(value: ir.Value | None) -> str | None:
    """`positions` where a value is 0, 1, … to the length of the row: the front of a constant of just these numbers."""
    node = operators.producer(value, "Slice")
    numbers = operators.const_array(node.inputs[0]) if node is not None else None
    if node is None or numbers is None or not np.array_equal(numbers.reshape(-1), np.arange(numbers.size)):
        return None
    starts, ends, *rest = node.inputs[1:]
    whole = operators.const_scalar(starts) == 0 and all(operators.const_scalar(v) == 1 for v in rest)
    sized = ends is not None and any(operators.producer(v, "Shape") for v in operators.ancestors(ends))
    return "positions" if whole and sized and numbers.shape[0] == 1 else None


def _fuse_gelu_(work: _Work, node: ir.Node) -> None:
    found = gelu.gelu_around(node)
    if found is None:
        if node.op_type == "Erf":
            work.left["Gelu: it is written in a form that is not known"] += 1
        return
    x, end = found
    inside = operators.ancestors(end) - operators.ancestors(x)
    bias, alone = None, all(reader.outputs[0] in inside for reader in operators.readers(x))
    biased = operators.producer(x, "Add")
    if biased is not None and parts.is_vector(biased.inputs[1]) and alone and not x.is_graph_output():
        x, bias = biased.inputs  # type: ignore[assignment]
    kind = "FastGelu" if node.op_type == "Tanh" else "BiasGelu" if bias is not None else "Gelu"
    work.write_(kind, [x] if bias is None else [x, bias], end, {})
