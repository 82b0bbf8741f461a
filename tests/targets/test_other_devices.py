"""A plan of another device on this CPU, where the user chose that: its products may not saturate."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from octobert.core import environment
from octobert.core.session import SessionOptions
from octobert.targets.runtimes.openvino import OpenvinoSession
from tests.support.products import product, weights

pytestmark = pytest.mark.kernels


@pytest.mark.parametrize("features", [None, ("ssse3", "avx2"), ("ssse3",)])
@pytest.mark.parametrize("device", ["GPU", "NPU"])
def test_products_of_other_devices_are_exact_on_the_cpu(
    tmp_path: Path, monkeypatch, device: str, features: tuple[str, ...] | None
) -> None:
    if features is not None:
        monkeypatch.setattr(environment, "features", lambda: features)
    weight = np.clip(np.rint(weights(64, 48) * 60), -127, 127).astype(np.int8)
    (tmp_path / "model.onnx").write_bytes(product(weight, "int8"))
    session = OpenvinoSession(tmp_path / "model.onnx", SessionOptions(device="CPU"), device)
    x = np.random.default_rng(0).choice([-128, 127], (5, 64)).astype(np.float32)
    np.testing.assert_array_equal(session.run({"x": x})["y"], x @ weight)
    if features is not None:
        kernels = {
            node.get_rt_info()["primitiveType"].astype(str)
            for node in session._compiled.get_runtime_model().get_ordered_ops()
        }
        assert not any("i8" in kernel for kernel in kernels if "gemm" in kernel or "brg" in kernel)
