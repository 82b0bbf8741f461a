"""The canonical form of a float graph, which all later steps expect: its attentions are rebuilt, and its parts are named.

Canonical form:
    opset 18; int64 inputs `input_ids`, `attention_mask` and, if the family has segments, `token_type_ids`, each [B, S] with
        dynamic axes
    linear layers as MatMul over [in, out] and Add; norms as LayerNormalization
    attention as MatMul → Mul (scale) → Add (each term of positions) → Add (mask) → Softmax → MatMul over [B, H, S, K]
    the padding mask as one shared term of 0 and `MASK_VALUE`; no NaN guards
    names from the module paths of the family: `family.part(3, "query")` is the name of a node and of its output, and the prefix
        of its weights, `….weight` [in, out] and `….bias`; nodes outside the encoder layers have the module path that the
        exporter noted, or keep their names

The outputs stay the same, which `graph.parity` verifies.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import common

from octobert.core.errors import ModelError
from octobert.core.family import EncoderFamily
from octobert.graph import operators, parts
from octobert.graph.capture.structure import (
    Attention,
    AttentionInput,
    EncoderLayer,
    FeedForward,
    Term,
)

OPSET = 18
# Added to the scores of padding. Scores of trained encoders stay within a few hundred, and exp() of a float32 is zero below
# -104, so this hides padding completely; it fits float16, and a row that is all padding stays finite.
MASK_VALUE = -1.0e4
# Where scores are as large as that, such as behind a norm with a weight of 60,000. Beside it no score of float32 overflows.
_LOWER = -1.0e38
_BOUND = "attention_mask.bound"
_SCOPES = "pkg.torch.onnx.name_scopes"


def rebuild_attention_(
    model: ir.Model, layers: list[EncoderLayer], heads: list[int], family: EncoderFamily
) -> None:
    """Rewrite every attention in canonical form, with shared masks, in place.

    Args:
        layers: the structure of `model`, from `structure.find_layers`.
        heads: number of attention heads per layer.
    """
    graph = model.graph
    mask_input = next((v for v in graph.inputs if v.name == "attention_mask"), None)
    masks = _Masks(graph, mask_input, family.windowed)
    for index, (layer, head_count) in enumerate(zip(layers, heads, strict=True)):
        attention = layer.attention
        masking = [
            t
            for t in attention.terms
            if mask_input is not None and operators.follows(t.value, mask_input)
        ]
        others = [t for t in attention.terms if t not in masking]
        if not masking or any(t.condition for t in others):
            raise ModelError(
                "an attention adds an unknown term to its scores",
                where=f"node {attention.softmax.name}",
                got="scores without a mask made of attention_mask",
                expected="scores = Q·Kᵀ × scale + terms of positions + mask(attention_mask)",
                fix="models without an attention mask are not supported",
            )
        _rebuild_one_(
            graph,
            attention,
            head_count,
            family.part(index, "attention"),
            others,
            masks.replacement(masking),
        )
    operators.clean_(model)


@dataclass
class _Masks:
    """The masks of one graph, each written once: [B, 1, 1, S], or [B, 1, S, S] with a window."""

    graph: ir.Graph
    mask: ir.Value | None
    windowed: bool
    written: dict[ir.Value | None, ir.Value] = field(default_factory=dict)

    def replacement(self, terms: list[Term]) -> ir.Value:
        """Return the value that replaces the masking terms of an attention."""
        assert self.mask is not None
        if self.windowed and (len(terms) != 1 or terms[0].condition or terms[0].shape is not None):
            raise ModelError(
                "an attention mask has an unknown form",
                where=str(terms[0].value.name),
                expected="one mask for padding and window, added to the scores",
                fix="export the model with eager attention",
            )
        key = terms[0].value if self.windowed else None
        if key not in self.written:
            name = f"bias{_nth(len(self.written))}"
            if key is None:
                chain = operators.Chain(self.graph, "attention_mask")
                self.written[key] = padding(chain, self.mask, name)
                self.graph.insert_before(self.graph[0], chain.nodes)
            else:
                ancestors = operators.ancestors(key)
                _bound_(
                    self.graph,
                    [
                        node
                        for node in self.graph
                        if node.outputs[0] in ancestors
                        and operators.follows(node.outputs[0], self.mask)
                    ],
                )
                node = key.producer()
                assert node is not None
                node.name = key.name = f"attention_mask.{name}"
                node.metadata_props.clear()
                self.written[key] = key
        return self.written[key]


def bound_masks_(graph: ir.Graph, layers: list[EncoderLayer]) -> None:
    """Raise the constants of masks that are not rebuilt to at least `MASK_VALUE`, in place."""
    for attention in (layer.attention for layer in layers):
        between = operators.ancestors(operators.input_of(attention.softmax, 0))
        between -= operators.ancestors(attention.scores.outputs[0])
        _bound_(graph, [node for node in graph if node.outputs[0] in between])


def _bound_(graph: ir.Graph, nodes: list[ir.Node]) -> None:
    """Raise the constants of a mask to at least `MASK_VALUE`."""
    for node in nodes:
        for index, constant in enumerate(node.inputs):
            array = operators.const_array(constant)
            if (
                array is not None
                and array.dtype == np.float32
                and array.size
                and array.min() < MASK_VALUE
            ):
                bounded = np.maximum(array, np.float32(MASK_VALUE))
                node.replace_input_with(index, operators.shared_initializer(graph, _BOUND, bounded))


def lower_masks_(graph: ir.Graph) -> bool:
    """Lower masks from `MASK_VALUE` below all scores, in place, and return whether there are any that were not lowered yet."""
    lowered = False
    for name, value in graph.initializers.items():
        if name.startswith(_BOUND) and MASK_VALUE in (array := operators.constant_of(value)):
            bounds = np.where(array == MASK_VALUE, np.float32(_LOWER), array)
            value.const_value, lowered = ir.tensor(bounds, name=name), True
    return lowered


def padding(chain: operators.Chain, mask: ir.Value, name: str) -> ir.Value:
    """Write 0 where the mask [B, S] has a token and `MASK_VALUE` where it has padding: [B, 1, 1, S]."""
    numbers: dict[str, operators.Numbers] = {"axes": [1, 2], "one": 1.0, "bound": MASK_VALUE}
    axes, one, bound = (
        operators.initializer(chain.graph, f"{chain.stem}.{key}", value)
        for key, value in numbers.items()
    )
    unsqueezed = chain.Unsqueeze("unsqueezed", mask, axes, dtype=mask.dtype)
    absent = chain.Sub("absent", one, chain.Cast("float", unsqueezed, to=ir.DataType.FLOAT))
    return chain.Mul(name, absent, bound)


def _rebuild_one_(
    graph: ir.Graph,
    attention: Attention,
    heads: int,
    name: str,
    terms: list[Term],
    mask: ir.Value,
) -> None:
    size = attention.width // heads
    split = operators.shared_initializer(graph, f"heads.{heads}x{size}", [0, 0, heads, size])
    context_width = attention.output.sizes[0]
    merge = operators.shared_initializer(
        graph, f"heads.merged.{context_width}", [0, 0, context_width]
    )
    scale = operators.initializer(graph, f"{name}.scale", attention.scale)
    chain = operators.Chain(graph, name)

    def heads_of(source: AttentionInput, output: str, perm: list[int]) -> ir.Value:
        if source.heads is not None:
            return source.heads
        return chain.Transpose(
            f"{output}_heads", chain.Reshape(f"{output}_split", source.linear.y, split), perm=perm
        )

    query = heads_of(attention.inputs[0], "query", [0, 2, 1, 3])
    key = heads_of(attention.inputs[1], "key", [0, 2, 3, 1])
    value = heads_of(attention.inputs[2], "value", [0, 2, 1, 3])
    scores = chain.Mul("scaled_scores", chain.MatMul("scores", query, key), scale)
    for index, term in enumerate(terms):
        placed = _placed(term, chain, _nth(index))
        scores = chain.Add(f"positioned_scores{_nth(index)}", scores, placed)
    probs = chain.Softmax("probs", chain.Add("masked_scores", scores, mask), axis=-1)
    context = chain.MatMul("context_heads", probs, value)
    merged = chain.Reshape(
        "context", chain.Transpose("context_split", context, perm=[0, 2, 1, 3]), merge
    )
    graph.insert_before(attention.output.matmul, chain.nodes)
    attention.output.matmul.replace_input_with(0, merged)


def _placed(term: Term, chain: operators.Chain, end: str) -> ir.Value:
    """Write a term of positions in the scale and shape of the scores [B, H, S, S], without Expand.

    Args:
        end: of the names of its nodes, which an attention with several terms needs.
    """
    value = term.value
    expand = operators.producer(value, "Expand")
    if expand is not None and term.shape is None:
        value = operators.input_of(expand, 0)
    if term.shape is not None:
        value = chain.Reshape(f"position_heads{end}", value, term.shape)
    if term.scale != 1.0:
        factor = operators.initializer(chain.graph, f"{chain.stem}.position_scale{end}", term.scale)
        value = chain.Mul(f"scaled_position{end}", value, factor)
    return value


def _nth(index: int) -> str:
    return f"_{index}" if index else ""


def name_(model: ir.Model, layers: list[EncoderLayer], family: EncoderFamily) -> None:
    """Rename the nodes of a graph in place, and remove the exporter's notes.

    Args:
        layers: its encoder layers, from `structure.find_layers`.

    Raises:
        ModelError: a layer has a part that the family has no name for.
    """
    graph = model.graph
    names = _Names(graph)
    for index, layer in enumerate(layers):
        _check_parts(layer, family)
        for role, linear in layer.linears.items():
            names.linear_(linear, family.part(index, role), family.module(index, role))
        for role, norm in layer.norms.items():
            names.norm_(norm, family.part(index, role), family.module(index, role))
            names.residual_(norm, family.part(index, role))
        for role, feed_forward in layer.feed_forwards.items():
            names.activation_(feed_forward, family.part(index, role))
        names.heads_(layer.attention, family.part(index, "attention"))
        if not family.whole:
            names.attention_(layer.attention, family.part(index, "attention"))
    if family.embeddings_norm:
        found = (parts.norm_of(node.outputs[0]) for node in graph)
        names.norm_(next(norm for norm in found if norm is not None), family.embeddings_norm)
    last = parts.norm_behind(layers[-1].output)
    if family.final_norm and last is not None:
        names.norm_(last, family.final_norm)
        names.residual_(last, family.final_norm)
    if family.whole:
        names.rest_(family)
    common.ClearMetadataAndDocStringPass()(model)
    operators.clean_(model)


def _check_parts(layer: EncoderLayer, family: EncoderFamily) -> None:
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
        self.value_names = {str(v.name) for v in (*graph.inputs, *graph.outputs)}

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
            self._name_initializer_(linear.add, 1, f"{stem}.bias")
        else:
            self.node_(linear.matmul, path)
        self._name_initializer_(linear.matmul, 1, f"{stem}.weight")

    def norm_(self, norm: parts.Norm, path: str, module: str | None = None) -> None:
        """Name a norm, and its weights as those of a linear layer."""
        stem = module or path
        self.node_(norm.node, path)
        if norm.mul is not None:
            self.node_(norm.mul, f"{path}.mul")
            self._name_initializer_(norm.mul, 1, f"{stem}.weight")
            self._name_initializer_(norm.node, 1, f"{stem}.bias")
            return
        self._name_initializer_(norm.node, 1, f"{stem}.weight")
        if len(norm.node.inputs) > 2 and norm.node.inputs[2] is not None:
            self._name_initializer_(norm.node, 2, f"{stem}.bias")

    def residual_(self, norm: parts.Norm, path: str) -> None:
        """Name the residual add that a norm reads, if there is one."""
        if norm.residual is not None:
            self.node_(norm.residual, f"{path}.input")

    def activation_(self, feed_forward: FeedForward, path: str) -> None:
        """Name the nodes between the two linear layers of a feed-forward: the activation, its parts, and the gate."""
        up, gate_linear = feed_forward.up, feed_forward.gate
        inside = operators.ancestors(feed_forward.down.x) - operators.ancestors(up.y)
        if gate_linear is not None:
            inside -= operators.ancestors(gate_linear.y)
        nodes = [n for n in self.graph if n.outputs[0] in inside]
        ends = {feed_forward.down.x: path}
        if feed_forward.gated:
            ends[feed_forward.down.x] = f"{path}.gated"
            gate = operators.producer(feed_forward.down.x)
            # The factor that no Split or linear layer computes is the activation.
            factors = (
                [v for v in gate.inputs if operators.producer(v, "Split", "Slice") is None]
                if gate is not None
                else []
            )
            ends |= {value: path for value in factors if value is not None and value is not up.y}
        for node in nodes:
            end = ends.get(node.outputs[0])
            self.node_(node, end or self._free(f"{path}.{node.op_type.lower()}", reserve=False))

    def heads_(self, attention: Attention, path: str) -> None:
        """Name the inputs of the products that were not rebuilt; rebuilt ones have their names already."""
        for part, source in zip(("query", "key", "value"), attention.inputs, strict=True):
            node = source.heads.producer() if source.heads is not None else None
            if node is not None:
                self.node_(node, f"{path}.{part}_heads")

    def attention_(self, attention: Attention, path: str) -> None:
        """Name the operators of an attention that was not rebuilt."""
        merged = operators.producer(attention.output.x)
        ends = {"scores": attention.scores, "probs": attention.softmax}
        for part, node in {**ends, "context_heads": attention.context, "context": merged}.items():
            if node is not None:
                self.node_(node, f"{path}.{part}")

    def rest_(self, family: EncoderFamily) -> None:
        """Name the nodes and weights outside the encoder layers."""
        for node in self.graph:
            # A decoder over the vocabulary may share this table, and exporters name it after either of the two.
            if (
                node.op_type == "Gather"
                and operators.input_of(node, 1).name == "input_ids"
                and _module_path(node, family)
            ):
                self._name_initializer_(node, 0, f"{_module_path(node, family)}.weight")
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

    def _name_initializer_(self, node: ir.Node, index: int, name: str) -> None:
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
        candidate = operators.free_name(name, self.value_names, self.graph.initializers)
        if reserve:
            self.value_names.add(candidate)
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
