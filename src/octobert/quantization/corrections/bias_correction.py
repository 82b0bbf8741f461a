"""Take the mean error that rounding the weights makes out of the bias (Nagel et al. 2019, arXiv:1906.04721, section 4.2).

The bias takes up (W - W8) transposed times E[q], with q the layer's 8-bit input. Errors of the activations themselves are left
alone: what clipping makes of a few outlier tokens would shift the bias of all others.
"""

from __future__ import annotations

from dataclasses import replace

from octobert.core.frozen import FrozenModel
from octobert.graph import qdq
from octobert.quantization.layers import LinearLayer, Moments

NEEDS_PRODUCTS = False


class Options(FrozenModel):
    """No options."""


def correct(layer: LinearLayer, moments: Moments, options: Options) -> LinearLayer:
    """The layer with its bias corrected; a layer without one is left as it is."""
    if layer.float_bias is None:
        return layer
    error = layer.float_weight - qdq.dequantized_weight(layer.weight, layer.quantizer, layer.scale)
    correction = moments.mean_quantized @ error
    return replace(layer, bias=(layer.float_bias + correction).astype("float32"))
