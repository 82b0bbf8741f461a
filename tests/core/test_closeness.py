"""Closeness of two models: the figures, and when they are called far."""

from __future__ import annotations

import numpy as np
import pytest

from octobert.core.closeness import Closeness


def test_the_figures_are_those_of_numpy_and_the_farthest_texts_come_first() -> None:
    values = np.random.default_rng(0).uniform(0.9, 1, 200)
    found = Closeness.of("cosine", values, [(f"a{i}", f"b{i}") for i in range(200)])
    assert (found.texts, found.mean, found.least) == (200, values.mean(), values.min())
    assert found.low == np.quantile(values, 0.01)
    order = np.argsort(values)[:3]
    assert [each.text for each in found.worst] == [f"a{i} b{i}" for i in order]
    assert f"at least {values.min():.3f}" in str(found)


@pytest.mark.parametrize(
    ("measure", "near", "far"),
    [
        ("cosine", 0.99, 0.97),
        ("1 - change of a probability", 0.9, 0.7),
        ("1 - relative error", 0.8, 0.5),
    ],
)
def test_what_is_far_says_what_to_do(measure, near: float, far: float) -> None:
    for value, is_far in ((near, False), (far, True)):
        found = Closeness.of(measure, np.full(5, value), [("a",)] * 5)
        assert found.far is is_far
        assert ("calibrate on rows like them" in str(found)) is is_far
