"""What refiners work on: the moments of a linear layer's input, and the layer's constants before and after.

A refiner is a pure function of one layer, so layers can be refined in any order, and a plan that leaves one in float simply
does not use what was refined for it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from octobert.core.plan import Quantizer


@dataclass(frozen=True)
class Moments:
    """Sums over tokens of a layer's input x [C] and of what is left of it in 8 bits, q.

    Args:
        count: tokens.
        mean, mean_quantized: [C] of x and of q.
        products: [C, C] mean of (q - mean q)(q - mean q) transposed; None where no refiner asks for it.
        lost: [C, C] mean of (q - mean q)(e - mean e) transposed, with e = x - q.
    """

    count: int
    mean: np.ndarray
    mean_quantized: np.ndarray
    products: np.ndarray | None = None
    lost: np.ndarray | None = None


@dataclass(frozen=True)
class LinearLayer:
    """The constants of one linear layer.

    Args:
        float_weight, float_bias: [in, out] and [out] float32, as they were; the bias may be None.
        quantizer: of the weight.
        weight, bias: as they are to be now; refiners may follow each other, and all start from the float ones.
        scale: of the weight, where it is not to be read off the weight itself.
    """

    float_weight: np.ndarray
    float_bias: np.ndarray | None
    quantizer: Quantizer
    weight: np.ndarray
    bias: np.ndarray | None
    scale: np.ndarray | None = None

    @staticmethod
    def of(weight: np.ndarray, bias: np.ndarray | None, quantizer: Quantizer, scale: np.ndarray | None = None) -> LinearLayer:
        """A layer that nothing has refined yet."""
        return LinearLayer(weight, bias, quantizer, weight, bias, scale)


@dataclass(frozen=True)
class LayerChange:
    """What refiners changed of a layer; None is what they left alone."""

    weight: np.ndarray | None
    bias: np.ndarray | None
    scale: np.ndarray | None


class MomentsCollector:
    """Adds up moments, batch by batch; sums are kept in float64."""

    def __init__(self, channels: int, *, products: bool) -> None:
        self._count = 0
        self._sum, self._sum_quantized = np.zeros(channels), np.zeros(channels)
        shape = (channels, channels) if products else None
        self._products = None if shape is None else np.zeros(shape)
        self._lost = None if shape is None else np.zeros(shape)

    def add(self, values: np.ndarray, quantized: np.ndarray) -> None:
        """Take in [N, C] tokens and their 8-bit forms."""
        self._count += len(values)
        self._sum += values.sum(axis=0, dtype=np.float64)
        self._sum_quantized += quantized.sum(axis=0, dtype=np.float64)
        if self._products is not None and self._lost is not None:
            self._products += quantized.T @ quantized
            self._lost += quantized.T @ (values - quantized)

    def moments(self) -> Moments:
        """What was added up, centred."""
        mean, mean_quantized = self._sum / self._count, self._sum_quantized / self._count
        if self._products is None or self._lost is None:
            return Moments(self._count, mean, mean_quantized)
        products = self._products / self._count - np.outer(mean_quantized, mean_quantized)
        lost = self._lost / self._count - np.outer(mean_quantized, mean - mean_quantized)
        return Moments(self._count, mean, mean_quantized, products, lost)
