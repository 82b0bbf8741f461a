"""The sites of a canonical graph: every place where a method could put 8-bit integers.

Roles:
    linear.input, linear.weight        the six linear layers of an encoder layer
    scores.query, scores.key           the inputs of Q·Kᵀ
    context.probs, context.value       the inputs of probs·V
    residual.branch, residual.skip     the inputs of the two residual adds
    head.input, head.weight            linear layers outside the encoder layers (pooler, classifier, projections)
    embedding.weight                   the word embedding table
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from octobert.encoder import Encoder
from octobert.errors import ModelError
from octobert.graph import ops, structure
from octobert.plan import Site

ROLES = (
    "linear.input",
    "linear.weight",
    "scores.query",
    "scores.key",
    "context.probs",
    "context.value",
    "residual.branch",
    "residual.skip",
    "head.input",
    "head.weight",
    "embedding.weight",
)
_LINEARS = ("query", "key", "value", "attention_output", "ffn_up", "ffn_down")


def layer_count(graph: ir.Graph, encoder: Encoder) -> int:
    """How many encoder layers the graph has."""
    names = {node.name for node in graph}
    count = 0
    while f"{encoder.part(count, 'attention')}.scores" in names:
        count += 1
    return count


def find_sites(graph: ir.Graph, encoder: Encoder) -> tuple[Site, ...]:
    """All sites in graph order of their modules.

    Raises:
        ModelError: a part that the family names is not in the graph.
    """
    nodes = {str(node.name): node for node in graph}
    sites: list[Site] = []
    for index in range(layer_count(graph, encoder)):
        sites.extend(_layer_sites(nodes, encoder, index))
    inside = {site.node for site in sites}
    for linear in structure.all_linears(graph):
        name = str(linear.matmul.name)
        if name not in inside:
            module = name.removesuffix(".matmul")
            sites.append(_site(linear.matmul, 0, "head.input", module, None))
            sites.append(_site(linear.matmul, 1, "head.weight", module, None))
    for node in graph:
        is_lookup = node.op_type == "Gather" and ops.const_array(node.inputs[0]) is not None
        if is_lookup and node.inputs[1].is_graph_input() and node.inputs[1].name == "input_ids":
            sites.append(_site(node, 0, "embedding.weight", str(node.inputs[0].name).removesuffix(".weight"), None))
    return tuple(sites)


def _layer_sites(nodes: dict[str, ir.Node], encoder: Encoder, index: int) -> Iterator[Site]:
    def node(name: str) -> ir.Node:
        if name not in nodes:
            raise ModelError(f'the graph has no part "{name}"', fix="capture the model again")
        return nodes[name]

    for role in _LINEARS:
        path = encoder.part(index, role)
        matmul = nodes.get(f"{path}.matmul") or node(path)
        yield _site(matmul, 0, "linear.input", path, index)
        yield _site(matmul, 1, "linear.weight", path, index)
    attention = encoder.part(index, "attention")
    scores, context = node(f"{attention}.scores"), node(f"{attention}.context_heads")
    yield _site(scores, 0, "scores.query", attention, index)
    yield _site(scores, 1, "scores.key", attention, index)
    yield _site(context, 0, "context.probs", attention, index)
    yield _site(context, 1, "context.value", attention, index)
    for role, branch in (("attention_norm", "attention_output"), ("ffn_norm", "ffn_down")):
        add = node(f"{encoder.part(index, role)}.input")
        first_is_branch = add.inputs[0].name == encoder.part(index, branch)
        yield _site(add, 0 if first_is_branch else 1, "residual.branch", str(add.name), index)
        yield _site(add, 1 if first_is_branch else 0, "residual.skip", str(add.name), index)


def _site(node: ir.Node, index: int, role: str, module: str, layer: int | None) -> Site:
    value = str(node.inputs[index].name)
    return Site(role=role, module=module, layer=layer, node=str(node.name), input=index, value=value)
