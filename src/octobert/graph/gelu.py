"""Find GELU written in primitive operators: x · ½(1 + erf(x / √2)), factors in any order.

Source: Hendrycks and Gimpel, "Gaussian Error Linear Units", 2016.
"""

from __future__ import annotations

import onnx_ir as ir

from octobert.graph import operators

# Relative. Constants in the graph are float32, and exporters write them with more or fewer digits.
TOLERANCE = 1e-4


def gelu_around(node: ir.Node) -> tuple[ir.Value, ir.Value] | None:
    """Return input and output of the GELU around an Erf node, or None if the node is not part of one."""
    x = _erf_argument(node)
    end = _end(x, node) if x is not None else None
    return (x, end) if x is not None and end is not None else None


def _erf_argument(erf: ir.Node) -> ir.Value | None:
    scaled = operators.producer(erf.inputs[0], "Div", "Mul")
    factor = 2.0**0.5 if scaled is not None and scaled.op_type == "Div" else 0.5**0.5
    return scaled.inputs[0] if scaled is not None and _is_constant(scaled.inputs[1], factor) else None


def _end(x: ir.Value, node: ir.Node) -> ir.Value | None:
    """Return the value (1 + output of `node`) · x · ½, or None."""
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
            factors = {"half"}
        elif other is x:
            factors = {"x"}
        elif half_x is not None and half_x.inputs[0] is x and _is_constant(half_x.inputs[1], 0.5):
            factors = {"x", "half"}
        else:
            return None
        if not factors <= missing:
            return None
        missing -= factors
        value = readers[0].outputs[0]
    return value


def _is_constant(value: ir.Value | None, number: float) -> bool:
    scalar = operators.const_scalar(value)
    return scalar is not None and abs(scalar - number) <= TOLERANCE * number
