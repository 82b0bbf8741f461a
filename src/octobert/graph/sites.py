"""The sites of a canonical graph: all places where a method can put 8-bit integers.

Roles (`plan.ROLES`) of inputs of an operator:
    linear.input, linear.weight        linear layers of an encoder layer
    scores.query, scores.key           the inputs of Q·Kᵀ
    context.probs, context.value       the inputs of probs·V
    residual.branch, residual.skip     the inputs of a residual add
    head.input, head.weight            linear layers outside the encoder layers (pooler, classifier, projections); the part is
                                       `decoder` where the outputs are the vocabulary, else `head`
    embedding.weight                   the word embedding table
Roles of outputs of an operator, for placements that quantize outputs; all readers then read the quantized value:
    linear.output                      after the bias
    scores.output                      Q·Kᵀ, before scale and mask
    probs.output                       after the softmax
    context.output                     after the heads are merged
    activation.output                  after GELU or ReLU, and after the gate if there is one
    residual.output                    the sum; its part and layer are those of the norm that reads it
    norm.output                        after the norm
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import onnx_ir as ir

from octobert.core.errors import ModelError
from octobert.core.family import LINEAR_PARTS, NORM_PARTS, EncoderFamily, part_of
from octobert.core.plan import OUTPUT, Site
from octobert.graph import operators, parts

# Role → the name of its node in an attention, and the input or output of it.
_ATTENTION = (
    ("scores.query", "scores", 0),
    ("scores.key", "scores", 1),
    ("scores.output", "scores", OUTPUT),
    ("probs.output", "probs", OUTPUT),
    ("context.probs", "context_heads", 0),
    ("context.value", "context_heads", 1),
    ("context.output", "context", OUTPUT),
)


def layer_count(graph: ir.Graph, family: EncoderFamily) -> int:
    """Return the number of encoder layers in a graph: the highest index in the names of its nodes, plus one."""
    pattern = re.compile(re.escape(family.layer).replace(r"\{\}", r"(\d+)") + r"\.")
    matches = [match for node in graph if (match := pattern.match(str(node.name)))]
    return max((int(match[1]) + 1 for match in matches), default=0)


def linear_node(nodes: dict[str, ir.Node], path: str) -> ir.Node:
    """Return the MatMul of a linear layer by its module path.

    Raises:
        ModelError: the graph has no such node.
    """
    return nodes.get(f"{path}.matmul") or node_named(nodes, path)


def node_named(nodes: dict[str, ir.Node], name: str) -> ir.Node:
    """Return a node by its name.

    Raises:
        ModelError: the graph has no such node.
    """
    if name not in nodes:
        raise ModelError(f'the graph has no part "{name}"', fix="capture the model again")
    return nodes[name]


def find_sites(graph: ir.Graph, family: EncoderFamily) -> tuple[Site, ...]:
    """Return all sites of a canonical graph, layer by layer.

    Raises:
        ModelError: the graph lacks a part of the family.
    """
    nodes = operators.nodes_of(graph)
    sites: list[Site] = []
    if family.embeddings_norm:
        norm = node_named(nodes, family.embeddings_norm)
        sites.append(_site(norm, OUTPUT, "norm.output", "embeddings", family.embeddings_norm, None))
    count = layer_count(graph, family)
    # One summand of a residual add is the output of one of these linear layers and norms; the other is the skip connection.
    ends = (*LINEAR_PARTS, "branch_norm")
    branches = {
        f"{path}{end}"
        for index in range(count)
        for path in _present(nodes, family, index, ends).values()
        for end in ("", parts.RESCALED, parts.WITH_APART)
    }
    for index in range(count):
        sites.extend(_layer_sites(nodes, family, index, branches))
    if family.final_norm:
        sites.extend(_norm_sites(nodes, family.final_norm, "final_norm", None, branches))
    if not family.whole:
        return tuple(sites)
    inside = {site.node for site in sites}
    lookups = [node for node in graph if looks_words_up(node)]
    words = {len(operators.constant_of(node.inputs[0])) for node in lookups}
    for linear in parts.all_linears(graph):
        name = str(linear.matmul.name)
        if name not in inside and not parts.is_apart(linear.matmul):
            module = name.removesuffix(".matmul")
            part = "decoder" if linear.sizes[1] in words else "head"
            sites.append(_site(linear.matmul, 0, "head.input", part, module, None))
            sites.append(_site(linear.matmul, 1, "head.weight", part, module, None))
    for node in lookups:
        module = str(operators.input_of(node, 0).name).removesuffix(".weight")
        sites.append(_site(node, 0, "embedding.weight", "embeddings", module, None))
    return tuple(sites)


def looks_words_up(node: ir.Node) -> bool:
    """Return whether a node reads the table of word embeddings."""
    if node.op_type != "Gather" or operators.const_array(node.inputs[0]) is None:
        return False
    ids = operators.input_of(node, 1)
    return ids.is_graph_input() and ids.name == "input_ids"


def layer_linears(nodes: dict[str, ir.Node], family: EncoderFamily, index: int) -> dict[str, str]:
    """Return the linear layers of an encoder layer: role → module path."""
    return _present(nodes, family, index, LINEAR_PARTS)


def _present(
    nodes: dict[str, ir.Node], family: EncoderFamily, index: int, kinds: tuple[str, ...]
) -> dict[str, str]:
    """Return the parts of an encoder layer that are in the graph: role → module path."""
    paths = {role: family.part(index, role) for role in family.roles(*kinds)}
    return {role: path for role, path in paths.items() if path in nodes}


def activation_node(
    nodes: dict[str, ir.Node], family: EncoderFamily, index: int, role: str
) -> ir.Node | None:
    """Return the node whose output the second linear layer of a feed-forward reads, or None without such a feed-forward."""
    path = family.part(index, role)
    return nodes.get(f"{path}.gated") or nodes.get(path)


def _layer_sites(
    nodes: dict[str, ir.Node], family: EncoderFamily, index: int, branches: set[str]
) -> Iterator[Site]:
    for role, path in layer_linears(nodes, family, index).items():
        part, matmul = part_of(role), linear_node(nodes, path)
        yield _site(matmul, 0, "linear.input", part, path, index)
        yield _site(matmul, 1, "linear.weight", part, path, index)
        yield _site(nodes[path], OUTPUT, "linear.output", part, path, index)
    attention = family.part(index, "attention")
    for role, name, place in _ATTENTION:
        yield _site(
            node_named(nodes, f"{attention}.{name}"), place, role, "attention", attention, index
        )
    for role in family.roles("activation"):
        activation = activation_node(nodes, family, index, role)
        if activation is not None:
            yield _site(
                activation,
                OUTPUT,
                "activation.output",
                "activation",
                family.part(index, role),
                index,
            )
    for role, path in _present(nodes, family, index, NORM_PARTS).items():
        yield from _norm_sites(nodes, path, part_of(role), index, branches)


def _norm_sites(
    nodes: dict[str, ir.Node], path: str, part: str, index: int | None, branches: set[str]
) -> Iterator[Site]:
    """Yield the sites of a norm and of the residual add before it, if there is one."""
    add = nodes.get(f"{path}.input")
    if add is not None:
        branch = 0 if operators.input_of(add, 0).name in branches else 1
        yield _site(add, branch, "residual.branch", part, str(add.name), index)
        yield _site(add, 1 - branch, "residual.skip", part, str(add.name), index)
        yield _site(add, OUTPUT, "residual.output", part, str(add.name), index)
    yield _site(node_named(nodes, path), OUTPUT, "norm.output", part, path, index)


def _site(node: ir.Node, index: int, role: str, part: str, module: str, layer: int | None) -> Site:
    """Return the site of an input of a node, or of its output."""
    value = node.outputs[0] if index == OUTPUT else operators.input_of(node, index)
    return Site(
        role=role,
        part=part,
        module=module,
        layer=layer,
        node=str(node.name),
        input=index,
        value=str(value.name),
    )
