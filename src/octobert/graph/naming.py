"""Give every node, value and weight of a canonical graph the name of the module it came from.

After this, `encoder.part(3, "query")` is the name of a node, of its output value, and the stem of its weights
(`….weight` as [in, out], `….bias`). Everything outside the layers takes the module path that the exporter noted, or keeps
its old name where there is none.
"""

from __future__ import annotations

import ast

import onnx_ir as ir
from onnx_ir.passes import common

from octobert.encoder import Encoder
from octobert.graph import ops, structure

_SCOPES = "pkg.torch.onnx.name_scopes"


def name_(model: ir.Model, layers: list[structure.Layer], encoder: Encoder) -> None:
    """Rename the whole graph in place, and drop the exporter's notes."""
    graph = model.graph
    named = _Names(graph)
    for index, layer in enumerate(layers):
        attention = layer.attention
        for role, linear in (
            ("query", attention.query),
            ("key", attention.key),
            ("value", attention.value),
            ("attention_output", attention.output),
            ("ffn_up", layer.ffn_up),
            ("ffn_down", layer.ffn_down),
        ):
            named.linear_(linear, encoder.part(index, role))
        for role, add, norm in (
            ("attention_norm", layer.attention_add, layer.attention_norm),
            ("ffn_norm", layer.ffn_add, layer.ffn_norm),
        ):
            named.node_(add, f"{encoder.part(index, role)}.input")
            named.norm_(norm, encoder.part(index, role))
        named.activation_(layer, encoder.part(index, "activation"))
    first_norm = next(node for node in graph if node.op_type == "LayerNormalization")
    named.norm_(first_norm, encoder.embeddings_norm)
    named.rest_(encoder)
    common.ClearMetadataAndDocStringPass()(model)
    ops.clean_(model)


class _Names:
    """Renames parts of one graph; remembers which nodes and initializers are done."""

    def __init__(self, graph: ir.Graph) -> None:
        self.graph = graph
        self.done: set[ir.Node] = set()
        outputs = {v.name for v in graph.outputs}
        self.taken = outputs | {v.name for v in graph.inputs}

    def node_(self, node: ir.Node, name: str) -> None:
        node.name = name
        output = node.outputs[0]
        if not output.is_graph_output():
            output.name = self._free(name)
        self.done.add(node)

    def linear_(self, linear: structure.Linear, path: str) -> None:
        if linear.add is not None:
            self.node_(linear.matmul, f"{path}.matmul")
            self.node_(linear.add, path)
            self._own_(linear.add, 1, f"{path}.bias")
        else:
            self.node_(linear.matmul, path)
        self._own_(linear.matmul, 1, f"{path}.weight")

    def norm_(self, norm: ir.Node, path: str) -> None:
        self.node_(norm, path)
        self._own_(norm, 1, f"{path}.weight")
        if len(norm.inputs) > 2 and norm.inputs[2] is not None:
            self._own_(norm, 2, f"{path}.bias")

    def activation_(self, layer: structure.Layer, path: str) -> None:
        inside = ops.ancestors(layer.ffn_down.x) - ops.ancestors(layer.ffn_up.y)
        nodes = [n for n in self.graph if n.outputs[0] in inside]
        for node in nodes:
            last = node.outputs[0] is layer.ffn_down.x
            self.node_(node, path if last else self._free(f"{path}.{node.op_type.lower()}", reserve=False))

    def rest_(self, encoder: Encoder) -> None:
        for linear in structure.all_linears(self.graph):
            path = _module_path(linear.matmul, encoder) or _stem(linear, encoder)
            if linear.matmul not in self.done and path:
                self.linear_(linear, path)
        for node in self.graph:
            path = _module_path(node, encoder)
            if node not in self.done and (path or not node.name):
                stem = path or str(node.outputs[0].name)
                self.node_(node, self._free(f"{stem}.{node.op_type.lower()}", reserve=False))
        for name, value in list(self.graph.initializers.items()):
            if name.startswith(f"{encoder.prefix}."):
                value.name = self._free(encoder.strip_prefix(name))

    def _own_(self, node: ir.Node, index: int, name: str) -> None:
        """Give a node its own copy of an initializer (exporters merge equal ones), under its own name."""
        value = node.inputs[index]
        if value.name == name:
            return
        if len(value.uses()) == 1 and not value.is_graph_output():
            value.name = self._free(name)
        else:
            node.replace_input_with(index, ops.initializer(self.graph, self._free(name), value.const_value.numpy()))

    def _free(self, name: str, *, reserve: bool = True) -> str:
        candidate, count = name, 0
        while candidate in self.taken or candidate in self.graph.initializers:
            count += 1
            candidate = f"{name}_{count}"
        if reserve:
            self.taken.add(candidate)
        return candidate


def _module_path(node: ir.Node, encoder: Encoder) -> str:
    """The innermost module that the exporter noted for a node, without the base model's prefix; empty if there is none."""
    noted = node.metadata_props.get(_SCOPES)
    if not noted:
        return ""
    scopes = [s for s in ast.literal_eval(noted)[:-1] if s and not s.startswith("_")]
    return encoder.strip_prefix(scopes[-1]) if scopes else ""


def _stem(linear: structure.Linear, encoder: Encoder) -> str:
    """The module path of a linear layer from the name of its bias (`classifier.bias`), which exporters keep."""
    name = str(linear.bias.name) if linear.bias is not None else ""
    return encoder.strip_prefix(name.removesuffix(".bias")) if name.endswith(".bias") else ""
