"""Correct the bias for the mean error that the quantized weight causes: b' = b + (W - W8)ᵀ E[q], with q the 8-bit input.

Errors of the activations are not corrected: clipping of a few outlier tokens would shift the output of all others.

Source: Nagel et al. 2019, arXiv:1906.04721, section 4.2.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from octobert.core.axes import Axis
from octobert.graph import qdq
from octobert.quantization.corrections import Correction, LinearLayer, Moments


class BiasCorrection(Correction):
    """A bias that takes the mean error of the quantized weight."""

    axes: ClassVar[tuple[Axis, ...]] = (
        Axis(
            key="corrections",
            values=(["bias-correction"], []),
            changes=("numbers",),
            invalidates="quantize",
            prior=0.1,
        ),
    )

    def correct(self, layer: LinearLayer, moments: Moments) -> LinearLayer:
        """Return the layer with its bias corrected, or unchanged where it has no bias."""
        if layer.float_bias is None:
            return layer
        error = layer.float_weight - qdq.dequantized_weight(
            layer.weight, layer.quantizer, layer.scale
        )
        correction = moments.mean_quantized @ error
        return replace(layer, bias=(layer.float_bias + correction).astype("float32"))
