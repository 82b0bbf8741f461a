"""GELU in a graph, found by its form: x · ½(1 + erf(x / √2)), or with tanh(√(2/π) (x + 0.044715 x³)), factors in any order."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from octobert.graph import operators

# Constants are float32 in the graph, and exporters write them with more or fewer digits; relative.
TOLERANCE = 1e-4


def gelu_around(node: ir.Node) -> tuple[ir.Value, ir.Value] | None:
    """What the GELU around an Erf or a Tanh reads, and what it makes; None where it is none."""
    x = _erf_argument(node) if node.op_type == "Erf" else _tanh_argument(node)
    end = _end(x, node) if x is not None else None
    return (x, end) if x is not None and end is not None else None


def _erf_argument(erf: ir.Node) -> ir.Value | None:
    scaled = operators.producer(erf.inputs[0], "Div", "Mul")
    factor = 2.0**0.5 if scaled is not None and scaled.op_type == "Div" else 0.5**0.5
    return scaled.inputs[0] if scaled is not None and _is_constant(scaled.inputs[1], factor) else None


def _tanh_argument(tanh: ir.Node) -> ir.Value | None:
    scaled = operators.producer(tanh.inputs[0], "Mul")
    inner = operators.producer(scaled.inputs[0], "Add") if scaled is not None else None
    cubic = operators.producer(inner.inputs[1], "Mul") if inner is not None else None
    cube = operators.producer(cubic.inputs[0], "Pow") if cubic is not None else None
    if scaled is None or inner is None or cubic is None or cube is None or cube.inputs[0] is not inner.inputs[0]:
        return None
    constants = ((scaled, (2.0 / np.pi) ** 0.5), (cubic, 0.044715), (cube, 3.0))
    return inner.inputs[0] if all(_is_constant(one.inputs[1], number) for one, number in constants) else None


def _end(x: ir.Value, node: ir.Node) -> ir.Value | None:
    """Where one plus what `node` makes is multiplied with x and with one half."""
    add = operators.readers(node.outputs[0])[0]
    if add.op_type != "Add" or not _is_constant(add.inputs[1], 1.0):
        return None
    value, missing = add.outputs[0], {"x", "half"}
    while missing:
        readers = operators.readers(value)
        if len(readers) != 1 or readers[0].op_type != "Mul":
            return None
        other = readers[0].inputs[1 - [v is value for v in readers[0].inputs].index(True)]
        half_x = operators.producer(other, "Mul")
        if _is_constant(other, 0.5):
            found = {"half"}
        elif other is x:
            found = {"x"}
        elif half_x is not None and half_x.inputs[0] is x and _is_constant(half_x.inputs[1], 0.5):
            found = {"x", "half"}
        else:
            return None
        if not found <= missing:
            return None
        missing -= found
        value = readers[0].outputs[0]
    return value


def _is_constant(value: ir.Value | None, number: float) -> bool:
    found = operators.const_scalar(value)
    return found is not None and abs(found - number) <= TOLERANCE * number
