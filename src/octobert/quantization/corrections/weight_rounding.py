"""Round weights so that the output for the 8-bit inputs stays close to the float output (GPTQ).

Weights are rounded one input channel at a time, in order of decreasing energy, and each rounding error is spread over the
channels that are not yet rounded. The bias takes the mean error of weights and inputs; without a bias, it counts as the rest
does. The error of the inputs around their mean is not compensated by other weights: fitted to calibration rows, that loses
more on all other texts (docs/evidence/accuracy.md).

Source: Frantar et al. 2022, arXiv:2210.17323.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import ClassVar

import numpy as np
from pydantic import Field

from octobert.graph import qdq
from octobert.quantization.corrections import Correction, LinearLayer, Moments

# Input channels that get the errors of all before them by one matrix product.
_BLOCK = 32


class WeightRounding(Correction):
    """Weights that are rounded with data.

    Args:
        damping: added to the energy of each channel, as a share of the mean energy; limits the effect of chance correlations.
    """

    needs_products: ClassVar[bool] = True

    damping: float = Field(default=0.2, gt=0, le=10)

    def correct(self, layer: LinearLayer, moments: Moments) -> LinearLayer:
        """Return the layer with its weight on the 8-bit grid, the scale of the weight, and the corrected bias."""
        assert moments.products is not None
        mean = moments.mean_quantized
        largest = float(np.diag(moments.products).max())
        if not 0 < largest * len(mean) < np.inf:
            # All tokens are equal, or beyond what squares can hold: the channels have no energy to order them by.
            return layer
        weight = layer.float_weight
        order, spread, energy = _spread(
            moments, self.damping, whole_energy=layer.float_bias is None
        )
        compensated, back = weight[order], np.argsort(order)
        if layer.float_bias is None:
            missed = (moments.mean - mean) @ weight
            towards = spread.T @ (spread @ mean[order]) / energy
            compensated = (compensated + np.outer(towards, missed)).astype(weight.dtype)
        scale = (
            layer.scale
            if layer.scale is not None
            else qdq.weight_scale(compensated[back], layer.quantizer)
        )
        steps = np.broadcast_to(qdq.spread(scale, weight.shape, layer.quantizer.axis), weight.shape)
        limits = qdq.number_limits(compensated, layer.quantizer, scale)
        paired = layer.quantizer.limits_pairs and qdq.has_pairs(weight)
        partners = back[order ^ 1] if paired else None
        rounded = _rounded(compensated, spread, steps[order], limits, partners)[back]
        if layer.float_bias is None:
            return replace(layer, weight=rounded, scale=scale)
        bias = layer.float_bias + moments.mean @ weight - mean @ rounded
        return replace(layer, weight=rounded, bias=bias.astype(np.float32), scale=scale)


# Layers that read the same value follow each other.
@functools.lru_cache(maxsize=1)
def _spread(
    moments: Moments, damping: float, *, whole_energy: bool
) -> tuple[np.ndarray, np.ndarray, float]:
    """Return how rounding errors are spread over the channels that follow.

    Args:
        whole_energy: count that of the mean, too.

    Returns:
        The order of channels [C]; the upper triangular U [C, C] with Uᵀ U = (E / e)⁻¹, where E is the damped energy in this
        order; and e, its mean. Damping bounds the condition of E by C / damping, so that single precision has digits to spare.
    """
    # Its Cholesky factorization takes a tenth of the time of NumPy's.
    from scipy.linalg.lapack import spotrf, strtri

    products, mean = moments.products, moments.mean_quantized
    assert products is not None
    if whole_energy:
        products = products + np.outer(mean, mean)
    diagonal = np.diag(products).astype(np.float64)
    order, energy = np.argsort(-diagonal, kind="stable"), float(diagonal.mean())
    # The Cholesky factor from the last channel to the first, inverted.
    backwards = (products[np.ix_(order[::-1], order[::-1])] / energy).astype(np.float32)
    backwards[np.diag_indices_from(backwards)] += damping
    factor: np.ndarray = strtri(spotrf(backwards, lower=1)[0][::-1, ::-1])[0]
    return order, np.ascontiguousarray(factor), energy


def _rounded(
    weight: np.ndarray,
    spread: np.ndarray,
    step: np.ndarray,
    limits: tuple[np.ndarray, np.ndarray],
    partners: np.ndarray | None,
) -> np.ndarray:
    """Round a weight to the grid of its scales, from the first input channel to the last.

    Args:
        weight: [in, out].
        spread: [in, in] factor of the inverse energy, as `_spread` returns it.
        step: [in, out] scale of each number.
        limits: lowest and highest integer, of all or [1, out].
        partners: [in] the channel whose integers are limited together with those of each (`qdq.pair_sums`); None without.
    """
    errors, integers = np.zeros_like(weight), np.zeros_like(weight)
    low, high = limits
    for start in range(0, len(weight), _BLOCK):
        block = slice(start, start + _BLOCK)
        rest = weight[block] - spread[:start, block].T @ errors[:start]
        for row in range(start, start + len(rest)):
            value = rest[row - start]
            value -= np.einsum("i,io->o", spread[start:row, row], errors[start:row])
            if partners is not None:
                # 0 until it is rounded.
                other = integers[partners[row]]
                low = np.maximum(limits[0], -qdq.PAIR_LIMIT - np.minimum(other, 0))
                high = np.minimum(limits[1], qdq.PAIR_LIMIT - np.maximum(other, 0))
            integers[row] = np.clip(np.rint(value / step[row]), low, high)
            errors[row] = (value - integers[row] * step[row]) / spread[row, row]
    result: np.ndarray = integers * step
    return result
