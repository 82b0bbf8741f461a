"""Products of weights with `reduce_range`, in the engines, against integers in NumPy: exact on CPUs with VNNI and without."""

from __future__ import annotations

import numpy as np
import onnxruntime as ort
import openvino
import pytest

from octobert.core.plan import Quantizer
from octobert.graph import qdq
from tests.support.products import INPUTS, product, weights

pytestmark = pytest.mark.kernels


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
