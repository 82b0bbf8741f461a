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
from octobert.graph.passes import Pass


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
        weight, x = _constant_behind(matmul.inputs[1]), operators.input_of(matmul, 0)
        add = operators.only_reader(matmul.outputs[0], "Add")
        if weight is None or weight.ndim != 2 or add is None:
            continue
        bias = operators.other_input(add, matmul.outputs[0])[1]
        vector = _constant_behind(bias)
        channels_in, channels_out = weight.shape
        if vector is None or vector.shape != (channels_out,):
            continue
        if x.shape is None or not x.shape.is_static():
            raise ModelError(
                "a linear layer with a dynamic shape cannot become a Gemm",
                where=str(matmul.name),
                got=str(x.shape),
                expected="static shapes",
                fix="set static shapes first",
            )
        outer, y = x.shape.numpy()[:-1], add.outputs[0]
        rows = math.prod(outer)
        if len(outer) > 1 and x not in flat:
            chain = operators.Chain(graph, str(x.name))
            flat[x] = _in_rows(chain, x, (rows, channels_in))
            graph.insert_before(matmul, chain.nodes)
        chain = operators.Chain(graph, str(y.name))
        inputs = [flat.get(x, x), matmul.inputs[1], bias]
        result = chain.Gemm("gemm", *inputs, dtype=y.dtype, shape=(rows, channels_out))
        if len(outer) > 1:
            result = _out_of_rows(chain, result, y, (*outer, channels_out))
        ir.convenience.replace_nodes_and_values(
            graph, add, [matmul, add], chain.nodes, [y], [result]
        )
        count += 1
    return count


def _in_rows(chain: operators.Chain, x: ir.Value, sizes: tuple[int, int]) -> ir.Value:
    """Reshape [B, S, D] to [B·S, D]; a quantized value gets a second pair after the Reshape."""
    rows = _reshape(chain, x, sizes, "rows")
    pair = operators.above(x, "DequantizeLinear", "QuantizeLinear")
    return _pair(chain, rows, "rows", pair[1]) if pair else rows


def _out_of_rows(
    chain: operators.Chain, rows: ir.Value, y: ir.Value, sizes: tuple[int, ...]
) -> ir.Value:
    """Reshape [B·S, D] to [B, S, D]; a value that is quantized next gets another pair before the Reshape."""
    readers = operators.readers(y)
    if len(readers) == 1 and readers[0].op_type == "QuantizeLinear":
        rows = _pair(chain, rows, "gemm", readers[0])
    return _reshape(chain, rows, sizes, "shaped")


def _constant_behind(value: ir.Value | None) -> np.ndarray | None:
    """Return a constant, float or quantized, or None if the value is not constant."""
    for op_type in ("DequantizeLinear", "QuantizeLinear"):
        node = operators.producer(value, op_type)
        value = node.inputs[0] if node is not None else value
    return operators.const_array(value)


def _reshape(chain: operators.Chain, x: ir.Value, sizes: tuple[int, ...], part: str) -> ir.Value:
    return chain.Reshape(
        part, x, operators.reshape_target(chain.graph, sizes), dtype=x.dtype, shape=sizes
    )


def _pair(chain: operators.Chain, x: ir.Value, part: str, like: ir.Node) -> ir.Value:
    """Write a pair with the scale and zero point of the QuantizeLinear `like`."""
    integer, constants = like.outputs[0].dtype, like.inputs[1:]
    quantized = chain.QuantizeLinear(
        f"{part}.quantized", x, *constants, dtype=integer, shape=x.shape
    )
    return chain.DequantizeLinear(
        f"{part}.dequantized", quantized, *constants, dtype=x.dtype, shape=x.shape
    )


GEMM = Pass(matmul_add_to_gemm_)
