"""Cut attention heads and neurons of feed-forwards out of a canonical float graph.

A *unit* is a head or a neuron. It is removed from the linear layers that compute it (columns) and from the output projection
of its sublayer (rows). The result is canonical too, with fewer heads or neurons in some layers. A sublayer without units is
gone; its bias stays on the residual path as a constant, until `fold_` adds it to the bias of a norm or linear layer before it.

    structures, left = find(graph, family)
    cut_(model, family, {structures[0].module: np.array([0, 3])})     # two heads of the first attention stay
    outputs_(model, {structures[0].module: (weight, bias)})           # its output projection is replaced
    fold_(model)                                                      # last: constants of gone sublayers

Layers that share weights get weights of their own where they are cut.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from octobert.core.errors import ModelError
from octobert.core.family import EncoderFamily, part_of
from octobert.core.pruning import LeftWhole, Sublayer
from octobert.graph import operators, parts, sites
from octobert.graph.capture import shapes

# Ends the name of the Add that is left of a sublayer without units.
CONSTANT = ".constant"
# Operators of an attention that work on any number of heads, whatever constants they read.
_ANY_HEADS = (
    "MatMul",
    "Add",
    "Mul",
    "Div",
    "Softmax",
    "Transpose",
    "Slice",
    "Squeeze",
    "Unsqueeze",
    "Neg",
    "Concat",
)
# Operators of a feed-forward that work on any number of neurons, if their constants are single numbers.
_ANY_NEURONS = (
    "Add",
    "Sub",
    "Mul",
    "Div",
    "Pow",
    "Neg",
    "Abs",
    "Sign",
    "Erf",
    "Tanh",
    "Exp",
    "Relu",
    "Sigmoid",
    "Clip",
    "Gelu",
)
# Q, K and V in one linear layer.
_FUSED = 3


@dataclass(frozen=True)
class _Structure:
    """The places of the units of a sublayer.

    Args:
        sources: linear layers that compute units, each with its channels per unit and the number of blocks of all units that
            stand beside each other (3 in a fused projection of Q, K and V; 2 in a gated feed-forward).
        reshapes: Reshapes that split heads, and their target with -1 for the number of heads; and the one that merges them, and
            its target for one head.
        terms: operators that add a value per head to the scores, and the input with that value.
        projection: the output projection.
        add: the residual add.
    """

    sublayer: Sublayer
    sources: tuple[tuple[parts.Linear, int, int], ...]
    reshapes: tuple[tuple[ir.Node, tuple[int, ...]], ...]
    terms: tuple[tuple[ir.Node, int], ...]
    projection: parts.Linear
    add: ir.Node


def find(graph: ir.Graph, family: EncoderFamily) -> tuple[list[Sublayer], list[LeftWhole]]:
    """Return the sublayers whose units can be cut, in the order of computation, and those that cannot, with the reason."""
    structures, left = _find(graph, family)
    position = {node: index for index, node in enumerate(graph)}
    return [
        structure.sublayer
        for structure in sorted(structures.values(), key=lambda structure: position[structure.add])
    ], left


def cut_(model: ir.Model, family: EncoderFamily, remaining: Mapping[str, np.ndarray]) -> None:
    """Remove units in place.

    Args:
        model: a canonical float graph.
        remaining: module of a sublayer (`Sublayer.module`) → the indices of its units that stay; none: the sublayer is gone,
            and only its bias is left. Sublayers that are not named stay whole.

    Raises:
        ModelError: a sublayer is not in the graph or cannot be cut, or has no unit of that index.
    """
    structures, left = _find(model.graph, family)
    changed = False
    for module, units in remaining.items():
        structure = structures.get(module)
        if structure is None:
            reason = next((whole.reason for whole in left if whole.module == module), None)
            if reason is not None:
                raise ModelError("a sublayer cannot be cut", where=module, got=reason)
            raise ModelError(
                "the graph has no such sublayer",
                got=module,
                expected=", ".join(list(structures)[:3]) or "none can be cut",
            )
        indices = np.unique(np.asarray(units, dtype=np.int64))
        count = structure.sublayer.units
        if len(indices) and not 0 <= indices[0] <= indices[-1] < count:
            raise ModelError(
                "a sublayer has no such unit",
                where=module,
                got=f"{indices[0]} to {indices[-1]}",
                expected=f"0 to {count - 1}",
            )
        if len(indices) == count:
            continue
        changed = True
        if len(indices):
            _narrow_(model.graph, structure, indices)
        else:
            _remove_(model.graph, structure)
    if changed:
        operators.clean_(model)
        # Shapes of before the cut would contradict those of the weights.
        for value in (value for node in model.graph for value in node.outputs):
            value.shape = None
        shapes.annotate_(model)


def split_(model: ir.Model, family: EncoderFamily, neurons: Mapping[str, np.ndarray]) -> None:
    """Let neurons of feed-forwards be computed apart, in place: a feed-forward is a sum over its neurons.

    What is left keeps its sizes and names, with zeros in the weights of these neurons.

    Args:
        model: a canonical float graph.
        neurons: module of a feed-forward (`Sublayer.module`) → the indices of its neurons that are computed apart.
    """
    structures, _ = _find(model.graph, family)
    for module, indices in neurons.items():
        _split_(model.graph, structures[module], np.asarray(indices))
    operators.clean_(model)
    shapes.annotate_(model)


def _split_(graph: ir.Graph, structure: _Structure, neurons: np.ndarray) -> None:
    projection, apart = structure.projection, parts.APART
    linears = [linear for linear, _, _ in structure.sources]
    inside = {projection.matmul, *_between([linear.y for linear in linears], projection)}
    inside |= {node for linear in linears for node in (linear.matmul, linear.add) if node}
    twins: dict[ir.Value | None, ir.Value] = {}
    for linear, width, blocks in structure.sources:
        columns = _channels(neurons, width, blocks, structure.sublayer.units)
        twins |= _parted_(graph, linear.matmul, (slice(None), columns))
        twins |= _parted_(graph, linear.add, (columns,)) if linear.add else {}
    twins |= _parted_(graph, projection.matmul, (neurons,))
    uses = list(projection.y.uses())
    for node in [node for node in graph if node in inside]:
        copies = [ir.Value(name=f"{v.name}{apart}", type=v.type) for v in node.outputs]
        inputs, name = [twins.get(value, value) for value in node.inputs], f"{node.name}{apart}"
        twin = ir.node(node.op_type, inputs, dict(node.attributes), outputs=copies, name=name)
        graph.insert_after(node, twin)
        twins |= zip(node.outputs, copies, strict=True)
    name = f"{structure.sublayer.module}{parts.WITH_APART}"
    total = operators.make_node("Add", [projection.y, twins[projection.matmul.outputs[0]]], name)
    operators.insert_behind_(graph, (projection.add or projection.matmul), [total], uses)


def _parted_(graph: ir.Graph, node: ir.Node, place: Any) -> dict[ir.Value | None, ir.Value]:
    """Set a part of the constant that a node reads to zero; return the constant → that part as another one."""
    constant = operators.constant_of(node.inputs[1])
    rest = constant.copy()
    rest[place] = 0
    name = operators.input_of(node, 1).name
    part = operators.initializer(graph, f"{name}{parts.APART}", constant[place])
    _set_(graph, node, 1, rest, "weight" if rest.ndim == 2 else "bias")
    # Weights that others share are another value now.
    return {node.inputs[1]: part}


def outputs_(model: ir.Model, constants: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> None:
    """Replace output projections in place, after `cut_` and before `fold_`.

    Args:
        model: a canonical float graph.
        constants: module of a sublayer → weight [kept units × width, out] and bias [out]. Of a sublayer that is gone the weight
            has no rows.

    Raises:
        ModelError: the graph has no such sublayer, or the weight has another shape.
    """
    graph = model.graph
    nodes = operators.nodes_of(graph)
    for module, (weight, bias) in constants.items():
        gone = nodes.get(f"{module}{CONSTANT}")
        if gone is not None:
            _set_(graph, gone, 1, bias, "bias")
            continue
        linear = parts.linear_at(sites.linear_node(nodes, module))
        if linear.sizes != weight.shape:
            got, expected = (" × ".join(map(str, sizes)) for sizes in (weight.shape, linear.sizes))
            raise ModelError(
                "the weight of an output projection has another shape",
                where=module,
                got=got,
                expected=expected,
            )
        _set_(graph, linear.matmul, 1, weight, "weight")
        _set_bias_(graph, linear, bias)


def fold_(model: ir.Model) -> int:
    """Add the constants that are left of gone sublayers to the bias of the norm or linear layer before them, in place.

    Returns:
        The number of constants that still need an Add of their own, because something else reads the value before them.
    """
    graph, left = model.graph, 0
    for node in [node for node in graph if str(node.name).endswith(CONSTANT)]:
        skip = operators.input_of(node, 0)
        if not _absorb_(graph, skip, node, operators.constant_of(node.inputs[1])):
            left += 1
            continue
        norm = parts.norm_behind(node.outputs[0])
        ir.convenience.replace_all_uses_with(node.outputs[0], skip, replace_graph_outputs=True)
        graph.remove(node, safe=True)
        add = skip.producer()
        # A residual add has the name of the norm that reads it. In pre-norm models that norm may be gone.
        if norm is not None and add is not None and str(add.name).endswith(".input"):
            add.name = f"{norm.node.name}.input"
            skip.name = add.name
    operators.clean_(model)
    return left


def _find(graph: ir.Graph, family: EncoderFamily) -> tuple[dict[str, _Structure], list[LeftWhole]]:
    nodes = operators.nodes_of(graph)
    structures: dict[str, _Structure] = {}
    left: list[LeftWhole] = []
    for index in range(sites.layer_count(graph, family)):
        for role, module in sites.layer_linears(nodes, family, index).items():
            if part_of(role) not in ("attention_output", "ffn_down"):
                continue
            structure = _structure(nodes, family, index, role)
            if isinstance(structure, str):
                left.append(LeftWhole(module=module, reason=structure))
            else:
                structures[module] = structure
    return structures, left


def _structure(
    nodes: dict[str, ir.Node], family: EncoderFamily, index: int, role: str
) -> _Structure | str:
    """Return the structure of a sublayer, or the reason why it cannot be cut."""
    module = family.part(index, role)
    projection = parts.linear_at(sites.linear_node(nodes, module))
    add = operators.only_reader(projection.y, "Add")
    if add is None:
        return "its output is read by more than a residual add"
    linears = sites.layer_linears(nodes, family, index)
    if part_of(role) == "ffn_down":
        up = role.replace("ffn_down", "ffn_up")
        ups = [
            parts.linear_at(sites.linear_node(nodes, linears[part]))
            for part in (up, f"{up}.gate")
            if part in linears
        ]
        return _feed_forward(index, module, ups, projection, add)
    roles = ("qkv",) if "qkv" in linears else ("query", "key", "value")
    sources = {part: parts.linear_at(sites.linear_node(nodes, linears[part])) for part in roles}
    return _attention(
        nodes, index, module, family.part(index, "attention"), sources, projection, add
    )


def _feed_forward(
    index: int, module: str, ups: list[parts.Linear], projection: parts.Linear, add: ir.Node
) -> _Structure | str:
    neurons = projection.sizes[0]
    blocks = ups[0].sizes[1] // neurons
    region = _between([up.y for up in ups], projection)
    if isinstance(region, str):
        return region
    for node in region:
        splits = node.op_type == "Split" and blocks == 2 and len(node.inputs) == 1
        constants = [
            array for value in node.inputs if (array := operators.const_array(value)) is not None
        ]
        if not splits and (
            node.op_type not in _ANY_NEURONS or any(array.size != 1 for array in constants)
        ):
            return f"between its two linear layers is an operator that may not keep neurons apart: {node.op_type}"
    sublayer = Sublayer(layer=index, kind="ffn", module=module, units=neurons, width=1)
    sources = tuple((up, 1, blocks) for up in ups)
    return _Structure(sublayer, sources, (), (), projection, add)


def _attention(
    nodes: dict[str, ir.Node],
    index: int,
    module: str,
    attention: str,
    linears: dict[str, parts.Linear],
    projection: parts.Linear,
    add: ir.Node,
) -> _Structure | str:
    shape = nodes[f"{attention}.context_heads"].outputs[0].shape
    heads, width = (shape[1], shape[3]) if shape is not None and len(shape) == 4 else (None, None)
    if not isinstance(heads, int) or not isinstance(width, int):
        return "the number of its heads is unknown"
    region = _between([linear.y for linear in linears.values()], projection)
    if isinstance(region, str):
        return region
    sources: list[tuple[parts.Linear, int, int]] = []
    reshapes: dict[ir.Node, tuple[int, ...]] = {nodes[f"{attention}.context"]: (0, 0, width)}
    for part, linear in linears.items():
        fused = part == "qkv"
        known = nodes.get(f"{attention}.{part}_split")
        split = _split(linear, 5, _FUSED) if fused else known or _split(linear, 4, heads)
        if split is None:
            return "its channels are split into heads in an unknown way"
        blocks = _FUSED if fused else 1
        channels = linear.sizes[1] // (heads * blocks)
        sources.append((linear, channels, blocks))
        reshapes[split] = (0, 0, *((_FUSED,) if fused else ()), -1, channels)
    terms = []
    for node in region:
        if node in reshapes:
            continue
        if node.op_type not in _ANY_HEADS:
            return "terms of positions are computed from its queries and keys, head by head"
        for place, value in enumerate(node.inputs):
            layout = value.shape if value is not None and value.producer() not in region else None
            if (
                layout is not None
                and operators.const_array(value) is None
                and len(layout) == 4
                and layout[1] == heads > 1
            ):
                terms.append((node, place))
    sublayer = Sublayer(layer=index, kind="attention", module=module, units=heads, width=width)
    return _Structure(
        sublayer, tuple(sources), tuple(reshapes.items()), tuple(terms), projection, add
    )


def _split(linear: parts.Linear, rank: int, count: int) -> ir.Node | None:
    """Return the Reshape of Q, K or V to [B, S, H, K], or of all three to [B, S, 3, H, K]; None if it has another form.

    Heads of Q that share one of K and V are of another form.
    """
    split = operators.only_reader(linear.y, "Reshape")
    shape = split.outputs[0].shape if split is not None else None
    return split if shape is not None and len(shape) == rank and shape[2] == count else None


def _between(starts: list[ir.Value], projection: parts.Linear) -> list[ir.Node] | str:
    """Return the nodes from the linear layers that compute units to the output projection, or why they cannot be changed."""
    inside = operators.ancestors(projection.x)
    region: dict[ir.Node, None] = {}
    stack = list(starts)
    while stack:
        value = stack.pop()
        for node in operators.readers(value):
            if node is projection.matmul or node in region:
                continue
            if not any(output in inside for output in node.outputs):
                return "something outside of it reads its heads or neurons"
            region[node] = None
            stack.extend(node.outputs)
        if value.is_graph_output():
            return "its heads or neurons are an output of the model"
    return list(region)


def _narrow_(graph: ir.Graph, structure: _Structure, units: np.ndarray) -> None:
    for linear, width, blocks in structure.sources:
        columns = _channels(units, width, blocks, structure.sublayer.units)
        _set_(graph, linear.matmul, 1, operators.constant_of(linear.weight)[:, columns], "weight")
        if linear.add is not None:
            _set_(graph, linear.add, 1, operators.constant_of(linear.bias)[columns], "bias")
    for node, any_heads in structure.reshapes:
        target = [len(units) if size == -1 else size for size in any_heads]
        if -1 not in any_heads:
            target[-1] *= len(units)
        name = f"heads.{'x'.join(map(str, target[2:]))}"
        node.replace_input_with(1, operators.shared_initializer(graph, name, target))
        node.attributes.pop("allowzero", None)
    for node, place in structure.terms:
        value = operators.input_of(node, place)
        indices = operators.initializer(graph, f"{node.name}.kept", units)
        gather = operators.make_node("Gather", [value, indices], f"{node.name}.term", {"axis": 1})
        graph.insert_before(node, gather)
        node.replace_input_with(place, gather.outputs[0])
    projection = structure.projection
    rows = channels_of(units, structure.sublayer.width)
    weight = operators.constant_of(projection.weight)[rows]
    _set_(graph, projection.matmul, 1, weight, "weight")


def _remove_(graph: ir.Graph, structure: _Structure) -> None:
    """Leave a constant of a sublayer: its bias, or zero."""
    projection, add, module = structure.projection, structure.add, structure.sublayer.module
    skip = next(value for value in add.inputs if value is not projection.y)
    zero = np.zeros(projection.sizes[1], dtype=np.float32)
    bias = zero if projection.bias is None else operators.constant_of(projection.bias)
    constant = operators.initializer(graph, f"{module}{CONSTANT}.bias", bias)
    add.replace_input_with(0, skip)
    add.replace_input_with(1, constant)
    add.name = add.outputs[0].name = f"{module}{CONSTANT}"


def channels_of(units: np.ndarray, width: int) -> np.ndarray:
    """Return the channels of units of a width."""
    return np.asarray(units[:, None] * width + np.arange(width)).reshape(-1)


def _channels(units: np.ndarray, width: int, blocks: int, count: int) -> np.ndarray:
    """Return the indices of the channels of units, in `blocks` blocks of `count` units of `width` channels.

    Example:
        >>> _channels(np.array([1]), 2, 2, 3).tolist()
        [2, 3, 8, 9]
    """
    starts = np.arange(blocks)[:, None] * count * width
    return np.asarray(starts + channels_of(units, width)).reshape(-1)


def _absorb_(graph: ir.Graph, value: ir.Value, reader: ir.Node, constant: np.ndarray) -> bool:
    """Add a constant [D] to a value [B, S, D] that only `reader` reads, in the bias behind it; return whether that works."""
    node = value.producer()
    if node is None or operators.only_reader(value) is not reader:
        return False
    if node.op_type == "LayerNormalization":
        bias = operators.const_array(operators.inputs_of(node, 3)[2])
        summed = constant if bias is None else bias + constant
        if len(node.inputs) < 3:
            node.resize_inputs(3)
        _set_(graph, node, 2, summed, "bias")
        return True
    if node.op_type == "MatMul" and parts.is_weight(node.inputs[1]):
        _set_bias_(graph, parts.Linear(node, None), constant)
        return True
    if node.op_type != "Add":
        return False
    if parts.is_vector(node.inputs[1]):
        _set_(graph, node, 1, operators.constant_of(node.inputs[1]) + constant, "bias")
        return True
    return any(_absorb_(graph, operators.input_of(node, place), node, constant) for place in (0, 1))


def _set_(graph: ir.Graph, node: ir.Node, place: int, array: np.ndarray, what: str) -> None:
    """Replace the weight or bias that a node reads; other nodes that read it keep the old one."""
    array = np.ascontiguousarray(array, dtype=np.float32)
    old = node.inputs[place]
    if old is not None and old.is_initializer() and len(old.uses()) == 1:
        old.const_value, old.shape = ir.tensor(array, name=old.name), ir.Shape(array.shape)
    else:
        node.replace_input_with(
            place,
            operators.initializer(graph, f"{str(node.name).removesuffix('.matmul')}.{what}", array),
        )


def _set_bias_(graph: ir.Graph, linear: parts.Linear, bias: np.ndarray) -> None:
    """Set the bias of a linear layer; one without a bias gets an Add, which takes over its name."""
    if linear.add is not None:
        _set_(graph, linear.add, 1, bias, "bias")
        return
    matmul, name = linear.matmul, str(linear.matmul.name)
    uses = list(linear.y.uses())
    matmul.name = linear.y.name = f"{name}.matmul"
    constant = operators.initializer(
        graph, f"{name}.bias", np.ascontiguousarray(bias, dtype=np.float32)
    )
    add = operators.make_node("Add", [linear.y, constant], name, shape=linear.y.shape)
    operators.insert_behind_(graph, matmul, [add], uses)
