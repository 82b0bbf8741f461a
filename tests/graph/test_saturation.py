"""Products of weights with `reduce_range`, in the engines, against integers in NumPy: exact on CPUs with VNNI and without."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
import openvino
import pytest
from onnx import TensorProto, helper, numpy_helper

from octobert.core.plan import Quantizer
from octobert.graph import qdq

pytestmark = pytest.mark.kernels
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


@pytest.mark.parametrize("ranges", ["max", "mse"])
@pytest.mark.parametrize("dtype", list(INPUTS))
@pytest.mark.parametrize("rows", [64, 384, 386, 387])
def test_no_product_saturates(rows: int, dtype: str, ranges: str) -> None:
    quantizer = Quantizer(
        dtype="int8", symmetric=True, axis=1, reduce_range=True, weight_ranges=ranges
    )
    integers, _ = qdq.quantize_weight(weights(rows, 48), quantizer)
    _, lowest, highest = INPUTS[dtype]
    model = product(integers, dtype)
    session = ort.InferenceSession(model, providers=["CPUExecutionProvider"])
    core = openvino.Core()
    compiled = core.compile_model(
        core.read_model(model), "CPU", {"INFERENCE_PRECISION_HINT": "f32"}
    )
    rng = np.random.default_rng(1)
    for count in (1, 5, 32):
        for x in (
            np.full((count, rows), highest),
            rng.choice([lowest, highest], size=(count, rows)),
            rng.integers(lowest, highest + 1, size=(count, rows)),
        ):
            expected = x.astype(np.int64) @ integers.astype(np.int64)
            fed = x.astype(np.float32)
            # float32 holds these integers exactly.
            np.testing.assert_array_equal(session.run(None, {"x": fed})[0], expected)
            np.testing.assert_array_equal(compiled([fed])[0], expected)
