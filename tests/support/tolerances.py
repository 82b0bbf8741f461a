"""Tolerances of tests that compare one quantized graph in two kernels, and the reasons for them."""

from __future__ import annotations

import numpy as np

# Sums of float32 in another order: outputs of size one, a few hundred roundings.
SUM_ORDER = 2e-5


def assert_same_rounding(ours: np.ndarray, theirs: np.ndarray, floats: np.ndarray) -> None:
    """Check that two results of one quantized graph differ only where a value rounds to the other of two 8-bit numbers.

    A row of tokens has some ten thousand 8-bit values. Summed in another order, a float32 value moves by 1e-6 of a quantization
    step, so about one row in five has a value that is that near to the middle between two 8-bit numbers, and rounds to the other
    one. One step of one value can move an output by a large part of what 8 bits move it in all. Therefore most rows must agree to
    float32, and no row may move by more than rounding to 8 bits moves an output.

    Args:
        ours, theirs: [rows, …] outputs of the quantized graph.
        floats: [rows, …] outputs of the float graph.
    """
    difference = np.abs(ours - theirs).reshape(len(ours), -1).max(axis=1)
    assert np.median(difference) < SUM_ORDER, difference
    assert difference.max() < np.abs(theirs - floats).max(), difference
