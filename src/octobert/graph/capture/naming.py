"""Name the nodes, values and weights of a canonical graph by the modules that they come from.

`family.part(3, "query")` is then the name of a node and of its output, and the prefix of its weights: `….weight` [in, out] and
`….bias`. Nodes outside the encoder layers get the module path that the exporter noted, or keep their names.
"""

from __future__ import annotations

import ast

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import common

from octobert.core.errors import ModelError
from octobert.core.family import EncoderFamily
from octobert.graph import operators, parts
from octobert.graph.capture import structure
from octobert.graph.capture.attention import Attention

_SCOPES = "pkg.torch.onnx.name_scopes"


def name_(model: ir.Model, layers: list[structure.EncoderLayer], family: EncoderFamily) -> None:
    """Rename the nodes of a graph in place, and remove the exporter's notes.

    Args:
        layers: its encoder layers, from `structure.find_layers`.

    Raises:
        ModelError: a layer has a part that the family has no name for.
    """
    graph = model.graph
    named = _Names(graph)
    for index, layer in enumerate(layers):
        _check_parts(layer, family)
        for role, linear in layer.linears.items():
            named.linear_(linear, family.part(index, role), family.module(index, role))
        for role, norm in layer.norms.items():
            named.norm_(norm, family.part(index, role), family.module(index, role))
            named.residual_(norm, family.part(index, role))
        for role, feed_forward in layer.feed_forwards.items():
            named.activation_(feed_forward, family.part(index, role))
        named.heads_(layer.attention, family.part(index, "attention"))
    first = next(first for node in graph if (first := parts.norm_of(node.outputs[0])) is not None)
    named.norm_(first, family.embeddings_norm)
    last = parts.norm_behind(layers[-1].output)
    if family.final_norm and last is not None:
        named.norm_(last, family.final_norm)
        named.residual_(last, family.final_norm)
    named.rest_(family)
    common.ClearMetadataAndDocStringPass()(model)
    operators.clean_(model)


def _check_parts(layer: structure.EncoderLayer, family: EncoderFamily) -> None:
    missing = [
        role
        for role in (*layer.linears, *layer.norms, *layer.feed_forwards)
        if role not in family.parts
    ]
    if missing:
        raise ModelError(
            f"an encoder layer has a part that {family.model_types[0]} models do not have",
            where=f"node {layer.attention.softmax.name}",
            got=", ".join(missing),
            expected=", ".join(family.parts),
            fix="put the config.json of the model beside it, which names its family",
        )


class _Names:
    """Renames the parts of one graph, and records which nodes and initializers have been named."""

    def __init__(self, graph: ir.Graph) -> None:
        self.graph = graph
        self.done: set[ir.Node] = set()
        # Name → the initializer that has it.
        self.owned: dict[str, ir.Value] = {}
        self.taken = {str(v.name) for v in (*graph.inputs, *graph.outputs)}

    def node_(self, node: ir.Node, name: str) -> None:
        node.name = name
        output = node.outputs[0]
        if not output.is_graph_output():
            output.name = self._free(name)
        self.done.add(node)

    def linear_(self, linear: parts.Linear, path: str, module: str | None = None) -> None:
        """Name a linear layer; its weights are named by `module`, which layers with shared weights have in common."""
        stem = module or path
        if linear.add is not None:
            self.node_(linear.matmul, f"{path}.matmul")
            self.node_(linear.add, path)
            self._own_(linear.add, 1, f"{stem}.bias")
        else:
            self.node_(linear.matmul, path)
        self._own_(linear.matmul, 1, f"{stem}.weight")

    def norm_(self, norm: parts.Norm, path: str, module: str | None = None) -> None:
        """Name a norm, and its weights as those of a linear layer."""
        stem = module or path
        self.node_(norm.node, path)
        if norm.mul is not None:
            self.node_(norm.mul, f"{path}.mul")
            self._own_(norm.mul, 1, f"{stem}.weight")
            self._own_(norm.node, 1, f"{stem}.bias")
            return
        self._own_(norm.node, 1, f"{stem}.weight")
        if len(norm.node.inputs) > 2 and norm.node.inputs[2] is not None:
            self._own_(norm.node, 2, f"{stem}.bias")

    def residual_(self, norm: parts.Norm, path: str) -> None:
        """Name the residual add that a norm reads, if there is one."""
        if norm.residual is not None:
            self.node_(norm.residual, f"{path}.input")

    def activation_(self, feed_forward: structure.FeedForward, path: str) -> None:
        """Name the nodes between the two linear layers of a feed-forward: the activation, its parts, and the gate."""
        inside = operators.ancestors(feed_forward.down.x) - operators.ancestors(feed_forward.up.y)
        nodes = [n for n in self.graph if n.outputs[0] in inside]
        ends = {feed_forward.down.x: path}
        if feed_forward.gated:
            ends[feed_forward.down.x] = f"{path}.gated"
            gate = operators.producer(feed_forward.down.x)
            # The factor that is not the output of the Split is the activation.
            factors = (
                [v for v in gate.inputs if operators.producer(v, "Split", "Slice") is None]
                if gate is not None
                else []
            )
            ends |= {value: path for value in factors if value is not None}
        for node in nodes:
            end = ends.get(node.outputs[0])
            self.node_(node, end or self._free(f"{path}.{node.op_type.lower()}", reserve=False))

    def heads_(self, attention: Attention, path: str) -> None:
        """Name the inputs of the products that were not rebuilt; rebuilt ones have their names already."""
        for part, source in zip(("query", "key", "value"), attention.inputs, strict=True):
            node = source.heads.producer() if source.heads is not None else None
            if node is not None:
                self.node_(node, f"{path}.{part}_heads")

    def rest_(self, family: EncoderFamily) -> None:
        """Name the nodes and weights outside the encoder layers."""
        for node in self.graph:
            # A decoder over the vocabulary may share this table, and exporters name it after either of the two.
            if (
                node.op_type == "Gather"
                and operators.input_of(node, 1).name == "input_ids"
                and _module_path(node, family)
            ):
                self._own_(node, 0, f"{_module_path(node, family)}.weight")
        for linear in parts.all_linears(self.graph):
            path = _module_path(linear.matmul, family) or _stem(linear, family)
            if linear.matmul not in self.done and path:
                self.linear_(linear, path)
        for node in self.graph:
            path = _module_path(node, family)
            if node not in self.done and (path or not node.name):
                stem = path or str(node.outputs[0].name)
                self.node_(node, self._free(f"{stem}.{node.op_type.lower()}", reserve=False))
        for name, value in list(self.graph.initializers.items()):
            if name.startswith(f"{family.prefix}."):
                value.name = self._free(family.strip_prefix(name))

    def _own_(self, node: ir.Node, index: int, name: str) -> None:
        """Give a part its own initializer under its own name; exporters merge equal initializers of different parts.

        Parts of the same name are one module that is applied several times, and keep sharing the initializer.
        """
        value = operators.input_of(node, index)
        if name in self.owned and np.array_equal(
            operators.constant_of(self.owned[name]), operators.constant_of(value)
        ):
            node.replace_input_with(index, self.owned[name])
            return
        if value.name != name:
            if len(value.uses()) == 1 and not value.is_graph_output():
                value.name = self._free(name)
            else:
                value = operators.initializer(
                    self.graph, self._free(name), operators.constant_of(value)
                )
                node.replace_input_with(index, value)
        self.owned[name] = value

    def _free(self, name: str, *, reserve: bool = True) -> str:
        candidate = operators.free_name(name, self.taken, self.graph.initializers)
        if reserve:
            self.taken.add(candidate)
        return candidate


def _module_path(node: ir.Node, family: EncoderFamily) -> str:
    """Return the innermost module that the exporter noted for a node, without the base model's prefix, or an empty string."""
    noted = node.metadata_props.get(_SCOPES)
    if not noted:
        return ""
    scopes = [s for s in ast.literal_eval(noted)[:-1] if s and not s.startswith("_")]
    return family.strip_prefix(scopes[-1]) if scopes else ""


def _stem(linear: parts.Linear, family: EncoderFamily) -> str:
    """Return the module path of a linear layer by the name of its bias (`classifier.bias`), which exporters keep."""
    name = str(linear.bias.name) if linear.bias is not None else ""
    return family.strip_prefix(name.removesuffix(".bias")) if name.endswith(".bias") else ""
