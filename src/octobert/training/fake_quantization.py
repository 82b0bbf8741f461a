"""Fake quantization in PyTorch: values are rounded to what 8 bits can hold and stay floats; gradients pass straight through.

Scales, zero points and limits are those that `graph.qdq` writes, so that what was trained is what runs. Needs torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from octobert.core.plan import LIMITS, Quantizer
from octobert.graph.qdq import MIN_SCALE, activation_parameters

# Where a range is not known yet.
_UNKNOWN = float("nan")


class Rounded(torch.autograd.Function):
    """x → its 8-bit value. The gradient is 1 inside the range and 0 where x was clipped (straight-through estimator)."""

    @staticmethod
    def forward(ctx: Any, x: Any, scale: Any, lowest: int, highest: int) -> Any:
        """`scale` is a number, or a tensor that broadcasts; the limits have no zero point in them."""
        found = (x / scale).round_()
        inside = (found >= lowest) & (found <= highest)
        ctx.save_for_backward(inside)
        return found.clamp_(lowest, highest).mul_(scale)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        (inside,) = ctx.saved_tensors
        return gradient * inside, None, None, None


class RoundedWhole(torch.autograd.Function):
    """As `Rounded`, for a range that holds all of x: nothing is clipped, so nothing is remembered."""

    @staticmethod
    def forward(ctx: Any, x: Any, scale: Any) -> Any:
        return (x / scale).round_().mul_(scale)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return gradient, None


class RoundedLearned(torch.autograd.Function):
    """As `Rounded`, with gradients for the ends of the range: learned step size quantization, by its two ends.

    Inside, x̂ − x is the rounding error e in steps, and a step is (high − low) / levels: ∂x̂/∂high = e / levels = −∂x̂/∂low.
    Outside, x̂ is an end itself. A symmetric range has one end, its bound, with a step of bound / highest.
    Source: Esser et al., Learned Step Size Quantization, 2020; Bhalgat et al., LSQ+, 2020.
    """

    @staticmethod
    def forward(ctx: Any, x: Any, low: Any, high: Any, scale: Any, lowest: int, highest: int, symmetric: bool) -> Any:
        steps = x / scale
        found = steps.round()
        ctx.save_for_backward(steps, found, high)
        ctx.limits, ctx.symmetric = (lowest, highest), symmetric
        return found.clamp(lowest, highest).mul_(scale)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        steps, found, high = ctx.saved_tensors
        lowest, highest = ctx.limits
        below, above = steps < lowest, steps > highest
        inside = ~(below | above)
        error = gradient * (found - steps) * inside
        at_low, at_high = gradient * below, gradient * above

        def total(values: Any) -> Any:
            return values.sum_to_size(high.shape) if high.dim() else values.sum()

        if ctx.symmetric:
            bound = total(error) / highest + total(at_high) - total(at_low)
            return gradient * inside, None, bound, None, None, None, None
        levels = highest - lowest
        own = total(error) / levels
        return gradient * inside, total(at_low) - own, total(at_high) + own, None, None, None, None


class Ranges(torch.nn.Module):
    """The ranges of all quantized activations, as a part of the model's state: its checkpoints hold them.

    Args:
        quantizers: one a range, with the range to begin with, or none where it is to be observed.
        learned: the ends are parameters, by the logarithm of what they are multiplied with.
    """

    def __init__(self, quantizers: Sequence[Quantizer], *, learned: bool) -> None:
        super().__init__()
        self.quantizers = tuple(quantizers)
        ends = [(_UNKNOWN, _UNKNOWN) if q.low is None or q.high is None else (q.low, q.high) for q in quantizers]
        start = torch.tensor(ends, dtype=torch.float32).reshape(-1, 2)
        self.low: torch.Tensor
        self.high: torch.Tensor
        self.ceiling: torch.Tensor
        # ONNX wants 0 inside of every range.
        self.register_buffer("low", start[:, 0].clamp(max=0.0))
        self.register_buffer("high", start[:, 1].clamp(min=0.0))
        ceilings = [float("inf") if q.ceiling is None else q.ceiling for q in quantizers]
        self.register_buffer("ceiling", torch.tensor(ceilings), persistent=False)
        self.symmetric = torch.tensor([q.symmetric for q in quantizers], dtype=torch.bool)
        if learned:
            self.log_low = torch.nn.Parameter(torch.zeros(len(quantizers)))
            self.log_high = torch.nn.Parameter(torch.zeros(len(quantizers)))
        self.learned = learned

    def ends(self) -> tuple[Any, Any]:
        """[n] lower and [n] upper ends as they are now; with gradients where they are learned."""
        if not self.learned:
            return self.low, self.high
        return self.low * self.log_low.exp(), torch.minimum(self.high * self.log_high.exp(), self.ceiling)

    def follow(self, indices: Sequence[int], lows: Sequence[Any], highs: Sequence[Any], share: float) -> None:
        """Move ranges towards what a batch had in them: moving averages, the same in all processes.

        Args:
            indices, lows, highs: what was seen, several times for one range or never.
            share: of the way that is gone; a range that is not known yet is what was seen.
        """
        count, device = len(self.quantizers), self.low.device
        found = torch.full((2, count), float("inf"), device=device)
        if indices:
            where = torch.tensor(indices, device=device)
            found[0].scatter_reduce_(0, where, torch.stack(list(lows)).float(), "amin")
            found[1].scatter_reduce_(0, where, -torch.stack(list(highs)).float(), "amin")
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.all_reduce(found, op=torch.distributed.ReduceOp.MIN)
        low, high = found[0].clamp(max=0.0), (-found[1]).clamp(min=0.0)
        bound = torch.maximum(-low, high)
        symmetric = self.symmetric.to(device)
        low, high = torch.where(symmetric, -bound, low), torch.minimum(torch.where(symmetric, bound, high), self.ceiling)
        seen = ~torch.isinf(found[0])
        for mine, theirs in ((self.low, low), (self.high, high)):
            moved = torch.where(mine.isnan(), theirs, mine + share * (theirs - mine))
            mine.copy_(torch.where(seen, moved, mine))

    def parameters_now(self) -> list[tuple[float, int, int]]:
        """(scale, lowest, highest) of every range; the limits have the zero point taken out of them."""
        low, high = (ends.detach().cpu().tolist() for ends in self.ends())
        return [rounding_of(q, a, b) for q, a, b in zip(self.quantizers, low, high, strict=True)]


def rounding_of(quantizer: Quantizer, low: float, high: float) -> tuple[float, int, int]:
    """(scale, lowest, highest) of a range, as the writer of Q/DQ has them."""
    if np.isnan(low) or np.isnan(high):
        return _UNKNOWN, 0, 0
    scale, zero = activation_parameters(quantizer.model_copy(update={"low": low, "high": high}))
    # As in `qdq.rounded_activation`: the type's own limits.
    lowest, highest = LIMITS[quantizer.dtype]
    return float(scale), lowest - int(zero), highest - int(zero)


def weight_bound(weight: Any, axis: int | None) -> Any:
    """The largest absolute value of a weight [out, in]: of each row, [out, 1], or of all of it.

    `axis` is that of the graph's weights, which are [in, out].
    """
    size = weight.detach().abs()
    return size.amax(dim=1, keepdim=True) if axis is not None else size.amax()


def rounded_weight(weight: Any, quantizer: Quantizer, bound: Any, *, clips: bool) -> Any:
    """A weight in 8 bits, for the bound of its range."""
    highest = quantizer.weight_limits[1]
    scale = (bound / highest).clamp(min=MIN_SCALE)
    if bound.requires_grad:
        return RoundedLearned.apply(weight, None, bound, scale.detach(), -highest, highest, True)
    return Rounded.apply(weight, scale, -highest, highest) if clips else RoundedWhole.apply(weight, scale)
