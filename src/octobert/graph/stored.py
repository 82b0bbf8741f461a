"""Weights as quantized files store them: integers behind a DequantizeLinear, or floats behind a Q/DQ pair."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from octobert.core.plan import LIMITS
from octobert.graph import operators
from octobert.graph.qdq import spread


@dataclass(frozen=True)
class StoredWeight:
    """A constant weight with zero point 0, stored as integers or as floats with Q/DQ.

    Args:
        value: the constant in the graph.
        integers: the weight in 8 bits.
        axis: of its scales.
    """

    value: ir.Value
    integers: np.ndarray
    axis: int

    @staticmethod
    def from_node(node: ir.Node | None) -> StoredWeight | None:
        """Return the weight that a DequantizeLinear reads, or None if that is not constant or of another form."""
        if node is None or node.op_type != "DequantizeLinear":
            return None
        scale, zero = (operators.const_array(value) for value in operators.inputs_of(node, 3)[1:])
        quantize = operators.producer(node.inputs[0], "QuantizeLinear")
        value = node.inputs[0] if quantize is None else quantize.inputs[0]
        array = operators.const_array(value)
        name = zero.dtype.name if zero is not None else "uint8"
        if (
            scale is None
            or scale.ndim > 1
            or value is None
            or array is None
            or (zero is not None and zero.any())
            or (quantize is not None and name not in LIMITS)
        ):
            return None
        axis = node.attributes.get_int("axis", 1) % array.ndim if array.ndim else 0
        if quantize is not None:
            scale = scale.astype(np.float32).reshape(() if scale.size == 1 else -1)
            divisor = spread(scale, array.shape, axis if scale.ndim else None)
            array = np.clip(np.rint(array / divisor), *LIMITS[name]).astype(name)
        return StoredWeight(value, array, axis)
