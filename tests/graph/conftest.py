"""Fixtures of the graph tests."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from octobert.data.encoded import feeds_of
from tests.support.graphs import encoded, outputs_of


@pytest.fixture
def model(float_path):
    return ir.load(float_path)


@pytest.fixture(scope="module")
def float_logits(float_path) -> np.ndarray:
    return outputs_of(float_path, feeds_of(encoded(), 0))
