"""Parts of graphs that compute without an end, or ask for more memory than any machine has, from a value `speed` of one number."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper, numpy_helper

FLOAT, INTEGER, BOOLEAN = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64, onnx.TensorProto.BOOL
# 64 TiB of float32 numbers, and turns for longer than there are processors.
HUGE, TURNS = 2**44, 2**62


def constant(name: str, value: object) -> onnx.TensorProto:
    return numpy_helper.from_array(np.asarray(value), name)


def looping() -> tuple[list, list]:
    """A loop that adds 1 to an input."""

    def value(name: str, kind: int, shape: list[int]) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, kind, shape)

    body = helper.make_graph(
        [
            helper.make_node("Add", ["v", "step"], ["more"]),
            helper.make_node("Identity", ["c"], ["on"]),
        ],
        "body",
        [value("i", INTEGER, []), value("c", BOOLEAN, []), value("v", FLOAT, [1])],
        [value("on", BOOLEAN, []), value("more", FLOAT, [1])],
        [constant("step", np.ones(1, np.float32))],
    )
    nodes = [helper.make_node("Loop", ["turns", "true", "speed"], ["extra"], body=body, name="l")]
    return nodes, [constant("turns", TURNS), constant("true", True)]


def filling(operator: str, count: int = HUGE) -> tuple[list, list]:
    """A value of so many numbers, which follows from constants alone, or also from an input."""
    kinds = {
        "ConstantOfShape": (["shape"], [constant("shape", [count])]),
        "Expand": (["speed", "shape"], [constant("shape", [count])]),
        "Range": (
            ["zero", "end", "one"],
            [constant("zero", 0.0), constant("end", float(count)), constant("one", 1.0)],
        ),
    }
    inputs, constants = kinds[operator]
    nodes = [
        helper.make_node(operator, inputs, ["huge"], name="h"),
        *([helper.make_node("Cast", ["huge"], ["cast"], to=FLOAT, name="c")]),
        helper.make_node("ReduceSum", ["cast"], ["total"], keepdims=0, name="r"),
        helper.make_node("Mul", ["total", "speed"], ["extra"], name="m"),
    ]
    return nodes, constants
