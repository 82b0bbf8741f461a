"""Outlier neurons in float: found where they are, worth it by the expected error, and nothing else changes."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from octobert.core.ranges import Sample
from octobert.graph import operators, smoothing
from octobert.quantization.transforms import outlier_neurons
from tests.support.graphs import largest_error, outputs_on_batches

# A feed-forward in two sums is rounded once more.
ROUNDING = 2e-5
# The estimate leaves out the mean error, which a bias takes.
ESTIMATE = 0.3
CHANNELS, PLANTED = 512, 5


def sample(outliers: float) -> tuple[Sample, np.ndarray, np.ndarray]:
    """(A sample of neurons, weights of what reads them, the planted neurons: in one token of eight they are far larger)."""
    generator = np.random.default_rng(0)
    rows = np.abs(generator.normal(0, 1, (400, CHANNELS))).astype(np.float32)
    planted = np.sort(generator.permutation(CHANNELS)[:PLANTED])
    rows[::8, planted] += outliers
    weight = generator.normal(0, 0.05, (CHANNELS, 64)).astype(np.float32)
    return Sample(rows.min(axis=0), rows.max(axis=0), rows), weight, planted


def test_those_far_above_the_rest_are_found() -> None:
    values, weight, planted = sample(60.0)
    neurons, errors = outlier_neurons._chosen(values, weight, 1 / 3)
    assert set(planted) <= set(neurons)
    assert len(neurons) == 8
    left = product_error(values, weight, neurons) / product_error(values, weight, [])
    assert left < 0.15
    assert errors[-1] / errors[0] == pytest.approx(left, rel=ESTIMATE)


def product_error(values: Sample, weight: np.ndarray, apart) -> float:
    """The mean square error of a product whose activations have 255 steps and whose weights have 127 for each channel."""
    x, w = values.rows.astype(np.float64).copy(), weight.astype(np.float64).copy()
    branch = x[:, apart] @ w[apart]
    x[:, apart], w[apart] = 0, 0
    scales = np.sqrt(np.maximum(x.max(axis=0), 1e-5) / np.maximum(np.abs(w).max(axis=1), 1e-5))
    x, w = x / scales, w * scales[:, None]
    step, steps = x.max() / 255, np.abs(w).max(axis=0) / 127
    rounded = np.rint(x / step) * step @ (np.rint(w / steps) * steps)
    return float(np.mean((rounded + branch - values.rows.astype(np.float64) @ weight) ** 2))


def test_neurons_like_the_others_stay() -> None:
    values, weight, _ = sample(0.0)
    neurons, errors = outlier_neurons._chosen(values, weight, 1 / 3)
    assert not len(neurons)
    assert len(errors) == 1


@pytest.mark.parametrize("family", ["bert", "modernbert", "distilbert"])
def test_planted_neurons_move_and_the_function_stays(captured, family: str, tmp_path) -> None:
    """Also those of gated feed-forwards: their gate and their value move with them."""
    result = captured(family)
    operators.save(result.model, tmp_path / "whole.onnx")
    model = ir.load(tmp_path / "whole.onnx")
    apart = outlier_neurons.OutlierNeurons()
    ffn = outlier_neurons._places(model.graph, result.family)
    expected = outputs_on_batches(model, tmp_path, 1)
    planted = {}
    generator, samples = np.random.default_rng(1), {}
    for place, module in ffn:
        width = smoothing.weight_of(model.graph, module).shape[0]
        rows = generator.normal(0, 1, (256, width)).astype(np.float32)
        planted[module] = generator.permutation(width)[:3]
        rows[::16, planted[module]] += 80
        samples[place.value] = Sample(rows.min(axis=0), rows.max(axis=0), rows)
    assert sorted(samples) == apart.values(model.graph, result.family)
    records = apart.transform_(model, result.family, samples, lambda *_: None)
    assert [record["module"] for record in records] == [module for _, module in ffn]
    for record in records:
        weight = smoothing.weight_of(model.graph, record["module"])
        assert not weight[planted[record["module"]]].any()
        assert record["channels"][1].max() < record["channels"][0].max() / 4
    for ours, theirs in zip(outputs_on_batches(model, tmp_path, 1), expected, strict=True):
        assert largest_error(ours, theirs) < ROUNDING
    whole = len(ffn)
    assert apart.summary(records) == f"8 neurons in float in {whole} of {whole} feed-forwards"
