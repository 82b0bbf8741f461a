"""Faster forms for ONNX Runtime on CPUs: products as integer operators, and norms in operators that it vectorizes.

Products, in the form that ONNX Runtime's tools call QOperator:

    MatMul, result quantized    QLinearMatMul: integers in, integers out
    MatMul, result in float     MatMulIntegerToFloat (`com.microsoft`): integers in, float out, a bias added

ONNX Runtime fuses a Q/DQ graph into the same operators when it opens it, but leaves every bias outside, as an Add of its own or
in the norm or GELU behind it. Here the product adds it, which saves up to 8 % of the time (`docs/evidence/runtimes.md`). A
product of other types, such as 16-bit activations, stays between Quantize/DequantizeLinear, and so do residual adds and tables.
Activations that are quantized dynamically are integer operators in every form.

Norms: LayerNormalization and SkipLayerNormalization process one number after another, 5 ns per number on one core, a tenth of
the time of an 8-bit model. InstanceNormalization over rows with one channel divides by the same deviation, epsilon included.
With scale, shift and residual adds it takes a third to a half of the time (`docs/evidence/runtimes.md`):

    LayerNormalization(x, weight, bias)   →   InstanceNormalization(x as [rows, 1, channels]) as [B, S, C] × weight + bias

InstanceNormalization runs on one core, LayerNormalization on all: use it with few cores (`Capabilities.fast_norms`).
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from octobert.core.errors import ModelError
from octobert.graph import operators, parity
from octobert.graph.passes import Pass

# Relative. Integer products are exact, float ones are not: some values move to the next of 256 steps at the next quantizer.
TOLERANCE = 0.15
_INTEGERS = (ir.DataType.INT8, ir.DataType.UINT8)


def rewrite_products_(model: ir.Model) -> int:
    """Write the products of a graph as integer operators, in place.

    Returns:
        The number of products that were written so.

    Raises:
        ModelError: the graph has quantized products, and none of them can be an integer operator.
        ParityError: the graph computes something else.
    """
    graph = model.graph
    products = _products(graph)
    if not products:
        if any(node.op_type == "MatMulInteger" for node in graph):
            return 0
        raise ModelError(
            "no product of the model can be an integer operator",
            got="no MatMul with two 8-bit inputs",
            fix="quantize activations to 8 bits, or set format: qdq",
        )
    batches = parity.sample_batches(model)
    reference = parity.onnx_outputs(model, batches)
    for node, left, right in products:
        _write_product_(graph, node, left, right)
    operators.clean_(model)
    parity.compare(
        model,
        batches,
        reference,
        "the Q/DQ graph",
        what="the graph with integer operators",
        fix="set format: qdq, and please report this model",
        tolerance=TOLERANCE,
        padded=False,
    )
    return len(products)


def count_products(model: ir.Model) -> int:
    """Return the number of products that `rewrite_products_` would write as integer operators."""
    return len(_products(model.graph))


def _products(graph: ir.Graph) -> list[tuple[ir.Node, ir.Node, ir.Node]]:
    """The products that can be integer operators, with the DequantizeLinear nodes of both inputs."""
    return [
        (node, *sides)
        for node in graph
        if node.op_type == "MatMul" and (sides := _sides(node)) is not None
    ]


def _sides(node: ir.Node) -> tuple[ir.Node, ir.Node] | None:
    """The DequantizeLinear nodes of both inputs, if a product of their integers has an operator; else None."""
    left, right = (operators.producer(value, "DequantizeLinear") for value in node.inputs)
    if left is None or right is None or not (_is_integer(left) and _is_integer(right)):
        return None
    # An activation has one scale; a weight may have one per column.
    scale, columns = operators.const_array(right.inputs[1]), operators.const_array(left.inputs[1])
    rank = len(shape) if (shape := operators.input_of(right, 0).shape) is not None else 0
    per_column = scale is not None and scale.size > 1
    if (
        columns is None
        or columns.size != 1
        or scale is None
        or (per_column and (rank != 2 or right.attributes.get_int("axis", 1) % 2 != 1))
    ):
        return None
    # int8 activations have a kernel for int8 weights only.
    types = (_dtype(left), _dtype(right))
    return (left, right) if types != (ir.DataType.INT8, ir.DataType.UINT8) else None


def _dtype(node: ir.Node) -> ir.DataType | None:
    zero = operators.const_array(operators.inputs_of(node, 3)[2])
    return None if zero is None else ir.DataType.from_numpy(zero.dtype)


def _is_integer(node: ir.Node) -> bool:
    """Return whether a DequantizeLinear has 8-bit integers, a constant zero point, and a float32 scale."""
    scale = operators.const_array(node.inputs[1])
    return (
        node.domain == ""
        and _dtype(node) in _INTEGERS
        and scale is not None
        and scale.dtype == np.float32
    )


def _write_product_(graph: ir.Graph, node: ir.Node, left: ir.Node, right: ir.Node) -> None:
    """Replace one product, with the bias or the quantizer after it."""
    a, a_scale, a_zero = left.inputs[:3]
    b, b_scale, b_zero = right.inputs[:3]
    output = node.outputs[0]
    quantize = operators.only_reader(output, "QuantizeLinear")
    # The kernel writes the type of its first input.
    if quantize is not None and quantize.inputs[0] is output and _dtype(quantize) == _dtype(left):
        last, chain = quantize, operators.Chain(graph, str(quantize.outputs[0].name))
        chain.QLinearMatMul("", a, a_scale, a_zero, b, b_scale, b_zero, *quantize.inputs[1:])
    else:
        bias, last = _bias(node)
        chain = operators.Chain(graph, str(last.outputs[0].name))
        biases = [bias] if bias is not None else []
        chain.MatMulIntegerToFloat("", a, b, a_scale, b_scale, a_zero, b_zero, *biases)
        chain.nodes[0].domain = operators.MICROSOFT
        graph.opset_imports.setdefault(operators.MICROSOFT, 1)
    chain.replace_(last)


def _bias(node: ir.Node) -> tuple[ir.Value | None, ir.Node]:
    """The bias that is added to a product and the Add, where nothing else reads the product; else None and the product."""
    add = operators.only_reader(node.outputs[0], "Add")
    bias = operators.other_input(add, node.outputs[0])[1] if add is not None else None
    array = operators.const_array(bias)
    constant = array is not None and array.ndim == 1 and array.dtype == np.float32
    return (bias, add) if add is not None and constant else (None, node)


def vectorize_norms_(model: ir.Model) -> int:
    """Rewrite every float32 LayerNormalization over the last axis, in place; return how many."""
    norms = [
        node
        for node in model.graph
        if node.op_type == "LayerNormalization" and _is_plain_norm(node)
    ]
    for node in norms:
        _write_norm_(model.graph, node)
    return len(norms)


def _is_plain_norm(node: ir.Node) -> bool:
    """Return whether a norm is over the last axis, has a constant weight, and only its first output is read."""
    weight, axis = operators.const_array(node.inputs[1]), node.attributes.get_int("axis", -1)
    shape = operators.input_of(node, 0).shape
    last = axis == -1 or (shape is not None and axis == len(shape) - 1)
    unread = all(not value.uses() and not value.is_graph_output() for value in node.outputs[1:])
    return (
        last and unread and weight is not None and weight.dtype == np.float32 and weight.ndim == 1
    )


def _write_norm_(graph: ir.Graph, node: ir.Node) -> None:
    x, weight, bias = operators.inputs_of(node, 3)
    channels = len(operators.constant_of(weight))
    chain = operators.Chain(graph, str(node.outputs[0].name))

    def constant(part: str, numbers: operators.Numbers) -> ir.Value:
        return operators.shared_initializer(graph, f"octobert.norm.{part}", numbers)

    one = constant("one", [1.0])
    zero = constant("zero", [0.0])
    rows = constant(str(channels), [-1, 1, channels])
    epsilon = node.attributes.get_float("epsilon", 1e-5)
    unit = chain.InstanceNormalization(
        "unit_rows", chain.Reshape("rows", x, rows), one, zero, epsilon=epsilon
    )
    shape = chain.Shape("shape", x, dtype=ir.DataType.INT64)
    scaled = chain.Mul("scaled", chain.Reshape("unit", unit, shape), weight)
    if bias is not None:
        chain.Add("shifted", scaled, bias)
    chain.replace_(node)


INTEGERS = Pass(rewrite_products_, lambda form: {} if form.qoperator else None)
