"""Weight corrections: one file each, adjust the constants of a linear layer to the inputs that it gets in 8 bits."""

from __future__ import annotations

from typing import Any, Protocol

from octobert.core import plugins
from octobert.core.axes import Axis
from octobert.core.frozen import FrozenModel
from octobert.quantization.layers import LinearLayer, Moments


class Correction(Protocol):
    """The module of a weight correction.

    Attributes:
        Options: the model of its options. Every option has a default.
        NEEDS_PRODUCTS: whether `correct` needs `Moments.products` and `Moments.lost`, whose size is quadratic in the layer's
            width.
    """

    Options: type[FrozenModel]
    NEEDS_PRODUCTS: bool

    def correct(self, layer: LinearLayer, moments: Moments, options: Any) -> LinearLayer:
        """Return the layer with corrected constants.

        Args:
            layer: the constants of one linear layer.
            moments: of the layer's input.
            options: an instance of this module's `Options`.
        """
        ...


_PLUGINS = plugins.Family[Correction]("corrections")
names, load = _PLUGINS.names, _PLUGINS.load


def axes() -> tuple[Axis, ...]:
    """Return what the plugins declare as worth varying (`AXES`); plugins without a declaration are not varied."""
    return tuple(axis for name in names() for axis in getattr(load(name), "AXES", ()))
