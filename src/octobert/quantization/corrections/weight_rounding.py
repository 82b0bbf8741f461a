"""Round weights so that the output for the 8-bit inputs stays close to the float output (GPTQ).

Weights are rounded one input channel at a time, in order of decreasing energy, and each rounding error is spread over the
channels that are not yet rounded. The bias takes the mean error of weights and inputs; without a bias, it counts as the rest
does. The error of the inputs around their mean is not compensated by other weights: fitted to calibration rows, that loses
more on all other texts (docs/evidence/accuracy.md).

Source: Frantar et al. 2022, arXiv:2210.17323.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import numpy as np
from pydantic import Field

from octobert.graph import qdq
from octobert.quantization.corrections import Correction, LinearLayer, Moments

# Input channels that are rounded before their errors are spread over the remaining ones by one matrix product.
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
        products, mean = moments.products, moments.mean_quantized
        if layer.float_bias is None:
            products = products + np.outer(mean, mean)
        if not 0 < np.trace(products) < np.inf:
            # All tokens are equal, or beyond what squares can hold: the channels have no energy to order them by.
            return layer
        weight = layer.float_weight.astype(np.float64)
        energy = products + self.damping * np.trace(products) / len(weight) * np.eye(len(weight))
        order = np.argsort(-np.diag(energy), kind="stable")
        spread = _inverse_factor(energy[np.ix_(order, order)])
        compensated = weight[order]
        if layer.float_bias is None:
            compensated += np.outer(
                spread.T @ (spread @ mean[order]), (moments.mean - mean) @ weight
            )
        scale = (
            layer.scale
            if layer.scale is not None
            else qdq.weight_scale(
                compensated[np.argsort(order)].astype(np.float32), layer.quantizer
            )
        )
        steps = np.broadcast_to(qdq.spread(scale, weight.shape, layer.quantizer.axis), weight.shape)
        limits = qdq.number_limits(compensated, layer.quantizer, scale)
        paired = layer.quantizer.limits_pairs and qdq.has_pairs(weight)
        partners = np.argsort(order)[order ^ 1] if paired else None
        rounded = _rounded(compensated, spread, steps[order].astype(np.float64), limits, partners)
        rounded = rounded[np.argsort(order)].astype(np.float32)
        if layer.float_bias is None:
            return replace(layer, weight=rounded, scale=scale)
        bias = layer.float_bias + moments.mean @ weight - mean @ rounded
        return replace(layer, weight=rounded, bias=bias.astype(np.float32), scale=scale)


def _inverse_factor(energy: np.ndarray) -> np.ndarray:
    """Return the upper triangular U with Uᵀ U = energy⁻¹: the Cholesky factor from the last channel to the first, inverted."""
    from scipy.linalg.lapack import dtrtri

    backwards = np.linalg.cholesky(energy[::-1, ::-1])
    factor: np.ndarray = dtrtri(backwards[::-1, ::-1])[0]
    return factor


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
        spread: [in, in] factor of the inverse energy, as `_inverse_factor` returns it.
        step: [in, out] scale of each number.
        limits: lowest and highest integer, of all or [1, out].
        partners: [in] the channel whose integers are limited together with those of each (`qdq.pair_sums`); None without.
    """
    rest, integers = weight.copy(), np.zeros_like(weight)
    for start in range(0, len(rest), _BLOCK):
        stop = min(start + _BLOCK, len(rest))
        errors = np.empty((stop - start, rest.shape[1]))
        for row in range(start, stop):
            low, high = limits
            if partners is not None:
                # 0 until it is rounded.
                other = integers[partners[row]]
                low = np.maximum(low, -qdq.PAIR_LIMIT - np.minimum(other, 0))
                high = np.minimum(high, qdq.PAIR_LIMIT - np.maximum(other, 0))
            integers[row] = np.clip(np.rint(rest[row] / step[row]), low, high)
            errors[row - start] = (rest[row] - integers[row] * step[row]) / spread[row, row]
            rest[row + 1 : stop] -= np.outer(spread[row, row + 1 : stop], errors[row - start])
        rest[stop:] -= spread[start:stop, stop:].T @ errors
    result: np.ndarray = integers * step
    return result
