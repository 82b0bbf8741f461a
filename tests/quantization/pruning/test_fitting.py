"""Moments and fitting on tiny models of all kinds of layers, against NumPy."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from octobert.data.tokenization import Encoded
from octobert.graph import cutting, operators, parts, sites
from octobert.quantization import observer
from octobert.quantization.pruning import fitting, removal

# Float32 sums within a batch, against float64 sums over all tokens.
SUMMED = 1e-5
# Solutions of normal equations whose sums are rounded to float32, relative to the largest weight.
SOLVED = 2e-3
DAMPING = 0.01
# Random weights have little to fit: the largest share of the error of before that is left in any family, with some room.
BETTER = 0.95
generator = np.random.default_rng(3)
ROWS = [
    Encoded(generator.integers(4, 90, n), np.zeros(n, dtype=np.int64), False)
    for n in generator.integers(3, 40, 90)
]
HELD_OUT = [
    Encoded(generator.integers(4, 90, n), np.zeros(n, dtype=np.int64), False)
    for n in generator.integers(3, 40, 30)
]


def linear(graph: ir.Graph, module: str) -> parts.Linear:
    return parts.linear_at(sites.linear_node({str(node.name): node for node in graph}, module))


def values(path, names: list[str], rows: list[Encoded] = ROWS) -> dict[str, np.ndarray]:
    """Values of all tokens [N, C]."""
    found: dict[str, list] = {name: [None] * len(rows) for name in names}

    def take(name, indices, arrays) -> None:
        for index, array in zip(indices, arrays, strict=True):
            found[name][index] = array.astype(np.float64)

    observer.stream(path, rows, 0, names, take)
    return {name: np.concatenate(arrays) for name, arrays in found.items()}


def pruned(result, path, keep: float) -> tuple[ir.Model, list, list]:
    """A model that keeps a share of each sublayer's units; the first sublayer stays whole, the second to last is gone."""
    model = ir.load(path)
    sublayers, _ = cutting.find(model.graph, result.family)
    names = {each.module: str(linear(model.graph, each.module).x.name) for each in sublayers}
    collected = removal.moments(path, ROWS, 0, sorted(set(names.values())))
    levels = []
    for each in sublayers:
        units = {sublayers[-2].module: 0, sublayers[0].module: each.units}.get(
            each.module, int(each.units * keep)
        )
        own = linear(model.graph, each.module)
        weight, bias = operators.constant_of(own.weight), operators.const_array(own.bias)
        bias = np.zeros(weight.shape[1]) if bias is None else bias
        levels += removal.removed(
            collected[names[each.module]].products, weight, bias, each.width, [units], DAMPING
        )
    cutting.cut_(
        model,
        result.family,
        {each.module: level.kept for each, level in zip(sublayers, levels, strict=True)},
    )
    constants = {
        each.module: (level.weight, level.bias)
        for each, level in zip(sublayers, levels, strict=True)
    }
    cutting.outputs_(model, constants)
    return model, sublayers, levels


def test_moments_are_sums_over_real_tokens(float_path, bert) -> None:
    name = str(linear(bert.model.graph, "encoder.layer.1.output.dense").x.name)
    found = removal.moments(float_path, ROWS, 0, [name])[name]
    x = values(float_path, [name])[name]
    ones = np.concatenate([x, np.ones((len(x), 1))], axis=1)
    assert found.count == len(x) == sum(map(len, ROWS))
    np.testing.assert_allclose(found.products, ones.T @ ones, rtol=SUMMED, atol=SUMMED * len(x))


@pytest.mark.parametrize("family", ["bert", "modernbert", "mobilebert"])
def test_fitting_brings_the_residual_sums_back(captured, family: str, tmp_path) -> None:
    result, path = captured(family), tmp_path / "whole.onnx"
    operators.save(result.model, path)
    model, sublayers, _ = pruned(result, path, 0.75)
    whole = ir.load(path)
    (end,) = operators.readers(linear(whole.graph, sublayers[-1].module).y)
    state = str(end.outputs[0].name)
    before = tmp_path / "before.onnx"
    operators.save(model, before)
    done: list[tuple[int, int]] = []
    errors = fitting.refit_(
        model,
        whole,
        sublayers,
        ROWS,
        0,
        damping=DAMPING,
        progress=lambda *counts: done.append(counts),
    )
    after = tmp_path / "after.onnx"
    operators.save(model, after)
    assert done == [(i + 1, len(sublayers)) for i in range(len(sublayers))]
    assert errors[sublayers[0].module] == 0 < errors[sublayers[1].module] < 1
    for rows in (ROWS, HELD_OUT):
        expected = values(path, [state], rows)[state]
        lost = [
            np.mean((values(each, [state], rows)[state] - expected) ** 2)
            for each in (before, after)
        ]
        assert lost[1] < BETTER * lost[0]


def test_a_projection_solves_least_squares_over_the_inputs_that_it_gets(
    bert, float_path, tmp_path
) -> None:
    """The second feed-forward reads what the pruned first layer gives, and no attention."""
    model, sublayers, levels = pruned(bert, float_path, 0.5)
    fitting.refit_(model, ir.load(float_path), sublayers, ROWS, 0, damping=DAMPING)
    path = tmp_path / "fitted.onnx"
    operators.save(model, path)
    module = sublayers[3].module
    own, add = linear(model.graph, module), "encoder.layer.1.output.LayerNorm.input"
    skip = "encoder.layer.1.attention.output.LayerNorm"
    found = values(path, [str(own.x.name), skip])
    x, target = found[str(own.x.name)], values(float_path, [add])[add] - found[skip]
    weight, bias = levels[3].weight.astype(np.float64), levels[3].bias.astype(np.float64)
    energy = DAMPING * np.mean(x**2) * len(x)
    inputs = np.concatenate(
        [
            np.concatenate([x, np.ones((len(x), 1))], axis=1),
            np.sqrt(energy) * np.eye(x.shape[1] + 1)[:-1],
        ]
    )
    outputs = np.concatenate([target - x @ weight - bias, np.zeros((x.shape[1], target.shape[1]))])
    change = np.linalg.lstsq(inputs, outputs, rcond=None)[0]
    scale = np.abs(weight).max()
    np.testing.assert_allclose(
        operators.constant_of(own.weight), weight + change[:-1], atol=SOLVED * scale
    )
    np.testing.assert_allclose(
        operators.constant_of(own.bias), bias + change[-1], atol=SOLVED * scale
    )
