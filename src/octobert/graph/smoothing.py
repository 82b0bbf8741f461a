"""Move scale between channels of a float graph, so that it computes the same.

A group is a place where channels can be divided by s on one side and multiplied by s on the other:
    norm        LayerNorm / s  →  the linear layers that read it × s; whoever else reads the norm reads it times s
    value       V / s          →  the attention output projection × s; probs·V keeps channels apart
    activation  GELU, times 1/s →  the second feed-forward layer × s
    scores      Q / s          →  K × s; Q·Kᵀ is a sum over channels of products of the two
Norm, value and scores are folded into weights; a norm costs one Mul on the residual path, an activation one Mul.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import onnx_ir as ir

from octobert.encoder import Encoder
from octobert.graph import ops, sites

UNSMOOTHED = "unsmoothed"
Kind = Literal["norm", "value", "activation", "scores"]


@dataclass(frozen=True)
class Group:
    """One place where channels can be rescaled.

    Args:
        kind: see the module.
        layer: index of the encoder layer.
        source: module path of what is divided.
        readers: module paths of the linear layers that are multiplied; for `scores`, the key projection.
        value: name of the value whose channels are divided.
    """

    kind: Kind
    layer: int
    source: str
    readers: tuple[str, ...]
    value: str


def groups(graph: ir.Graph, encoder: Encoder) -> list[Group]:
    """All groups, layer by layer."""
    nodes = {str(node.name): node for node in graph}
    found = []
    for index in range(sites.layer_count(graph, encoder)):

        def part(role: str, layer: int = index) -> str:
            return encoder.part(layer, role)

        before = encoder.part(index - 1, "ffn_norm") if index else encoder.embeddings_norm
        qkv = (part("query"), part("key"), part("value"))
        choices: list[tuple[Kind, str, tuple[str, ...]]] = [
            ("norm", before, qkv),
            ("scores", part("query"), (part("key"),)),
            ("value", part("value"), (part("attention_output"),)),
            ("norm", part("attention_norm"), (part("ffn_up"),)),
            ("activation", part("activation"), (part("ffn_down"),)),
        ]
        for kind, source, readers in choices:
            reads = source if kind == "scores" else str(sites.linear_node(nodes, readers[0]).inputs[0].name)
            if kind == "norm" and nodes[source].outputs[0].name != reads:
                # ELECTRA's embeddings may be narrower than its layers: a projection lies between, and nothing can be folded.
                continue
            found.append(Group(kind, index, source, readers, reads))
    return found


def weight_of(graph: ir.Graph, module: str) -> np.ndarray:
    """The weight [in, out] of a linear layer."""
    node = sites.linear_node({str(n.name): n for n in graph}, module)
    return node.inputs[1].const_value.numpy()  # type: ignore[union-attr]


def scale_(model: ir.Model, group: Group, scales: np.ndarray) -> None:
    """Divide the channels of a group by `scales` [C], and multiply on the other side.

    Works in place; the model computes the same, to float32 rounding.
    """
    graph = model.graph
    nodes = {str(node.name): node for node in graph}
    up, down = scales.astype(np.float64), 1.0 / scales.astype(np.float64)
    if group.kind == "norm":
        _divide_norm_(graph, nodes, group, down)
    elif group.kind == "activation":
        _divide_activation_(graph, nodes[group.source], down)
    else:
        _scale_outputs_(nodes, group.source, down)
    if group.kind == "scores":
        _scale_outputs_(nodes, group.readers[0], up)
        return
    for reader in group.readers:
        _edit_(sites.linear_node(nodes, reader), 1, lambda weight: weight * up[:, None])


def _divide_norm_(graph: ir.Graph, nodes: dict[str, ir.Node], group: Group, down: np.ndarray) -> None:
    norm = nodes[group.source]
    inside = {sites.linear_node(nodes, reader) for reader in group.readers}
    output = norm.outputs[0]
    for index in range(1, len(norm.inputs)):
        _edit_(norm, index, lambda weight: weight * down)
    others = [(node, index) for node, index in output.uses() if node not in inside]
    back = ops.initializer(graph, f"{group.source}.smoothing", (1.0 / down).astype(np.float32))
    mul = ops.make_node("Mul", [output, back], f"{group.source}.{UNSMOOTHED}")
    graph.insert_after(norm, [mul])
    for node, index in others:
        node.replace_input_with(index, mul.outputs[0])
    if output.is_graph_output():
        # The output keeps its name and its values; what the linear layers read takes another name.
        name, position = str(output.name), list(graph.outputs).index(output)
        output.name, mul.outputs[0].name = f"{name}.smoothed", name
        graph.outputs[position] = mul.outputs[0]


def _divide_activation_(graph: ir.Graph, node: ir.Node, down: np.ndarray) -> None:
    """One Mul behind the activation; it takes the activation's name, which is where readers and planners look."""
    output, name = node.outputs[0], str(node.name)
    scale = ops.initializer(graph, f"{name}.smoothing", down.astype(np.float32))
    readers = list(output.uses())
    node.name = output.name = f"{name}.{UNSMOOTHED}"
    mul = ops.make_node("Mul", [output, scale], name)
    graph.insert_after(node, [mul])
    for reader, index in readers:
        reader.replace_input_with(index, mul.outputs[0])


def _scale_outputs_(nodes: dict[str, ir.Node], module: str, factor: np.ndarray) -> None:
    matmul = sites.linear_node(nodes, module)
    _edit_(matmul, 1, lambda weight: weight * factor[None, :])
    add = nodes[module]
    if add is not matmul:
        _edit_(add, 1, lambda bias: bias * factor)


def _edit_(node: ir.Node, index: int, change: Callable[[np.ndarray], np.ndarray]) -> None:
    """Replace a constant by a changed one of the same name; products are taken in float64 and rounded once."""
    value = node.inputs[index]
    array = change(value.const_value.numpy().astype(np.float64)).astype(np.float32)  # type: ignore[union-attr]
    value.const_value = ir.tensor(np.ascontiguousarray(array), name=value.name)  # type: ignore[union-attr]
