"""Let neurons of feed-forwards be computed apart: a feed-forward is a sum over its neurons.

    modules = separable(graph, family)
    split_(model, family, {modules[0]: np.array([3, 17])})     # two neurons of the first feed-forward in a branch

What is left keeps its sizes and names, with zeros in the weights of these neurons. Layers that share weights get weights of
their own where they are split.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from octobert.core.family import EncoderFamily, part_of
from octobert.graph import operators, parts, sites
from octobert.graph.capture import shapes

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


@dataclass(frozen=True)
class _FeedForward:
    """A feed-forward whose neurons can be computed apart.

    Args:
        module: module path of its second linear layer.
        ups: the linear layers that compute neurons.
        blocks: blocks of all neurons that stand beside each other in each of these: 2 where one has gate and value.
        between: the nodes from there to the second layer.
        down: the second layer.
    """

    module: str
    ups: tuple[parts.Linear, ...]
    blocks: int
    between: tuple[ir.Node, ...]
    down: parts.Linear


def separable(graph: ir.Graph, family: EncoderFamily) -> list[str]:
    """Return the module paths of the second layers of all feed-forwards that can be split, in the order of the layers."""
    return list(_find(graph, family))


def split_(model: ir.Model, family: EncoderFamily, neurons: Mapping[str, np.ndarray]) -> None:
    """Let neurons of feed-forwards be computed apart, in place.

    Args:
        model: a canonical float graph.
        neurons: one of `separable` → the indices of its neurons that are computed apart.
    """
    found = _find(model.graph, family)
    for module, indices in neurons.items():
        _split_(model.graph, found[module], np.asarray(indices))
    operators.clean_(model)
    if family.whole:
        shapes.annotate_(model)


def _find(graph: ir.Graph, family: EncoderFamily) -> dict[str, _FeedForward]:
    nodes, found = operators.nodes_of(graph), dict[str, _FeedForward]()
    for index in range(sites.layer_count(graph, family)):
        linears = {
            role: parts.linear_at(sites.linear_node(nodes, module))
            for role, module in sites.layer_linears(nodes, family, index).items()
        }
        for role in (role for role in linears if part_of(role) == "ffn_down"):
            up, module = role.replace("ffn_down", "ffn_up"), family.part(index, role)
            ups = tuple(linears[part] for part in (up, f"{up}.gate") if part in linears)
            down = linears[role]
            between = _between([linear.y for linear in ups], down)
            blocks = ups[0].sizes[1] // down.sizes[0]
            if between is not None and all(_keeps_apart(node, blocks) for node in between):
                found[module] = _FeedForward(module, ups, blocks, tuple(between), down)
    return found


def _between(starts: list[ir.Value], down: parts.Linear) -> list[ir.Node] | None:
    """The nodes from the layers that compute neurons to the one that reads them; None where something else reads neurons."""
    inside = operators.ancestors(down.x)
    region: dict[ir.Node, None] = {}
    stack = list(starts)
    while stack:
        value = stack.pop()
        for node in operators.readers(value):
            if node is down.matmul or node in region:
                continue
            if not any(output in inside for output in node.outputs):
                return None
            region[node] = None
            stack.extend(node.outputs)
        if value.is_graph_output():
            return None
    return list(region)


def _keeps_apart(node: ir.Node, blocks: int) -> bool:
    """Whether an operator computes each neuron alone, or parts gate and value."""
    if node.op_type == "Split" and blocks == 2 and len(node.inputs) == 1:
        return True
    constants = (operators.const_array(value) for value in node.inputs)
    return node.op_type in _ANY_NEURONS and all(c is None or c.size == 1 for c in constants)


def _split_(graph: ir.Graph, block: _FeedForward, neurons: np.ndarray) -> None:
    down, apart = block.down, parts.APART
    inside = {down.matmul, *block.between}
    inside |= {node for linear in block.ups for node in (linear.matmul, linear.add) if node}
    columns = (np.arange(block.blocks)[:, None] * down.sizes[0] + neurons).reshape(-1)
    twins: dict[ir.Value | None, ir.Value] = {}
    for linear in block.ups:
        twins |= _parted_(graph, linear.matmul, (slice(None), columns))
        twins |= _parted_(graph, linear.add, (columns,)) if linear.add else {}
    twins |= _parted_(graph, down.matmul, (neurons,))
    uses = list(down.y.uses())
    for node in [node for node in graph if node in inside]:
        copies = [ir.Value(name=f"{v.name}{apart}", type=v.type) for v in node.outputs]
        inputs, name = [twins.get(value, value) for value in node.inputs], f"{node.name}{apart}"
        twin = ir.node(node.op_type, inputs, dict(node.attributes), outputs=copies, name=name)
        graph.insert_after(node, twin)
        twins |= zip(node.outputs, copies, strict=True)
    name = f"{block.module}{parts.WITH_APART}"
    total = operators.make_node("Add", [down.y, twins[down.matmul.outputs[0]]], name)
    operators.insert_behind_(graph, (down.add or down.matmul), [total], uses)


def _parted_(graph: ir.Graph, node: ir.Node, place: Any) -> dict[ir.Value | None, ir.Value]:
    """Set a part of the constant that a node reads to zero; return the constant → that part as another one."""
    old = operators.input_of(node, 1)
    constant = operators.constant_of(old)
    rest = constant.copy()
    rest[place] = 0
    part = operators.initializer(graph, f"{old.name}{parts.APART}", constant[place])
    if len(old.uses()) == 1:
        old.const_value = ir.tensor(rest, name=old.name)
    else:
        what = "weight" if rest.ndim == 2 else "bias"
        name = f"{str(node.name).removesuffix('.matmul')}.{what}"
        node.replace_input_with(1, operators.initializer(graph, name, rest))
    # Weights that others share are another value now.
    return {node.inputs[1]: part}
