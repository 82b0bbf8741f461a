"""Products of integers in the form of Q/DQ, with the weights that saturate most."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

INPUTS = {"uint8": (0, 0, 255), "int8": (0, -128, 127)}


def product(weight: np.ndarray, dtype: str) -> bytes:
    """A model that multiplies integers, given as floats, with integer weights."""
    zeros = np.zeros(weight.shape[1], np.int8)
    constants = {
        "one": np.float32(1),
        "zero": np.dtype(dtype).type(INPUTS[dtype][0]),
        "weight": weight,
        "ones": np.ones(weight.shape[1], np.float32),
        "zeros": zeros,
    }
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "one", "zero"], ["quantized"]),
        helper.make_node("DequantizeLinear", ["quantized", "one", "zero"], ["dequantized"]),
        helper.make_node("DequantizeLinear", ["weight", "ones", "zeros"], ["floats"], axis=1),
        helper.make_node("MatMul", ["dequantized", "floats"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "product",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", len(weight)])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", weight.shape[1]])],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=10)
    onnx.checker.check_model(model, full_check=True)
    return model.SerializeToString()


def weights(rows: int, columns: int) -> np.ndarray:
    """Float weights with the worst neighbours: of equal size and sign, one large and one small, and random ones."""
    rng = np.random.default_rng(rows)
    weight = rng.standard_t(3, size=(rows, columns)).astype(np.float32)
    weight[:, 0] = 1
    weight[:, 1] = -1
    weight[:, 2] = np.where(np.arange(rows) % 4 < 2, 1, 0.01)
    weight[:, 3] = np.where(np.arange(rows) % 2, 1, 0.01)
    return weight
