"""Weight correction: moves every bias by a constant."""

from __future__ import annotations

from dataclasses import replace

from octobert.core.frozen import FrozenModel
from octobert.quantization.corrections import LinearLayer, Moments

NEEDS_PRODUCTS = False


class Options(FrozenModel):
    """Options of the correction.

    Args:
        shift: added to every bias.
    """

    shift: float = 0.001


def correct(layer: LinearLayer, moments: Moments, options: Options) -> LinearLayer:
    """Return the layer with a moved bias."""
    return (
        layer
        if layer.bias is None
        else replace(layer, bias=(layer.bias + options.shift).astype("float32"))
    )
