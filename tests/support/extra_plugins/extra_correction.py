"""Weight correction: moves every bias by a constant."""

from __future__ import annotations

from dataclasses import replace

from octobert.quantization.corrections import Correction, LinearLayer, Moments


class Shift(Correction):
    """A bias that is moved by a constant.

    Args:
        shift: added to every bias.
    """

    shift: float = 0.001

    def correct(self, layer: LinearLayer, moments: Moments) -> LinearLayer:
        """Return the layer with a moved bias."""
        if layer.bias is None:
            return layer
        return replace(layer, bias=(layer.bias + self.shift).astype("float32"))
