"""Choose weights and their rounding for the inputs that the layer really gets in 8 bits, instead of one by one.

First the weights W' that bring q W' nearest to x W (least squares, damped): they make up for what is lost of the activations.
Then rounding, input channel by input channel, each error spread over the channels still to be rounded (Frantar et al. 2022,
arXiv:2210.17323), the channels of most energy first. Last the bias takes the mean that is left.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from pydantic import Field

from octobert.core.frozen import FrozenModel
from octobert.graph import qdq
from octobert.quantization.layers import LinearLayer, Moments

NEEDS_PRODUCTS = True
_BLOCK = 128


class Options(FrozenModel):
    """Args:
    damping: share of the mean energy of a channel that is added to each, against chance correlations of few tokens.
    """

    damping: float = Field(default=0.05, gt=0, le=10)


def correct(layer: LinearLayer, moments: Moments, options: Options) -> LinearLayer:
    """The layer with weights on the 8-bit grid, their scale, and its bias."""
    assert moments.products is not None
    assert moments.lost is not None
    if not np.trace(moments.products) > 0:
        # All tokens are alike: there is nothing to weigh channels by.
        return layer
    weight = layer.float_weight.astype(np.float64)
    energy = moments.products + options.damping * np.trace(moments.products) / len(weight) * np.eye(len(weight))
    wanted = weight + np.linalg.solve(energy, moments.lost @ weight)
    scale = layer.scale if layer.scale is not None else qdq.weight_scale(wanted.astype(np.float32), layer.quantizer)
    rounded = _rounded(wanted, energy, scale, layer.quantizer.weight_limits).astype(np.float32)
    if layer.float_bias is None:
        return replace(layer, weight=rounded, scale=scale)
    bias = layer.float_bias + moments.mean @ weight - moments.mean_quantized @ rounded
    return replace(layer, weight=rounded, bias=bias.astype(np.float32), scale=scale)


def _rounded(weight: np.ndarray, energy: np.ndarray, scale: np.ndarray, limits: tuple[int, int]) -> np.ndarray:
    """Weights [in, out] on the grid of `scale` ([out] or scalar), errors spread along `energy` [in, in]."""
    order = np.argsort(-np.diag(energy), kind="stable")
    inverse = np.linalg.inv(energy[np.ix_(order, order)])
    spread = np.linalg.cholesky((inverse + inverse.T) / 2).T
    rest, step = weight[order].copy(), scale.astype(np.float64)
    result = np.empty_like(rest)
    for start in range(0, len(rest), _BLOCK):
        stop = min(start + _BLOCK, len(rest))
        errors = np.empty((stop - start, rest.shape[1]))
        for row in range(start, stop):
            result[row] = np.clip(np.rint(rest[row] / step), *limits) * step
            errors[row - start] = (rest[row] - result[row]) / spread[row, row]
            rest[row + 1 : stop] -= np.outer(spread[row, row + 1 : stop], errors[row - start])
        rest[stop:] -= spread[start:stop, stop:].T @ errors
    return result[np.argsort(order)]
