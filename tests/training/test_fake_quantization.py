"""Fake quantization: values against the Q/DQ writer, gradients against their definition, moving and learned ranges."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from octobert.core.plan import Quantizer
from octobert.graph import qdq
from octobert.training.fake_quantization import (
    ActivationRanges,
    FakeQuantize,
    FakeQuantizeLearned,
    fake_quantize_weight,
    product_of_codes,
    quantization_parameters,
    weight_bound,
)

QUANTIZERS = (
    Quantizer(dtype="uint8", symmetric=False, low=-1.3, high=2.9),
    Quantizer(dtype="uint8", symmetric=True, low=-2.0, high=2.0),
    Quantizer(dtype="int8", symmetric=False, low=-0.17, high=6.0),
    Quantizer(dtype="int8", symmetric=True, low=-1.7, high=1.7),
    Quantizer(dtype="uint8", symmetric=False, low=0.0, high=1.0),
    Quantizer(dtype="uint16", symmetric=False, low=-3.0, high=1.0),
)


def values(seed: int = 0, count: int = 4000) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 1.5, count).astype(np.float32)


@pytest.mark.parametrize("quantizer", QUANTIZERS, ids=str)
def test_values_are_those_of_the_written_graph(quantizer: Quantizer) -> None:
    x = values()
    result = FakeQuantize.apply(
        torch.from_numpy(x), *quantization_parameters(quantizer, quantizer.low, quantizer.high)
    ).numpy()
    expected = qdq.rounded_activation(x, quantizer)
    np.testing.assert_allclose(
        result, expected, atol=1e-3 * float(qdq.activation_parameters(quantizer)[0])
    )


@pytest.mark.parametrize("axis", [None, 1])
@pytest.mark.parametrize("reduced", [False, True])
def test_weights_are_those_of_the_written_graph(axis: int | None, reduced: bool) -> None:
    """The graph has [in, out], PyTorch [out, in]."""
    quantizer = Quantizer(dtype="int8", symmetric=True, axis=axis, reduce_range=reduced)
    weight = torch.from_numpy(values(1, 24 * 16).reshape(24, 16))
    bound = weight_bound(weight, quantizer)
    for part in (1.0, 0.7):
        made, used = fake_quantize_weight(weight, quantizer, bound * part, clips=part < 1)
        result = made.numpy()
        np.testing.assert_allclose(used, bound * part / 127, rtol=1e-6)
        scale = (bound * part / 127).numpy().reshape((24,) if axis else ())
        written = qdq.dequantized_weight(weight.numpy().T, quantizer, scale).T
        np.testing.assert_allclose(result, written, atol=1e-6)
    np.testing.assert_allclose(
        (bound / 127).numpy().squeeze(), qdq.weight_scale(weight.numpy().T, quantizer), rtol=1e-6
    )


def test_the_gradient_passes_straight_through_inside_and_stops_outside() -> None:
    x = torch.tensor([-5.0, -1.0, 0.3, 1.0, 5.0], requires_grad=True)
    FakeQuantize.apply(x, 0.1, -20, 30).sum().backward()
    assert x.grad.tolist() == [0.0, 1.0, 1.0, 1.0, 0.0]
    y = torch.tensor([-5.0, 5.0], requires_grad=True)
    FakeQuantize.apply(y, torch.tensor(0.1)).sum().backward()
    assert y.grad.tolist() == [1.0, 1.0]


def smooth(x: np.ndarray, low: float, high: float, levels: int, codes: np.ndarray) -> float:
    """What a straight-through estimator differentiates: each code's distance from x / s is a constant."""
    scale = (high - low) / levels
    return float(np.sum(np.where(x < low, low, np.where(x > high, high, x + codes * scale))))


def test_gradients_of_learned_ends_against_finite_differences() -> None:
    low, high, levels = -1.0, 1.55, 255
    scale = (high - low) / levels
    zero = round(-low / scale)
    # Away from the ends by more than the finite difference moves them.
    x = np.array(
        [v for v in values(2, 500) if min(abs(v - low), abs(v - high)) > 0.02], dtype=np.float64
    )
    codes = np.round(x / scale) - x / scale
    tensors = [torch.tensor(v, dtype=torch.float64, requires_grad=True) for v in (low, high)]
    tensor = torch.from_numpy(x).requires_grad_()
    FakeQuantizeLearned.apply(tensor, *tensors, scale, -zero, levels - zero, False).sum().backward()
    step = 1e-4
    for index, end in enumerate(tensors):
        ends = [[low, high], [low, high]]
        ends[0][index] -= step
        ends[1][index] += step
        less, more = (smooth(x, *pair, levels, codes) for pair in ends)
        assert float(end.grad) == pytest.approx((more - less) / (2 * step), rel=1e-6)
    assert tensor.grad.tolist() == [float(low <= v <= high) for v in x]


def test_the_gradient_of_a_symmetric_bound_is_that_of_lsq() -> None:
    """∂x̂/∂s = round(x/s) - x/s inside, ±highest outside, and a bound is highest steps."""
    x = torch.from_numpy(values(3, 300).astype(np.float64)).requires_grad_()
    bound, highest = torch.tensor(1.2, dtype=torch.float64, requires_grad=True), 127
    scale = 1.2 / highest
    FakeQuantizeLearned.apply(x, None, bound, scale, -highest, highest, True).sum().backward()
    steps = x.detach().numpy() / scale
    by_scale = np.where(
        steps > highest, highest, np.where(steps < -highest, -highest, np.round(steps) - steps)
    )
    assert float(bound.grad) == pytest.approx(by_scale.sum() / highest, rel=1e-9)


def test_learned_bounds_of_channels_have_gradients_of_their_own() -> None:
    weight = torch.from_numpy(values(4, 60).reshape(3, 20)).requires_grad_()
    bound = torch.tensor([[1.0], [2.0], [3.0]], requires_grad=True)
    quantizer = Quantizer(dtype="int8", symmetric=True, axis=1)
    fake_quantize_weight(weight, quantizer, bound, clips=True)[0].sum().backward()
    assert bound.grad.shape == (3, 1)
    alone = torch.tensor([[2.0]], requires_grad=True)
    fake_quantize_weight(weight.detach()[1:2], quantizer, alone, clips=True)[0].sum().backward()
    torch.testing.assert_close(bound.grad[1:2], alone.grad)


@pytest.mark.parametrize("per_channel", [True, False])
def test_products_are_those_of_integers_whatever_the_order_of_a_sum(per_channel: bool) -> None:
    """As runtimes compute them; the gradients are those of the product of the values."""
    rows, inputs, outputs = 5, 768, 7
    generator = np.random.default_rng(0)
    codes = (
        generator.integers(-128, 128, (rows, inputs)),
        generator.integers(-127, 128, (outputs, inputs)),
    )
    scales = (
        torch.tensor(0.0137),
        torch.from_numpy(
            generator.uniform(1e-3, 1e-2, (outputs, 1) if per_channel else ()).astype(np.float32)
        ),
    )
    x, w = (
        (torch.from_numpy(c.astype(np.float32)) * s).requires_grad_()
        for c, s in zip(codes, scales, strict=True)
    )
    product = product_of_codes(F.linear, (x, scales[0]), (w, scales[1]))
    total = (codes[0] @ codes[1].T).astype(np.float32)
    expected = (
        total
        * (scales[0] * scales[1].reshape(-1) if per_channel else scales[0] * scales[1]).numpy()
    )
    np.testing.assert_array_equal(product.detach().numpy(), expected)
    turned = torch.arange(inputs).flip(0)
    again = product_of_codes(F.linear, (x[:, turned], scales[0]), (w[:, turned], scales[1]))
    assert torch.equal(product, again)
    gradients = torch.autograd.grad(product.sum(), (x, w))
    for found, known in zip(
        gradients, torch.autograd.grad(F.linear(x, w).sum(), (x, w)), strict=True
    ):
        torch.testing.assert_close(found, known, rtol=1e-5, atol=1e-5)


def test_a_moving_average_goes_its_share_and_leaves_what_it_did_not_see() -> None:
    ranges = ActivationRanges(QUANTIZERS[:2], learned=False)
    ranges.update(
        [0, 0],
        [torch.tensor(-2.3), torch.tensor(-0.1)],
        [torch.tensor(1.9), torch.tensor(0.9)],
        0.1,
    )
    low, high = ranges.bounds()
    assert low.tolist() == pytest.approx([-1.3 - 0.1 * 1.0, -2.0])
    assert high.tolist() == pytest.approx([2.9 - 0.1 * 1.0, 2.0])


def test_a_range_that_is_not_known_is_what_is_seen_first_and_holds_zero() -> None:
    ranges = ActivationRanges(
        [Quantizer(dtype="uint8", symmetric=False), Quantizer(dtype="int8", symmetric=True)],
        learned=False,
    )
    assert np.isnan(ranges.parameters_of_quantization()[0][0])
    ranges.update(
        [0, 1],
        [torch.tensor(0.5), torch.tensor(-3.0)],
        [torch.tensor(2.0), torch.tensor(1.0)],
        0.01,
    )
    assert [end.tolist() for end in ranges.bounds()] == [[0.0, -3.0], [2.0, 3.0]]


def test_a_ceiling_holds_whatever_is_observed_or_learned() -> None:
    clipped = Quantizer(dtype="uint8", symmetric=False, low=-0.1, high=4.0, ceiling=5.0)
    observed = ActivationRanges([clipped], learned=False)
    for _ in range(50):
        observed.update([0], [torch.tensor(-0.1)], [torch.tensor(90.0)], 0.5)
    assert observed.bounds()[1].tolist() == [5.0]
    learned = ActivationRanges([clipped], learned=True)
    with torch.no_grad():
        learned.log_high += 3.0
    assert learned.bounds()[1].tolist() == [5.0]


def test_sums_of_codes_do_not_overflow_where_training_computes_in_float16() -> None:
    scale = torch.tensor(0.01)
    x, w = torch.full((2, 768), 2.55), torch.full((3, 768), 1.27)
    with torch.autocast("cpu", dtype=torch.float16):
        product = product_of_codes(F.linear, (x, scale), (w, scale))
    torch.testing.assert_close(product.float(), F.linear(x, w), rtol=2e-3, atol=0)
