"""Write linear layers as Gemm: MatMul over [in, out] and the Add of a bias become Reshape, Gemm, Reshape.

For compilers that support linear layers only as Gemm (QNN). Needs static shapes (`static_shapes`). In a quantized graph a
Reshape stands between two Q/DQ pairs with the same scale: every operator still reads a DequantizeLinear and is read by a
QuantizeLinear, as such compilers require. The second rounding changes nothing.
"""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from octobert.core.errors import ModelError
from octobert.graph import operators


def matmul_add_to_gemm_(model: ir.Model) -> int:
    """Write linear layers with a bias as Gemm, in place; those without a bias stay MatMul.

    Returns:
        The number of Gemms.

    Raises:
        ModelError: a linear layer has a dynamic shape.
    """
    graph = model.graph
    # Value → its two-dimensional form, written once for all linear layers that read it.
    flat: dict[ir.Value, ir.Value] = {}
    count = 0
    for matmul in [node for node in graph if node.op_type == "MatMul"]:
        weight = _weight_shape(matmul.inputs[1])
        add = _bias_add(matmul, weight[1]) if weight is not None else None
        x = matmul.inputs[0]
        if weight is None or add is None or x is None:
            continue
        y, name = add.outputs[0], str(add.outputs[0].name)
        if x.shape is None or not x.shape.is_static():
            raise ModelError(
                "a linear layer with a dynamic shape cannot become a Gemm",
                where=str(matmul.name),
                got=str(x.shape),
                expected="static shapes",
                fix="set static shapes first",
            )
        outer = x.shape.numpy()[:-1]
        rows = math.prod(outer)
        if len(outer) > 1 and x not in flat:
            nodes = _in_rows(graph, x, (rows, weight[0]))
            graph.insert_before(matmul, nodes)
            flat[x] = nodes[-1].outputs[0]
        bias = next(v for v in add.inputs if v is not matmul.outputs[0])
        inputs = [flat.get(x, x), matmul.inputs[1], bias]
        nodes = [operators.make_node("Gemm", inputs, f"{name}.gemm", dtype=y.dtype, shape=(rows, weight[1]))]
        if len(outer) > 1:
            nodes += _out_of_rows(graph, nodes[-1].outputs[0], y, (*outer, weight[1]))
        ir.convenience.replace_nodes_and_values(graph, add, [matmul, add], nodes, [y], [nodes[-1].outputs[0]])
        count += 1
    return count


def _in_rows(graph: ir.Graph, x: ir.Value, sizes: tuple[int, int]) -> list[ir.Node]:
    """Reshape [B, S, D] to [B·S, D]; a quantized value gets a second pair after the Reshape."""
    nodes = [_reshape(graph, x, sizes, f"{x.name}.rows")]
    dequantize = operators.producer(x, "DequantizeLinear")
    quantize = operators.producer(dequantize.inputs[0], "QuantizeLinear") if dequantize is not None else None
    return nodes if quantize is None else [*nodes, *_pair(nodes[-1].outputs[0], quantize)]


def _out_of_rows(graph: ir.Graph, rows: ir.Value, y: ir.Value, sizes: tuple[int, ...]) -> list[ir.Node]:
    """Reshape [B·S, D] to [B, S, D]; a value that is quantized next gets another pair before the Reshape."""
    readers = operators.readers(y)
    quantized = len(readers) == 1 and readers[0].op_type == "QuantizeLinear"
    nodes = _pair(rows, readers[0]) if quantized else []
    return [*nodes, _reshape(graph, nodes[-1].outputs[0] if nodes else rows, sizes, f"{y.name}.shaped")]


def _bias_add(matmul: ir.Node, channels: int) -> ir.Node | None:
    """Return the Add of a bias if nothing else reads the product, else None."""
    product = matmul.outputs[0]
    readers = operators.readers(product)
    if len(readers) != 1 or readers[0].op_type != "Add" or product.is_graph_output():
        return None
    for value in readers[0].inputs:
        dequantize = operators.producer(value, "DequantizeLinear")
        array = operators.const_array(dequantize.inputs[0] if dequantize is not None else value)
        if array is not None and array.shape == (channels,):
            return readers[0]
    return None


def _weight_shape(value: ir.Value | None) -> tuple[int, int] | None:
    """Return the shape of a weight [in, out], float or quantized, or None if the value is not constant."""
    for op_type in ("DequantizeLinear", "QuantizeLinear"):
        node = operators.producer(value, op_type)
        value = node.inputs[0] if node is not None else value
    array = operators.const_array(value)
    return (array.shape[0], array.shape[1]) if array is not None and array.ndim == 2 else None


def _reshape(graph: ir.Graph, x: ir.Value, sizes: tuple[int, ...], name: str) -> ir.Node:
    target = operators.shared_initializer(graph, f"shape.{'x'.join(map(str, sizes))}", np.array(sizes, dtype=np.int64))
    return operators.make_node("Reshape", [x, target], name, dtype=x.dtype, shape=sizes)


def _pair(x: ir.Value, like: ir.Node) -> list[ir.Node]:
    """Make a pair with the scale and zero point of the QuantizeLinear `like`."""
    integer, shape = like.outputs[0].dtype, x.shape
    quantize = operators.make_node("QuantizeLinear", [x, *like.inputs[1:]], f"{x.name}.quantized", dtype=integer, shape=shape)
    inputs = [quantize.outputs[0], *like.inputs[1:]]
    return [quantize, operators.make_node("DequantizeLinear", inputs, f"{x.name}.dequantized", dtype=x.dtype, shape=shape)]
