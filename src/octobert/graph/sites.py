"""The sites of a canonical graph: every place where a method could put 8-bit integers.

Roles (`plan.ROLES`) where a value enters an operator:
    linear.input, linear.weight        the six linear layers of an encoder layer
    scores.query, scores.key           the inputs of Q·Kᵀ
    context.probs, context.value       the inputs of probs·V
    residual.branch, residual.skip     the inputs of the two residual adds
    head.input, head.weight            linear layers outside the encoder layers (pooler, classifier, projections)
    embedding.weight                   the word embedding table
Where it leaves one, for placements that quantize outputs; all its readers read it quantized:
    linear.output                      after the bias
    scores.output                      Q·Kᵀ before scale and mask
    probs.output                       after the softmax
    context.output                     after the heads are merged
    activation.output                  after GELU
    residual.output                    the sum, before LayerNorm
    norm.output                        after LayerNorm
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from octobert.encoder import Encoder
from octobert.errors import ModelError
from octobert.graph import ops, structure
from octobert.plan import OUTPUT, Site

_LINEARS = ("query", "key", "value", "attention_output", "ffn_up", "ffn_down")


def layer_count(graph: ir.Graph, encoder: Encoder) -> int:
    """How many encoder layers the graph has."""
    names = {node.name for node in graph}
    count = 0
    while f"{encoder.part(count, 'attention')}.scores" in names:
        count += 1
    return count


def linear_node(nodes: dict[str, ir.Node], path: str) -> ir.Node:
    """The MatMul of a linear layer, by its module path.

    Raises:
        ModelError: the graph has no such part.
    """
    return nodes.get(f"{path}.matmul") or node_named(nodes, path)


def node_named(nodes: dict[str, ir.Node], name: str) -> ir.Node:
    """A node by its name.

    Raises:
        ModelError: the graph has no such part.
    """
    if name not in nodes:
        raise ModelError(f'the graph has no part "{name}"', fix="capture the model again")
    return nodes[name]


def find_sites(graph: ir.Graph, encoder: Encoder) -> tuple[Site, ...]:
    """All sites in graph order of their modules.

    Raises:
        ModelError: a part that the family names is not in the graph.
    """
    nodes = {str(node.name): node for node in graph}
    norm = node_named(nodes, encoder.embeddings_norm)
    sites: list[Site] = [_output(norm, "norm.output", "embeddings", encoder.embeddings_norm, None)]
    for index in range(layer_count(graph, encoder)):
        sites.extend(_layer_sites(nodes, encoder, index))
    inside = {site.node for site in sites}
    for linear in structure.all_linears(graph):
        name = str(linear.matmul.name)
        if name not in inside:
            module = name.removesuffix(".matmul")
            sites.append(_site(linear.matmul, 0, "head.input", "head", module, None))
            sites.append(_site(linear.matmul, 1, "head.weight", "head", module, None))
    for node in graph:
        is_lookup = node.op_type == "Gather" and ops.const_array(node.inputs[0]) is not None
        if is_lookup and node.inputs[1].is_graph_input() and node.inputs[1].name == "input_ids":
            module = str(node.inputs[0].name).removesuffix(".weight")
            sites.append(_site(node, 0, "embedding.weight", "embeddings", module, None))
    return tuple(sites)


def _layer_sites(nodes: dict[str, ir.Node], encoder: Encoder, index: int) -> Iterator[Site]:
    for part in _LINEARS:
        path = encoder.part(index, part)
        matmul = linear_node(nodes, path)
        yield _site(matmul, 0, "linear.input", part, path, index)
        yield _site(matmul, 1, "linear.weight", part, path, index)
        yield _output(node_named(nodes, path), "linear.output", part, path, index)
    attention = encoder.part(index, "attention")
    scores, context = node_named(nodes, f"{attention}.scores"), node_named(nodes, f"{attention}.context_heads")
    yield _site(scores, 0, "scores.query", "attention", attention, index)
    yield _site(scores, 1, "scores.key", "attention", attention, index)
    yield _output(scores, "scores.output", "attention", attention, index)
    yield _output(node_named(nodes, f"{attention}.probs"), "probs.output", "attention", attention, index)
    yield _site(context, 0, "context.probs", "attention", attention, index)
    yield _site(context, 1, "context.value", "attention", attention, index)
    yield _output(node_named(nodes, f"{attention}.context"), "context.output", "attention", attention, index)
    activation = encoder.part(index, "activation")
    yield _output(node_named(nodes, activation), "activation.output", "activation", activation, index)
    for part, branch in (("attention_norm", "attention_output"), ("ffn_norm", "ffn_down")):
        path = encoder.part(index, part)
        add = node_named(nodes, f"{path}.input")
        first_is_branch = add.inputs[0].name == encoder.part(index, branch)
        yield _site(add, 0 if first_is_branch else 1, "residual.branch", part, str(add.name), index)
        yield _site(add, 1 if first_is_branch else 0, "residual.skip", part, str(add.name), index)
        yield _output(add, "residual.output", part, str(add.name), index)
        yield _output(node_named(nodes, path), "norm.output", part, path, index)


def _site(node: ir.Node, index: int, role: str, part: str, module: str, layer: int | None) -> Site:
    value = str(node.inputs[index].name)
    return Site(role=role, part=part, module=module, layer=layer, node=str(node.name), input=index, value=value)


def _output(node: ir.Node, role: str, part: str, module: str, layer: int | None) -> Site:
    value = str(node.outputs[0].name)
    return Site(role=role, part=part, module=module, layer=layer, node=str(node.name), input=OUTPUT, value=value)
