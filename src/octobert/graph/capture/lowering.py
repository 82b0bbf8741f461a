"""Lower a raw float graph, so that `structure` can read it whichever tool wrote it.

Opset, inputs, linear layers and norms get one form. Fused operators are taken apart: Gelu of opset 20, and those that ONNX
Runtime's optimizer writes (`com.microsoft`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import common

from octobert.core.errors import ModelError
from octobert.core.onnx_files import INPUTS, input_named, without
from octobert.graph import operators, parts
from octobert.graph.capture import shapes
from octobert.graph.capture.canonical import OPSET
from octobert.graph.operators import Chain
from octobert.graph.parts import Linear

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
# Operators of activation functions and gates, which compute each number by itself.
_BY_NUMBER = (
    *("Add", "Div", "Erf", "Gelu", "LeakyRelu", "Mul", "Neg", "Pow", "Relu", "Sigmoid", "Softplus"),
    *("Sqrt", "Sub", "Tanh"),
)


def prepare_(model: ir.Model, *, whole: bool = True) -> None:
    """Normalize opset, inputs, linear layers and norms of a raw graph, in place, so that `structure` can read it.

    Args:
        whole: the graph is an encoder; otherwise inputs, and operators that are not part of ONNX, stay as they are.

    Raises:
        ModelError: the model is quantized or in half precision, its opset cannot be converted, or its inputs are not those of
            an encoder.
    """
    quantized = [node.op_type for node in model.graph.all_nodes() if node.op_type in _QUANTIZED]
    _refuse("the model is quantized already", quantized, "a float model", "use the float ONNX file")
    _lift_(model)
    _unshare_(model)
    lower_fused_(model.graph)
    order_gelu_(model.graph)
    if whole:
        _refuse(
            "the model has operators that are not part of ONNX",
            sorted(
                {
                    f"{n.domain}.{n.op_type}"
                    for n in model.graph.all_nodes()
                    if n.domain not in ("", "ai.onnx")
                }
            )[:5],
            f"plain ONNX operators, or {', '.join(FUSED)}",
            "use the file as it was exported, before optimization for a runtime",
        )
    _refuse_half(model.graph)
    _set_opset_(model)
    if whole:
        name_inputs_(model.graph)
    _gemm_to_matmul_(model.graph)
    _bias_second_(model.graph)
    _fuse_layer_norms_(model.graph)
    _divide_in_rms_norms_(model.graph)
    common.CommonSubexpressionEliminationPass()(model)
    operators.clean_(model)
    _join_feed_forwards_(model.graph)
    operators.clean_(model)
    if whole:
        shapes.fold_linears_(model)


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


def _unshare_(model: ir.Model) -> None:
    """Give every vector its own constant again: PyTorch's older exporter writes equal ones once, and Identity for the others.

    Tables that several nodes read stay shared.
    """
    for node in operators.of_type(model.graph, "Identity"):
        array, value = operators.const_array(node.inputs[0]), node.outputs[0]
        if array is not None and array.ndim == 1 and not value.is_graph_output():
            constant = operators.initializer(model.graph, str(value.name), array)
            ir.convenience.replace_all_uses_with(value, constant)
    operators.drop_identities_(model)
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

    `lower_fused_` has removed Gelu before. The other operators of encoders differ between 18 and later opsets only in accepted
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
            fix=without(list(map(str, unknown))),
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
    chain = Chain(graph, str(gemm.outputs[0].name))
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


def _join_feed_forwards_(graph: ir.Graph) -> None:
    """Write a feed-forward whose neurons are computed in two parts, such as outliers beside all others, as one, in place."""
    for add in operators.of_type(graph, "Add"):
        downs = [linear for linear in map(parts.linear_of, add.inputs) if linear is not None]
        ups: dict[ir.Node, tuple[Linear, Linear]] = {}
        # The part with a bias is first, and stays.
        downs.sort(key=lambda linear: linear.add is None)
        if len(downs) != 2 or not _are_twins(downs[0].x, downs[1].x, ups) or not ups:
            continue
        one, other = downs
        # Neurons whose place the other part took read nothing.
        left = np.asarray(operators.constant_of(one.weight).any(axis=1))
        _join_(graph, one.matmul, other.matmul, 0, left)
        for first, second in ups.values():
            _join_(graph, first.matmul, second.matmul, 1, left)
            if first.add is not None and second.add is not None:
                _join_(graph, first.add, second.add, 0, left)
        if one.add is not None and other.bias is not None:
            total = operators.constant_of(operators.input_of(one.add, 1)) + operators.constant_of(
                other.bias
            )
            operators.set_constant_(graph, operators.input_of(one.add, 1), [one.add], total)
        ir.convenience.replace_all_uses_with(add.outputs[0], one.y)


def _join_(graph: ir.Graph, node: ir.Node, other: ir.Node, axis: int, left: np.ndarray) -> None:
    """Give a node its constant where `left` is true, and behind it the other one's."""
    kept, more = (operators.constant_of(each.inputs[1]) for each in (node, other))
    joined = np.concatenate([np.compress(left, kept, axis), more], axis)
    operators.set_constant_(graph, operators.input_of(node, 1), [node], joined)


def _are_twins(one: ir.Value, other: ir.Value, ups: dict[ir.Node, tuple[Linear, Linear]]) -> bool:
    """Whether two values are the same function, number by number, of linear layers of one value; they are added to `ups`."""
    first, second = parts.linear_of(one), parts.linear_of(other)
    if first is not None and second is not None:
        ups[first.matmul] = first, second
        return first.x is second.x and (first.add is None) == (second.add is None)
    numbers = [operators.const_scalar(value) for value in (one, other)]
    if None not in numbers:
        return numbers[0] == numbers[1]
    node, twin = one.producer(), other.producer()
    return (
        node is not None
        and twin is not None
        and node.op_type == twin.op_type
        and node.op_type in _BY_NUMBER
        and dict(node.attributes) == dict(twin.attributes)
        and len(node.inputs) == len(twin.inputs)
        and all(
            a is not None and b is not None and _are_twins(a, b, ups)
            for a, b in zip(node.inputs, twin.inputs, strict=True)
        )
    )


def _fuse_layer_norms_(graph: ir.Graph) -> None:
    """Replace (x - mean) / sqrt(var + eps) * gamma (+ beta), which exporters before opset 17 write, by LayerNormalization."""
    for gamma_mul in operators.of_type(graph, "Mul"):
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
        chain = Chain(graph, str(last.outputs[0].name))
        chain.LayerNormalization("norm", *inputs, axis=-1, epsilon=epsilon)
        chain.replace_(last)
        # The Add may be of another module.
        chain.nodes[0].metadata_props.update(div.metadata_props)


def _divide_in_rms_norms_(graph: ir.Graph) -> None:
    """Rewrite x * (1 / sqrt(…)), from torch's exporter, as x / sqrt(…), in place, which runtimes fuse."""
    for reciprocal in operators.of_type(graph, "Reciprocal"):
        inverse = reciprocal.outputs[0]
        mul = operators.only_reader(inverse, "Mul")
        if mul is None or operators.producer(reciprocal.inputs[0], "Sqrt") is None:
            continue
        x = operators.other_input(mul, inverse)[1]
        chain = Chain(graph, str(mul.outputs[0].name))
        chain.Div("quotient", x, reciprocal.inputs[0])
        chain.replace_(mul)


def lower_fused_(graph: ir.Graph) -> None:
    """Replace the fused operators in `FUSED` by plain ONNX, in place; others stay."""
    _lower_(
        graph,
        [node for node in graph if node.domain == operators.MICROSOFT and node.op_type != "Gelu"],
    )
    # After BiasGelu, which becomes one.
    _lower_(graph, operators.of_type(graph, "Gelu"))


def _lower_(graph: ir.Graph, nodes: list[ir.Node]) -> None:
    for node in nodes:
        chain = Chain(graph, str(node.outputs[0].name))
        if node.op_type in FUSED:
            FUSED[node.op_type](node, chain)
        if chain.nodes:
            chain.replace_(node)


def order_gelu_(graph: ir.Graph) -> None:
    """Rewrite x * (0.5 * (1 + erf(…))), from torch's exporter, as (x * (1 + erf(…))) * 0.5, in place.

    ONNX Runtime fuses only the second form, together with the bias before it; the first stays six operators.
    """
    for erf in operators.of_type(graph, "Erf"):
        readers = operators.below(erf.outputs[0], "Add", "Mul", "Mul")
        if not readers:
            continue
        plus, halved, outer = readers
        place, half = operators.other_input(halved, plus.outputs[0])
        other, x = operators.other_input(outer, halved.outputs[0])
        if operators.const_scalar(half) == 0.5:
            halved.replace_input_with(place, x)
            outer.replace_input_with(other, half)
            halved.outputs[0].shape = outer.outputs[0].shape


def gelu(chain: Chain, x: ir.Value | None, stem: str = "") -> ir.Value:
    """Write the exact GELU in a form that every runtime fuses: (x * (1 + erf(x / sqrt 2))) * 0.5.

    Args:
        stem: begins the names of the nodes.
    """
    erf = chain.Erf(f"{stem}erf", chain.Div(f"{stem}div", x, _number(chain, "root_two", 2.0**0.5)))
    double = chain.Mul(f"{stem}double", x, chain.Add(f"{stem}add", erf, _number(chain, "one", 1.0)))
    return chain.Mul(f"{stem}gelu", double, _number(chain, "half", 0.5))


def _number(chain: Chain, key: str, number: float) -> ir.Value:
    return operators.shared_initializer(chain.graph, f"octobert.gelu.{key}", number)


def _gelu(node: ir.Node, chain: Chain) -> None:
    """Write Gelu. Its approximation is 0.5 x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x³)))."""
    x, number = node.inputs[0], partial(_number, chain)
    if node.attributes.get_string("approximate", "none") != "tanh":
        gelu(chain, x)
        return
    cubic = chain.Mul(
        "cubic", chain.Pow("cube", x, number("three", 3.0)), number("cubic", 0.044715)
    )
    inner = chain.Mul("scaled", chain.Add("inner", x, cubic), number("root", (2.0 / np.pi) ** 0.5))
    above = chain.Add("add", chain.Tanh("tanh", inner), number("one", 1.0))
    chain.Mul("gelu", chain.Mul("half", x, number("half", 0.5)), above)


def _skip_norm(node: ir.Node, chain: Chain) -> None:
    """Outputs of the operator: norm(input + bias + skip), mean, inverse deviation, the sum."""
    x, skip, gamma, beta, bias = operators.inputs_of(node, 5)
    if bias is not None:
        x = chain.Add("biased", x, bias)
    total = chain.Add("sum", x, skip)
    chain.LayerNormalization(
        "norm", total, gamma, beta, axis=-1, epsilon=node.attributes.get_float("epsilon", 1e-12)
    )
    if len(node.outputs) > 3:
        ir.convenience.replace_all_uses_with(node.outputs[3], total)


def _bias_gelu(node: ir.Node, chain: Chain) -> None:
    chain.Gelu("plain", chain.Add("biased", *node.inputs))


def _fused_matmul(node: ir.Node, chain: Chain) -> None:
    """alpha · A B, where transA and transB swap the last two axes; operands that are not constant have rank four."""
    flags, operands = node.attributes, []
    if flags.get_int("transBatchA", 0) or flags.get_int("transBatchB", 0):
        return
    for value, flag in zip(node.inputs, ("transA", "transB"), strict=True):
        constant = operators.const_array(value)
        if not flags.get_int(flag, 0):
            operands.append(value)
        elif constant is not None:
            swapped = np.ascontiguousarray(constant.swapaxes(-1, -2))
            operands.append(operators.initializer(chain.graph, f"{chain.stem}.{flag}", swapped))
        else:
            operands.append(chain.Transpose(flag, value, perm=[0, 1, 3, 2]))
    product, alpha = chain.MatMul("product", *operands), flags.get_float("alpha", 1.0)
    if alpha != 1.0:
        chain.Mul(
            "scaled", product, operators.initializer(chain.graph, f"{chain.stem}.alpha", alpha)
        )


def _fused_gemm(node: ir.Node, chain: Chain) -> None:
    flags = node.attributes
    activation = flags.get_string("activation", "")
    if activation in ("Tanh", "Relu"):
        attributes: dict[str, Any] = {
            name: flags.get_float(name, 1.0) for name in ("alpha", "beta")
        }
        attributes |= {name: flags.get_int(name, 0) for name in ("transA", "transB")}
        getattr(chain, activation)("activation", chain.Gemm("gemm", *node.inputs, **attributes))


# Operator → what writes it in plain ONNX; nothing is written for a form that has none.
FUSED: dict[str, Callable[[ir.Node, Chain], None]] = {
    "SkipLayerNormalization": _skip_norm,
    "BiasGelu": _bias_gelu,
    "Gelu": _gelu,
    "FusedMatMul": _fused_matmul,
    "FusedGemm": _fused_gemm,
}
