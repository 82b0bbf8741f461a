"""Sessions that read weights where they are: as the session of the file."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest

from octobert.data.encoded import feeds_of
from octobert.graph import operators
from octobert.graph.capture import shapes
from tests.support.graphs import encoded, plain_session


@pytest.fixture
def model(float_path, tmp_path) -> ir.Model:
    """A graph whose constants are in a file beside it, two of which nothing reads, one of a type that NumPy does not have."""
    model = ir.load(float_path)
    for name, array in (
        ("unread", np.ones((64, 64), np.float32)),
        ("unread.half", np.ones((64, 64), ml_dtypes.bfloat16)),
    ):
        operators.initializer(model.graph, name, array)
    ir.save(model, tmp_path / "model.onnx", external_data="model.onnx.data")
    return ir.load(tmp_path / "model.onnx")


def test_answers_are_those_of_the_file(model, float_path) -> None:
    before = operators.initializer_bytes(model)
    session, feeds = shapes.open_session(model, optimized=False), feeds_of(encoded(), 0)
    fed = {value.name: feeds[value.name] for value in session.get_inputs()}
    np.testing.assert_array_equal(
        session.run(None, fed)[0], plain_session(float_path).run(None, fed)[0]
    )
    assert operators.initializer_bytes(model) == before
    again = shapes.open_session(model, [model.graph.node(5).outputs[0]])
    assert [value.name for value in again.get_outputs()] == [model.graph.node(5).outputs[0].name]
    assert session.run(None, fed)[0].shape == (len(encoded()), 2)


def test_weights_are_not_in_the_file(model) -> None:
    """Those of a file stay there, and the others come beside it."""
    file, weights, folder = operators.in_memory(model, list(model.graph.outputs))
    assert (weights, len(file) < 150_000) == ({}, True)
    assert (Path(folder) / "model.onnx.data").is_file()
    ir.external_data.load_to_model(model)
    file, weights, folder = operators.in_memory(model, list(model.graph.outputs))
    assert folder is None
    # What nothing reads, and what is no weight, stays in it.
    assert len(file) < 150_000
    assert "unread" not in weights
    assert sum(array.nbytes for array in weights.values()) > len(file)
    for name, array in weights.items():
        np.testing.assert_array_equal(array, model.graph.initializers[name].const_value.numpy())


def test_weights_that_were_changed_are_not_those_of_the_file(model) -> None:
    feeds = feeds_of(encoded(), 0)

    def answers() -> np.ndarray:
        session = shapes.open_session(model)
        return session.run(None, {v.name: feeds[v.name] for v in session.get_inputs()})[0]

    weight = max(
        model.graph.initializers.values(),
        key=lambda value: len(value.uses()) * value.const_value.nbytes,
    )
    before, twice = answers(), 2 * weight.const_value.numpy()
    weight.const_value = ir.tensor(twice, name=weight.name)
    _, weights, folder = operators.in_memory(model, list(model.graph.outputs))
    assert (list(weights), folder is None) == ([weight.name], False)
    changed = answers()
    assert np.abs(changed - before).max() > 1e-3
    ir.external_data.load_to_model(model)
    np.testing.assert_allclose(answers(), changed, rtol=0, atol=1e-6)


def test_a_session_goes_when_nobody_has_it(model) -> None:
    """One that refers to itself keeps a copy of all weights until the garbage is collected, which may be never."""
    gc.disable()
    try:
        session = shapes.open_session(model)
        gone = weakref.ref(session)
        del session
        assert gone() is None
    finally:
        gc.enable()
