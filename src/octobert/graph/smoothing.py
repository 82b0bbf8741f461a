"""Move scale between channels of a float graph, shift channels, and divide tokens, without changing its outputs.

A group is a place where channels can be divided by s on one side and multiplied by s on the other:
    norm        norm / s  →  the linear layers that read it × s; all other readers of the norm read it × s
    value       V / s     →  attention output projection × s; probs·V keeps channels apart
    activation  input of the second feed-forward layer / s  →  that layer × s
    scores      Q / s     →  K × s; Q·Kᵀ is a sum over channels of products of the two
Norms and V can also be shifted by z before they are divided; the biases of the linear layers that read them get z W. What the
other readers of a norm read gets z back. probs·V keeps a shift, because probabilities of a token add up to 1.

Norm, value and scores fold into weights. A norm costs one Mul, and an Add if it is shifted, if a residual path reads it; an
activation always one Mul.
Sources: Xiao et al. 2022, arXiv:2211.10438; Wei et al. 2023, arXiv:2304.09145 (shifts).
An activation's tokens can be divided as well, each by its largest value; the output of its linear layer is multiplied again.
Layers that share weights are scaled together, as one group of several places. Some places cannot be scaled and are skipped:
Q and K that are rotated or read by something else, and linear layers that read no norm.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import onnx_ir as ir

from octobert.core.family import NORM_PARTS, EncoderFamily, part_of
from octobert.graph import operators, parts, sites

UNSMOOTHED = "unsmoothed"
Kind = Literal["norm", "value", "activation", "scores"]
Nodes = dict[str, ir.Node]
# The kinds between the linear layers of an attention.
_BETWEEN: tuple[Kind, ...] = ("scores", "value")


@dataclass(frozen=True)
class Place:
    """A place in one encoder layer.

    Args:
        layer: index of the encoder layer.
        source: module path of the part whose output is divided.
        readers: module paths of the linear layers whose weights are multiplied; for `scores`, the key projection.
        value: name of the value whose channels are divided.
    """

    layer: int
    source: str
    readers: tuple[str, ...]
    value: str


@dataclass(frozen=True)
class Group:
    """One place, or several that share their weights; their channels are scaled by the same factors."""

    kind: Kind
    places: tuple[Place, ...]

    @property
    def source(self) -> str:
        return self.places[0].source

    @property
    def readers(self) -> tuple[str, ...]:
        return self.places[0].readers

    @property
    def values(self) -> tuple[str, ...]:
        """The values whose channels are divided."""
        return tuple(place.value for place in self.places)


@dataclass(frozen=True)
class Skipped:
    """A place that cannot be scaled, and why."""

    kind: Kind
    source: str
    reason: str


def groups(graph: ir.Graph, family: EncoderFamily) -> list[Group]:
    """Return all groups, layer by layer."""
    return find(graph, family)[0]


def find(graph: ir.Graph, family: EncoderFamily) -> tuple[list[Group], list[Skipped]]:
    """Return all groups, layer by layer, and the places that cannot be scaled."""
    nodes = operators.nodes_of(graph)
    skipped: list[Skipped] = []
    by_constants: dict[tuple[Kind, frozenset[ir.Value]], list[Place]] = {}
    for index in range(sites.layer_count(graph, family)):
        for kind, place in _choices(nodes, family, index):
            if isinstance(place, Skipped):
                skipped.append(place)
            else:
                by_constants.setdefault(
                    (kind, frozenset(v for v, _ in _constants(nodes, kind, place))), []
                ).append(place)
    groups = []
    for (kind, constants), places in by_constants.items():
        inside = {node for place in places for _, node in _constants(nodes, kind, place)}
        if all(node in inside for constant in constants for node in operators.readers(constant)):
            groups.append(Group(kind, tuple(places)))
        else:
            reason = "layers that cannot be scaled the same way share its weights"
            skipped += [Skipped(kind, place.source, reason) for place in places]
    return groups, skipped


def _choices(
    nodes: Nodes, family: EncoderFamily, index: int
) -> Iterator[tuple[Kind, Place | Skipped]]:
    """Yield the places of one encoder layer."""
    linears = sites.layer_linears(nodes, family, index)
    norms = [family.embeddings_norm]
    norms += [
        family.part(i, role)
        for i in {max(index - 1, 0), index}
        for role in family.roles(*NORM_PARTS)
    ]
    normed = {str(nodes[path].outputs[0].name): path for path in norms if path in nodes}
    readers: dict[str, list[str]] = {}
    for role, path in linears.items():
        if part_of(role) not in ("attention_output", "ffn_down"):
            x = operators.input_of(sites.linear_node(nodes, path), 0)
            readers.setdefault(str(x.name), []).append(path)
    for value, paths in readers.items():
        source = normed.get(value)
        place = (
            Place(index, source, tuple(paths), value)
            if source
            else Skipped("norm", paths[0], "it reads no norm")
        )
        yield "norm", place
    yield from _attention_choices(nodes, linears, family.part(index, "attention"), index)
    for role in family.roles("activation"):
        node = sites.activation_node(nodes, family, index, role)
        if node is not None:
            down = linears[role.replace("activation", "ffn_down")]
            yield "activation", Place(index, str(node.name), (down,), str(node.outputs[0].name))


def _attention_choices(
    nodes: Nodes, linears: dict[str, str], attention: str, index: int
) -> Iterator[tuple[Kind, Place | Skipped]]:
    """Yield the places between the linear layers of an attention."""
    scores, context = nodes[f"{attention}.scores"], nodes[f"{attention}.context_heads"]
    if "query" not in linears:
        for kind in _BETWEEN:
            yield kind, Skipped(kind, attention, "Q, K and V are one linear layer")
        return
    query, key, v, output = (
        linears[role] for role in ("query", "key", "value", "attention_output")
    )
    alone = _leads(nodes[query], scores) and _leads(nodes[key], scores)
    yield (
        "scores",
        Place(index, query, (key,), query)
        if alone
        else Skipped("scores", query, "more than Q·Kᵀ reads Q and K"),
    )
    projection = sites.linear_node(nodes, output)
    alone = _leads(nodes[v], context) and _leads(context, projection)
    read = str(operators.input_of(projection, 0).name)
    yield (
        "value",
        Place(index, v, (output,), read)
        if alone
        else Skipped("value", v, "more than probs·V reads V"),
    )


def _leads(node: ir.Node, target: ir.Node) -> bool:
    """Return whether the output of a node is read by `target` only, through nothing but Reshape and Transpose."""
    while True:
        reader = operators.only_reader(node.outputs[0])
        if reader is None or reader is target or reader.op_type not in ("Reshape", "Transpose"):
            return reader is target
        node = reader


def _constants(nodes: Nodes, kind: Kind, place: Place) -> list[tuple[ir.Value, ir.Node]]:
    """Return the constants that scaling a place changes, each with the node that reads it there."""
    constants = [] if kind == "activation" else _constants_of(nodes, place.source)
    for reader in place.readers:
        constants += (
            _constants_of(nodes, reader) if kind == "scores" else _constants_of(nodes, reader)[:1]
        )
    return constants


def _constants_of(nodes: Nodes, path: str) -> list[tuple[ir.Value, ir.Node]]:
    """Return weight and bias of a linear layer or a norm, each with the node that reads it."""
    last, first = nodes[path], nodes.get(f"{path}.matmul") or nodes.get(f"{path}.mul")
    both = [
        (node.inputs[i], node)
        for node in (first, last)
        if node is not None
        for i in range(1, len(node.inputs))
    ]
    return [(value, node) for value, node in both if value is not None]


def weight_of(graph: ir.Graph, module: str) -> np.ndarray:
    """Return the weight [in, out] of a linear layer."""
    node = sites.linear_node(operators.nodes_of(graph), module)
    return operators.constant_of(node.inputs[1])


def can_shift(graph: ir.Graph, group: Group) -> bool:
    """Return whether a group's channels can be shifted: its source and all its readers have a bias."""
    nodes = operators.nodes_of(graph)
    paths = [path for place in group.places for path in (place.source, *place.readers)]
    return group.kind in ("norm", "value") and all(len(_constants_of(nodes, p)) == 2 for p in paths)


def scale_(
    model: ir.Model, group: Group, scales: np.ndarray, shifts: np.ndarray | None = None
) -> None:
    """Make (x - shift) / scale of the channels of a group, and undo it on the other side, in place.

    The outputs of the model stay the same, except for float32 rounding.

    Args:
        scales: [C].
        shifts: [C], where `can_shift`.
    """
    graph = model.graph
    nodes = operators.nodes_of(graph)
    up = scales.astype(np.float64)
    zero = np.zeros(len(up)) if shifts is None else shifts.astype(np.float64)

    def edit_(paths: Sequence[str], part: int, change: Callable[[np.ndarray], np.ndarray]) -> None:
        """Change the weight (part 0) or the bias (1) of modules; what several of them share is changed once."""
        readers: dict[ir.Value, list[ir.Node]] = {}
        for path in paths:
            for value, node in _constants_of(nodes, path)[part : part + 1]:
                readers.setdefault(value, []).append(node)
        for value, inside in readers.items():
            # Computed in float64 and rounded once.
            array = change(operators.constant_of(value).astype(np.float64)).astype(np.float32)
            operators.set_constant_(graph, value, inside, array)

    readers = [reader for place in group.places for reader in place.readers]
    if group.kind == "scores":
        edit_(readers, 0, lambda weight: weight * up)
        edit_(readers, 1, lambda bias: bias * up)
    else:
        if shifts is not None:
            # The same reader in all places: they share its weight, and may share its bias.
            for same in zip(*(place.readers for place in group.places), strict=True):
                weight = operators.constant_of(sites.linear_node(nodes, same[0]).inputs[1])
                added = zero @ weight
                edit_(same, 1, functools.partial(np.add, added))
        edit_(readers, 0, lambda weight: weight * up[:, None])
    for place in group.places:
        if group.kind == "norm":
            _restore_norm_(graph, nodes, place, up, shifts)
        if group.kind == "activation":
            _divide_activation_(graph, nodes[place.source], 1.0 / up)
    if group.kind != "activation":
        sources = [place.source for place in group.places]
        edit_(sources, 0, lambda weight: weight / up)
        edit_(sources, 1, lambda bias: (bias - zero) / up)


def _restore_norm_(
    graph: ir.Graph, nodes: Nodes, place: Place, up: np.ndarray, shifts: np.ndarray | None
) -> None:
    """Multiply the norm by the scales, and add the shifts, for all readers outside the group."""
    norm = nodes[place.source]
    inside = {sites.linear_node(nodes, reader) for reader in place.readers}
    output = norm.outputs[0]
    others = [(node, index) for node, index in output.uses() if node not in inside]
    if not others and not output.is_graph_output():
        return
    chain = operators.Chain(graph, place.source)

    def constant(name: str, array: np.ndarray) -> ir.Value:
        return operators.initializer(graph, f"{place.source}.{name}", array.astype(np.float32))

    # The last one has the name that tells a restored norm.
    part = UNSMOOTHED if shifts is None else "unscaled"
    value = chain.Mul(part, output, constant("smoothing", up))
    if shifts is not None:
        value = chain.Add(UNSMOOTHED, value, constant("shift", shifts))
    operators.insert_behind_(graph, norm, chain.nodes, others)
    if output.is_graph_output():
        # The graph output keeps its name and values; the scaled norm gets another name.
        name, position = str(output.name), list(graph.outputs).index(output)
        output.name, value.name = f"{name}.smoothed", name
        graph.outputs[position] = value


def _divide_activation_(graph: ir.Graph, node: ir.Node, down: np.ndarray) -> None:
    """Write a Mul after the activation; it takes over the name, by which readers and planners refer to the value."""
    output, name = node.outputs[0], str(node.name)
    scale = operators.initializer(graph, f"{name}.smoothing", down.astype(np.float32))
    readers = list(output.uses())
    node.name = output.name = f"{name}.{UNSMOOTHED}"
    mul = operators.make_node("Mul", [output, scale], name)
    operators.insert_behind_(graph, node, [mul], readers)


def divide_tokens_(model: ir.Model, place: Place, floor: float, *, signed: bool) -> None:
    """Divide each token of an activation by its largest value, and multiply what its linear layer makes of it, in place.

    The linear layer keeps its name and has no bias any more: the bias is added behind the multiplication.

    Args:
        place: of a group of the kind `activation`.
        floor: tokens are divided by no less.
        signed: divide by the largest magnitude.
    """
    graph, module = model.graph, place.readers[0]
    linear = parts.linear_at(sites.linear_node(operators.nodes_of(graph), module))
    chain = operators.Chain(graph, place.value)
    x = chain.Abs("magnitudes", linear.x) if signed else linear.x
    axis = operators.shared_initializer(graph, "axis.last", [-1])
    least = operators.initializer(graph, f"{place.value}.floor", floor)
    divisor = chain.Max("divisor", chain.ReduceMax("largest", x, axis, keepdims=1), least)
    divided = chain.Div("per_token", linear.x, divisor)
    graph.insert_before(linear.matmul, chain.nodes)
    linear.matmul.replace_input_with(0, divided)
    product, uses, last = (
        linear.matmul.outputs[0],
        list(linear.y.uses()),
        linear.add or linear.matmul,
    )
    behind = operators.Chain(graph, f"{module}{parts.RESCALED}")
    rescaled = behind.Mul("product" if linear.add else "", product, divisor)
    if linear.add is not None:
        behind.Add("", rescaled, linear.bias)
    operators.insert_behind_(graph, last, behind.nodes, uses)
    if linear.add is not None:
        graph.remove(linear.add, safe=True)
    linear.matmul.name = product.name = module
