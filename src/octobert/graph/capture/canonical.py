"""Bring the float ONNX graph of a supported encoder into the canonical form that all later steps expect.

Canonical form:
    opset 18; int64 inputs `input_ids`, `attention_mask` and, if the family has segments, `token_type_ids`, each [B, S] with
        dynamic axes
    linear layers as MatMul over [in, out] and Add; norms as LayerNormalization
    attention as MatMul → Mul (scale) → Add (each term of positions) → Add (mask) → Softmax → MatMul over [B, H, S, K]
    the padding mask as one shared term of 0 and `MASK_VALUE`; no NaN guards
    names from the module paths of the family (`naming`)

The outputs stay the same, which `graph.parity` verifies.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import common

from octobert.core.errors import ModelError
from octobert.core.family import EncoderFamily
from octobert.core.onnx_files import INPUTS, input_named
from octobert.graph import operators, parts
from octobert.graph.capture import folding, lowering, structure
from octobert.graph.capture.attention import Attention, AttentionInput, Term

OPSET = 18
# Added to the scores of padding. Scores of trained encoders stay within a few hundred, and exp() of a float32 is zero below
# -104, so this hides padding completely; it fits float16, and a row that is all padding stays finite.
MASK_VALUE = -1.0e4
_QUANTIZED = (
    *operators.PAIR,
    "DynamicQuantizeLinear",
    "MatMulInteger",
    "QLinearMatMul",
    "MatMulNBits",
)
INTEGER_OPERATORS = (
    "DynamicQuantizeLinear",
    "MatMulInteger",
    "QLinearMatMul",
    "QGemm",
    "MatMulNBits",
)


def prepare_(model: ir.Model) -> None:
    """Normalize opset, inputs, linear layers and norms of a raw graph, in place, so that `structure` can read it.

    Raises:
        ModelError: the model is quantized or in half precision, its opset cannot be converted, or its inputs are not those of
            an encoder.
    """
    quantized = [node.op_type for node in model.graph.all_nodes() if node.op_type in _QUANTIZED]
    _refuse("the model is quantized already", quantized, "a float model", "use the float ONNX file")
    _lift_(model)
    _unshare_(model)
    lowering.lower_fused_(model.graph)
    lowering.order_gelu_(model.graph)
    _refuse(
        "the model has operators that are not part of ONNX",
        sorted(
            {
                f"{n.domain}.{n.op_type}"
                for n in model.graph.all_nodes()
                if n.domain not in ("", "ai.onnx")
            }
        )[:5],
        f"plain ONNX operators, or {', '.join(lowering.FUSED)}",
        "use the file as it was exported, before optimization for a runtime",
    )
    _refuse_half(model.graph)
    _set_opset_(model)
    name_inputs_(model.graph)
    _gemm_to_matmul_(model.graph)
    _bias_second_(model.graph)
    _fuse_layer_norms_(model.graph)
    common.CommonSubexpressionEliminationPass()(model)
    operators.clean_(model)
    folding.fold_linears_(model)


def rebuild_attention_(
    model: ir.Model, layers: list[structure.EncoderLayer], heads: list[int], family: EncoderFamily
) -> None:
    """Rewrite every attention in canonical form, with shared masks, in place.

    Args:
        layers: the structure of `model`, from `structure.find_layers`.
        heads: number of attention heads per layer.
    """
    graph = model.graph
    mask_input = next((v for v in graph.inputs if v.name == "attention_mask"), None)
    masks = _Masks(graph, mask_input, windowed=family.windowed)
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
            graph, attention, head_count, family.part(index, "attention"), others, masks.of(masking)
        )
    operators.clean_(model)


def _unshare_(model: ir.Model) -> None:
    """Give every vector its own constant again: PyTorch's older exporter writes equal ones once, and Identity for the others.

    Tables that several nodes read stay shared.
    """
    for node in [node for node in model.graph if node.op_type == "Identity"]:
        array, value = operators.const_array(node.inputs[0]), node.outputs[0]
        if array is not None and array.ndim == 1 and not value.is_graph_output():
            own = operators.initializer(model.graph, str(value.name), array)
            ir.convenience.replace_all_uses_with(value, own)
    common.IdentityEliminationPass()(model)
    common.RemoveUnusedNodesPass()(model)


def _refuse_half(graph: ir.Graph) -> None:
    half = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
    for name, value in graph.initializers.items():
        if (
            value.const_value is not None
            and value.const_value.dtype in half
            and value.const_value.size > 1
        ):
            raise ModelError(
                "the model's weights are in half precision",
                where=name,
                got=str(value.const_value.dtype),
                expected="float32, from which scales are computed",
                fix="export the model in float32",
            )


def _set_opset_(model: ir.Model) -> None:
    """Convert the graph to `OPSET`: older graphs by the official converter, newer ones by changing the number.

    `lowering` has removed Gelu before. The other operators of encoders differ between 18 and later opsets only in accepted
    types and in attributes for float8; `parity` compares the result with the original.
    """
    version = model.opset_imports.get("", 0)
    if version < OPSET:
        from onnxscript import version_converter

        version_converter.convert_version(model, target_version=OPSET, fallback=True)
    elif version > OPSET:
        for node in model.graph:
            node.version = None
            if node.op_type == "Cast":
                for attribute in set(node.attributes) - {"to"}:
                    node.attributes.pop(attribute)
        model.opset_imports[""] = OPSET
    if model.opset_imports.get("") != OPSET:
        raise ModelError(
            "the opset cannot be converted",
            got=f"opset {version}",
            expected=f"an opset near {OPSET}",
        )


def prepare_pairs_(model: ir.Model) -> None:
    """Give a graph with Q/DQ pairs the inputs of the canonical form, in place; its operators stay as they are.

    Raises:
        ModelError: its operators compute with integers themselves, or its inputs are not those of an encoder.
    """
    _refuse(
        "the model computes with integer operators, which have no float form to fuse",
        [node.op_type for node in model.graph.all_nodes() if node.op_type in INTEGER_OPERATORS],
        "a float model, or one with QuantizeLinear and DequantizeLinear",
        "use the float ONNX file, or quantize it in the QDQ format",
    )
    _lift_(model)
    name_inputs_(model.graph)
    operators.clean_(model)


def _lift_(model: ir.Model) -> None:
    """Write functions out, and make every constant an initializer that is no input."""
    common.InlinePass()(model)
    common.RemoveInitializersFromInputsPass()(model)
    common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)


def _refuse(what: str, operator_types: list[str], expected: str, fix: str) -> None:
    """Raise an error that names operators, if there are any."""
    if operator_types:
        raise ModelError(
            what, got=", ".join(sorted(set(operator_types))), expected=expected, fix=fix
        )


def name_inputs_(graph: ir.Graph) -> None:
    """Give the inputs their usual names and int64, in place.

    Raises:
        ModelError: they are not those of an encoder.
    """
    for value in graph.inputs:
        value.name = input_named(str(value.name))
    unknown = [v.name for v in graph.inputs if v.name not in INPUTS]
    if unknown or "input_ids" not in [v.name for v in graph.inputs]:
        raise ModelError(
            "the inputs are not those of an encoder",
            got=", ".join(str(v.name) for v in graph.inputs),
            expected="input_ids, attention_mask and optionally token_type_ids",
        )
    for value in list(graph.inputs):
        value.shape = ir.Shape(["batch", "sequence"])
        dtype = value.dtype
        if dtype is not None and dtype != ir.DataType.INT64:
            cast = ir.node("Cast", [value], {"to": dtype}, name=f"{value.name}.cast")
            cast.outputs[0].type = ir.TensorType(dtype)
            ir.convenience.replace_all_uses_with(value, cast.outputs[0])
            cast.replace_input_with(0, value)
            graph.insert_before(graph[0], cast)
            value.type = ir.TensorType(ir.DataType.INT64)


def _gemm_to_matmul_(graph: ir.Graph) -> None:
    """Replace Gemm and MatMul with a transposed constant by MatMul over [in, out] (and Add)."""
    for node in list(graph):
        if node.op_type == "Gemm" and operators.const_array(node.inputs[1]) is not None:
            _replace_gemm_(graph, node)
        elif node.op_type == "MatMul":
            transpose = operators.producer(node.inputs[1], "Transpose")
            weight = operators.const_array(transpose.inputs[0]) if transpose is not None else None
            if weight is not None and weight.ndim == 2:
                name = f"{operators.input_of(node, 1).name}.constant"
                array = np.ascontiguousarray(weight.T)
                node.replace_input_with(1, operators.shared_initializer(graph, name, array))


def _replace_gemm_(graph: ir.Graph, gemm: ir.Node) -> None:
    flags = gemm.attributes
    if (
        flags.get_int("transA", 0)
        or flags.get_float("alpha", 1.0) != 1.0
        or flags.get_float("beta", 1.0) != 1.0
    ):
        return
    x, matrix, bias = operators.inputs_of(gemm, 3)
    weight = operators.constant_of(matrix)
    if flags.get_int("transB", 0):
        weight = np.ascontiguousarray(weight.T)
    chain = operators.Chain(graph, str(gemm.outputs[0].name))
    product = chain.MatMul(
        "matmul", x, operators.initializer(graph, f"{chain.stem}.weight_in_out", weight)
    )
    if bias is not None:
        chain.Add("biased", product, bias)
    chain.replace_(gemm)


def _bias_second_(graph: ir.Graph) -> None:
    """Swap `Add(bias, x)` to `Add(x, bias)`, and Mul alike."""
    for node in graph:
        if node.op_type not in ("Add", "Mul") or operators.const_array(node.inputs[0]) is None:
            continue
        first, second = node.inputs
        if operators.const_array(second) is None:
            node.replace_input_with(0, second)
            node.replace_input_with(1, first)


def _fuse_layer_norms_(graph: ir.Graph) -> None:
    """Replace (x - mean) / sqrt(var + eps) * gamma (+ beta), which exporters before opset 17 write, by LayerNormalization."""
    for gamma_mul in [n for n in graph if n.op_type == "Mul"]:
        quotient = operators.above(gamma_mul.inputs[0], "Div", "Sub")
        if not quotient or not parts.is_vector(gamma_mul.inputs[1]):
            continue
        div, sub = quotient
        root = operators.above(div.inputs[1], "Sqrt", "Add")
        epsilon = operators.const_scalar(root[1].inputs[1]) if root else None
        mean = operators.producer(sub.inputs[1], "ReduceMean")
        if mean is None or epsilon is None or mean.inputs[0] is not sub.inputs[0]:
            continue
        last, inputs = gamma_mul, [sub.inputs[0], gamma_mul.inputs[1]]
        shift = operators.only_reader(gamma_mul.outputs[0], "Add")
        if shift is not None and parts.is_vector(shift.inputs[1]):
            last = shift
            inputs.append(last.inputs[1])
        name = f"{last.outputs[0].name}.norm"
        norm = operators.make_node(
            "LayerNormalization", inputs, name, {"axis": -1, "epsilon": epsilon}
        )
        norm.metadata_props.update(div.metadata_props)
        ir.convenience.replace_nodes_and_values(
            graph, last, [last], [norm], [last.outputs[0]], [norm.outputs[0]]
        )


class _Masks:
    """The masks of one graph, each written once: [B, 1, 1, S], or [B, 1, S, S] with a window."""

    def __init__(self, graph: ir.Graph, mask: ir.Value | None, *, windowed: bool) -> None:
        self._graph = graph
        self._mask = mask
        self._windowed = windowed
        self._written: dict[ir.Value | None, ir.Value] = {}

    def of(self, terms: list[Term]) -> ir.Value:
        """Return the value that replaces the masking terms of an attention."""
        assert self._mask is not None
        if self._windowed and (len(terms) != 1 or terms[0].condition or terms[0].shape is not None):
            raise ModelError(
                "an attention mask has an unknown form",
                where=str(terms[0].value.name),
                expected="one mask for padding and window, added to the scores",
                fix="export the model with eager attention",
            )
        key = terms[0].value if self._windowed else None
        if key not in self._written:
            name = f"bias{_nth(len(self._written))}"
            if key is None:
                self._written[key] = _padding(self._graph, self._mask, name)
            else:
                _bound_(self._graph, key, self._mask)
                node = key.producer()
                assert node is not None
                node.name = key.name = f"attention_mask.{name}"
                node.metadata_props.clear()
                self._written[key] = key
        return self._written[key]


def _bound_(graph: ir.Graph, value: ir.Value, mask: ir.Value) -> None:
    """Raise the constants of a mask to at least `MASK_VALUE`."""
    ancestors = operators.ancestors(value)
    for node in [
        node
        for node in graph
        if node.outputs[0] in ancestors and operators.follows(node.outputs[0], mask)
    ]:
        for index, constant in enumerate(node.inputs):
            array = operators.const_array(constant)
            if (
                array is not None
                and array.dtype == np.float32
                and array.size
                and array.min() < MASK_VALUE
            ):
                bounded = np.maximum(array, np.float32(MASK_VALUE))
                node.replace_input_with(
                    index, operators.shared_initializer(graph, "attention_mask.bound", bounded)
                )


def _padding(graph: ir.Graph, mask: ir.Value, name: str) -> ir.Value:
    """Turn attention_mask [B, S] of ones and zeros into [B, 1, 1, S] of 0 and `MASK_VALUE`."""
    numbers: dict[str, operators.Numbers] = {"axes": [1, 2], "one": 1.0, "bound": MASK_VALUE}
    axes, one, bound = (
        operators.initializer(graph, f"attention_mask.{key}", value)
        for key, value in numbers.items()
    )
    chain = operators.Chain(graph, "attention_mask")
    unsqueezed = chain.Unsqueeze("unsqueezed", mask, axes, dtype=ir.DataType.INT64)
    absent = chain.Sub("absent", one, chain.Cast("float", unsqueezed, to=ir.DataType.FLOAT))
    bias = chain.Mul(name, absent, bound)
    graph.insert_before(graph[0], chain.nodes)
    return bias


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
        scores = chain.Add(f"positioned_scores{_nth(index)}", scores, _placed(term, chain))
    probs = chain.Softmax("probs", chain.Add("masked_scores", scores, mask), axis=-1)
    context = chain.MatMul("context_heads", probs, value)
    merged = chain.Reshape(
        "context", chain.Transpose("context_split", context, perm=[0, 2, 1, 3]), merge
    )
    graph.insert_before(attention.output.matmul, chain.nodes)
    attention.output.matmul.replace_input_with(0, merged)


def _placed(term: Term, chain: operators.Chain) -> ir.Value:
    """Write a term of positions in the scale and shape of the scores [B, H, S, S], without Expand."""
    value = term.value
    expand = operators.producer(value, "Expand")
    if expand is not None and term.shape is None:
        value = operators.input_of(expand, 0)
    if term.shape is not None:
        value = chain.Reshape("position_heads", value, term.shape)
    if term.scale != 1.0:
        factor = operators.initializer(chain.graph, f"{chain.stem}.position_scale", term.scale)
        value = chain.Mul("scaled_position", value, factor)
    return value


def _nth(index: int) -> str:
    return f"_{index}" if index else ""
