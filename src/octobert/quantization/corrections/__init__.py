"""Weight corrections: one file each, adjust the constants of a linear layer to the inputs that it gets in 8 bits.

A correction is a pure function of one layer: of its constants, and of the moments of its input. Layers can be corrected in any
order, and a plan that keeps a layer in float ignores its corrected constants.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from octobert.core import plugins
from octobert.core.axes import Axis
from octobert.core.frozen import FrozenModel
from octobert.core.plan import Quantizer
from octobert.graph import qdq


@dataclass(frozen=True, eq=False)
class Moments:
    """Moments of a layer's input over calibration tokens: x [C] in float, and q, the same value quantized.

    Args:
        count: tokens.
        mean: [C] mean of x.
        mean_quantized: [C] mean of q.
        products: [C, C] covariance of q; None unless a correction needs it.
    """

    count: int
    mean: np.ndarray
    mean_quantized: np.ndarray
    products: np.ndarray | None = None


@dataclass(frozen=True)
class LinearLayer:
    """The constants of one linear layer. Several corrections may follow each other; each starts from the float constants.

    Args:
        float_weight: [in, out] float32, before all corrections.
        float_bias: [out] float32, before all corrections; None where the layer has no bias.
        quantizer: of the weight.
        weight: [in, out] after the corrections so far.
        bias: [out] after the corrections so far.
        scale: of the weight, where a correction or training chose it; None where it is computed from the weight.
    """

    float_weight: np.ndarray
    float_bias: np.ndarray | None
    quantizer: Quantizer
    weight: np.ndarray
    bias: np.ndarray | None
    scale: np.ndarray | None = None

    @staticmethod
    def uncorrected(
        weight: np.ndarray,
        bias: np.ndarray | None,
        quantizer: Quantizer,
        scale: np.ndarray | None = None,
    ) -> LinearLayer:
        """Return a layer without corrections."""
        return LinearLayer(weight, bias, quantizer, weight, bias, scale)


@dataclass(frozen=True)
class LayerChange:
    """The constants of a layer that corrections changed; None for those that stay as they are.

    Args:
        weight: [in, out] float32; or integers, in steps of the scale, where it is on their grid.
        bias: [out].
        scale: of the weight.
    """

    weight: np.ndarray | None
    bias: np.ndarray | None
    scale: np.ndarray | None

    @staticmethod
    def between(before: LinearLayer, after: LinearLayer) -> LayerChange:
        """Return what corrections changed."""
        weight = None if after.weight is before.weight else after.weight
        if weight is not None and after.scale is not None:
            steps = qdq.spread(after.scale, weight.shape, after.quantizer.axis)
            integers = np.rint(weight / steps)
            if np.array_equal(integers * steps, weight):
                small = np.abs(integers).max() <= np.iinfo(np.int8).max
                weight = integers.astype(np.int8 if small else np.int16)
        return LayerChange(weight, after.bias, after.scale)


class MomentsCollector:
    """Adds up moments over batches: means in float64, products in single precision as they come from each batch, in half the
    memory. Products are about the mean of the first batch: those of a channel that is far from 0 and hardly varies would leave
    no digits for the others.

    Args:
        channels: C, the width of the layer's input.
        products: whether to collect `Moments.products`.
    """

    def __init__(self, channels: int, *, products: bool) -> None:
        self._count = 0
        self._sum, self._sum_quantized = np.zeros(channels), np.zeros(channels)
        self._origin = np.zeros(channels, np.float32)
        self._products = np.zeros((channels, channels), np.float32) if products else None

    def add(self, values: np.ndarray, quantized: np.ndarray) -> None:
        """Add tokens.

        Args:
            values: [N, C] in float.
            quantized: [N, C], the same tokens quantized and dequantized.
        """
        self._count += len(values)
        self._sum += values.sum(axis=0, dtype=np.float64)
        self._sum_quantized += quantized.sum(axis=0, dtype=np.float64)
        if self._products is not None:
            if self._count == len(values):
                self._origin = quantized.mean(axis=0, dtype=np.float64).astype(np.float32)
            apart = quantized - self._origin
            self._products += apart.T @ apart

    def moments(self) -> Moments:
        """Return the moments of all tokens so far."""
        mean, mean_quantized = self._sum / self._count, self._sum_quantized / self._count
        if self._products is None:
            return Moments(self._count, mean, mean_quantized)
        apart = (mean_quantized - self._origin).astype(np.float32)
        products = self._products / np.float32(self._count) - np.outer(apart, apart)
        return Moments(self._count, mean, mean_quantized, products)


class Correction(FrozenModel, ABC):
    """From a layer to one with other constants. The fields of a correction are its options; every one has a default.

    Attributes:
        needs_products: whether `correct` needs `Moments.products`, whose size is quadratic in the layer's width.
        axes: what a search may vary.
    """

    needs_products: ClassVar[bool] = False
    axes: ClassVar[tuple[Axis, ...]] = ()

    @abstractmethod
    def correct(self, layer: LinearLayer, moments: Moments) -> LinearLayer:
        """Return the layer with corrected constants.

        Args:
            layer: the constants of one linear layer.
            moments: of the layer's input.
        """


PLUGINS = plugins.Plugins("corrections", Correction)
CorrectionField = Annotated[Correction, PLUGINS]
names, load, each = PLUGINS.names, PLUGINS.load, PLUGINS.each


def axes() -> tuple[Axis, ...]:
    """Return what a search may vary by corrections."""
    return tuple(axis for _, correction in each() for axis in correction.axes)
