"""Fake quantization in PyTorch: values are rounded to 8-bit codes and stay floats; gradients pass straight through.

Scales, zero points and limits are those that `graph.qdq` writes, so the trained model computes what the exported one does.
Needs torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from octobert.core.plan import LIMITS, Quantizer
from octobert.graph.qdq import MIN_SCALE, activation_parameters, pair_sums, within_pairs
from octobert.training.distributed import is_connected

# A bound of a range that has seen no data.
_UNKNOWN = float("nan")


class FakeQuantize(torch.autograd.Function):
    """Round x to 8-bit codes. The gradient is 1 inside the range and 0 where x is clipped (straight-through estimator)."""

    @staticmethod
    def forward(
        ctx: Any, x: Any, scale: Any, lowest: int | None = None, highest: int | None = None
    ) -> Any:
        """Return the dequantized codes of x.

        Args:
            ctx: of torch.
            x: tensor of any shape.
            scale: a number, or a tensor that broadcasts against x.
            lowest: smallest code, minus the zero point; None for a range that holds all of x, so that nothing is saved.
            highest: largest code, minus the zero point.
        """
        codes = (x / scale).round_()
        if lowest is not None:
            ctx.save_for_backward((codes >= lowest) & (codes <= highest))
            codes.clamp_(lowest, highest)
        return codes.mul_(scale)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        for inside in ctx.saved_tensors:
            gradient = gradient * inside
        return gradient, None, None, None


class FakeQuantizeLearned(torch.autograd.Function):
    """`FakeQuantize` with gradients for the bounds of the range: learned step size quantization, for two bounds.

    Inside the range, x̂ − x is the rounding error e in scales, and a scale is (high − low) / levels: ∂x̂/∂high = e / levels =
    −∂x̂/∂low. Outside, x̂ is one of the bounds. A symmetric range has one bound, and its scale is bound / highest.

    Source: Esser et al., Learned Step Size Quantization, 2020; Bhalgat et al., LSQ+, 2020.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Any,
        low: Any,
        high: Any,
        scale: Any,
        lowest: int,
        highest: int,
        symmetric: bool,
    ) -> Any:
        scaled = x / scale
        codes = scaled.round()
        ctx.save_for_backward(scaled, codes, high)
        ctx.limits, ctx.symmetric = (lowest, highest), symmetric
        return codes.clamp(lowest, highest).mul_(scale)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        scaled, codes, high = ctx.saved_tensors
        lowest, highest = ctx.limits
        below, above = scaled < lowest, scaled > highest
        inside = ~(below | above)
        error = gradient * (codes - scaled) * inside
        at_low, at_high = gradient * below, gradient * above

        def total(values: Any) -> Any:
            return values.sum_to_size(high.shape) if high.dim() else values.sum()

        if ctx.symmetric:
            bound = total(error) / highest + total(at_high) - total(at_low)
            return gradient * inside, None, bound, None, None, None, None
        levels = highest - lowest
        by_error = total(error) / levels
        return (
            gradient * inside,
            total(at_low) - by_error,
            total(at_high) + by_error,
            None,
            None,
            None,
            None,
        )


class Codes(torch.autograd.Function):
    """The integers of a fake-quantized value; the gradient is that of a division by the scale."""

    @staticmethod
    def forward(ctx: Any, x: Any, scale: Any) -> Any:
        ctx.scale = scale
        return (x / scale).round_()

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return gradient / ctx.scale, None


def product_of_codes(
    product: Callable[..., Any], left: tuple[Any, Any], right: tuple[Any, Any], bias: Any = None
) -> Any:
    """Return a product of two fake-quantized values as runtimes compute it: of their integers, and scaled once.

    Where one of them is not quantized, it is the product of the values.

    A sum of integers below 2^24 is exact in float32, so it does not depend on the order of its terms. A product of the values
    themselves would round every term, and what is rounded next would land on the other side of a border now and then.

    Args:
        product: of two tensors, such as torch.matmul; with a bias, as torch.nn.functional.linear.
        left, right: (value, scale); None for the scale of a float value. A scale of several numbers, [out, 1], is that of the
            rows of a linear layer's weight.
        bias: of a linear layer, [out]; None without one.
    """
    (x, x_scale), (y, y_scale) = left, right
    device = x.device.type
    # Sums of codes are beyond the largest number of float16.
    is_narrow = (
        torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device) == torch.float16
    )
    if x_scale is None or y_scale is None or is_narrow:
        return product(x, y) if bias is None else product(x, y, bias)
    scale = x_scale * (y_scale.reshape(-1) if y_scale.dim() else y_scale)
    codes = product(Codes.apply(x, x_scale), Codes.apply(y, y_scale))  # type: ignore[no-untyped-call]
    return codes * scale if bias is None else codes * scale + bias


class ActivationRanges(torch.nn.Module):
    """The ranges of all quantized activations. As a module they are part of the model's state and of its checkpoints.

    Args:
        quantizers: one per range; `low` and `high` are the start, and None where the range is to be observed.
        learned: the bounds are trained, each as the logarithm of a factor.
    """

    def __init__(self, quantizers: Sequence[Quantizer], *, learned: bool) -> None:
        super().__init__()
        self.quantizers = tuple(quantizers)
        bounds = [
            (_UNKNOWN, _UNKNOWN) if q.low is None or q.high is None else (q.low, q.high)
            for q in quantizers
        ]
        start = torch.tensor(bounds, dtype=torch.float32).reshape(-1, 2)
        self.low: torch.Tensor
        self.high: torch.Tensor
        self.ceiling: torch.Tensor
        # In ONNX, 0 has to lie inside every range.
        self.register_buffer("low", start[:, 0].clamp(max=0.0))
        self.register_buffer("high", start[:, 1].clamp(min=0.0))
        ceilings = [float("inf") if q.ceiling is None else q.ceiling for q in quantizers]
        self.register_buffer("ceiling", torch.tensor(ceilings), persistent=False)
        self.symmetric = torch.tensor([q.symmetric for q in quantizers], dtype=torch.bool)
        if learned:
            self.log_low = torch.nn.Parameter(torch.zeros(len(quantizers)))
            self.log_high = torch.nn.Parameter(torch.zeros(len(quantizers)))
        self.learned = learned

    def bounds(self) -> tuple[Any, Any]:
        """Return the current lower [N] and upper [N] bounds; with gradients where they are learned."""
        if not self.learned:
            return self.low, self.high
        return self.low * self.log_low.exp(), torch.minimum(
            self.high * self.log_high.exp(), self.ceiling
        )

    def update(
        self, indices: Sequence[int], lows: Sequence[Any], highs: Sequence[Any], rate: float
    ) -> None:
        """Move ranges towards the values of a batch, as moving averages, equally in all processes.

        Args:
            indices: ranges that were observed; a range may occur several times.
            lows: minimum of each observation.
            highs: maximum of each observation.
            rate: update rate, from 0 to 1. A range without data takes the observed values.
        """
        count, device = len(self.quantizers), self.low.device
        observed = torch.full((2, count), float("inf"), device=device)
        if indices:
            where = torch.tensor(indices, device=device)
            observed[0].scatter_reduce_(0, where, torch.stack(list(lows)).float(), "amin")
            observed[1].scatter_reduce_(0, where, -torch.stack(list(highs)).float(), "amin")
        if is_connected():
            torch.distributed.all_reduce(observed, op=torch.distributed.ReduceOp.MIN)
        low, high = observed[0].clamp(max=0.0), (-observed[1]).clamp(min=0.0)
        bound = torch.maximum(-low, high)
        symmetric = self.symmetric.to(device)
        low = torch.where(symmetric, -bound, low)
        high = torch.minimum(torch.where(symmetric, bound, high), self.ceiling)
        has_data = ~torch.isinf(observed[0])
        for current, batch in ((self.low, low), (self.high, high)):
            moved = torch.where(current.isnan(), batch, current + rate * (batch - current))
            current.copy_(torch.where(has_data, moved, current))

    def parameters_of_quantization(self) -> list[tuple[float, int, int]]:
        """Return (scale, lowest, highest) of every range; see `quantization_parameters`."""
        low, high = (bounds.detach().cpu().tolist() for bounds in self.bounds())
        return [
            quantization_parameters(q, a, b)
            for q, a, b in zip(self.quantizers, low, high, strict=True)
        ]


def quantization_parameters(
    quantizer: Quantizer, low: float, high: float
) -> tuple[float, int, int]:
    """Return the scale, and the smallest and largest code minus the zero point, as the Q/DQ graph has them.

    Args:
        quantizer: its own range is ignored.
        low: lower bound of the range.
        high: upper bound of the range.

    Returns:
        (scale, lowest, highest); the scale is NaN for a range without data.
    """
    if np.isnan(low) or np.isnan(high):
        return _UNKNOWN, 0, 0
    scale, zero = activation_parameters(quantizer.replaced(low=low, high=high))
    # QuantizeLinear clips at the limits of the integer type.
    lowest, highest = LIMITS[quantizer.dtype]
    return float(scale), lowest - int(zero), highest - int(zero)


def weight_bound(weight: Any, quantizer: Quantizer) -> Any:
    """Return the bound of the range that holds all of a weight, as `graph.qdq.weight_scale` has it.

    Args:
        weight: [out, in].
        quantizer: of the weight. Its axis is that of the graph, where the weight is [in, out].

    Returns:
        [out, 1] per channel, or [] per tensor.
    """
    weight = weight.detach()
    size = weight.abs()
    if quantizer.limits_pairs:
        size = torch.maximum(size, pair_sums(weight.T).T.abs())
    return size.amax(dim=1, keepdim=True) if quantizer.axis is not None else size.amax()


def fake_quantize_weight(
    weight: Any, quantizer: Quantizer, bound: Any, *, clips: bool
) -> tuple[Any, Any]:
    """Fake-quantize a weight; return it with its scale, [] or [out, 1].

    Args:
        weight: [out, in].
        quantizer: of the weight.
        bound: of its symmetric range, [] or [out, 1]. With gradients, the bound is learned.
        clips: some values may lie outside the range.
    """
    highest = quantizer.weight_limits[1]
    scale = (bound / highest).clamp(min=MIN_SCALE)
    if clips and quantizer.limits_pairs:
        steps = scale.detach()
        weight = within_pairs((weight / steps).T).T * steps
    if bound.requires_grad:
        made = FakeQuantizeLearned.apply(  # type: ignore[no-untyped-call]
            weight, None, bound, scale.detach(), -highest, highest, True
        )
    else:
        limits = (-highest, highest) if clips else ()
        made = FakeQuantize.apply(weight, scale, *limits)  # type: ignore[no-untyped-call]
    return made, scale.detach()
