"""Weight corrections: one file each, from the constants of a linear layer and the moments of its input to better constants."""

from __future__ import annotations

from typing import Any, Protocol, cast

from octobert.core import plugins
from octobert.core.frozen import FrozenModel
from octobert.quantization.layers import LinearLayer, Moments


class Correction(Protocol):
    """What a correction's module has."""

    @property
    def Options(self) -> type[FrozenModel]:
        """The options, with defaults."""
        ...

    @property
    def NEEDS_PRODUCTS(self) -> bool:
        """Whether `Moments.products` and `Moments.lost` are needed; they cost memory quadratic in the layer's width."""
        ...

    def correct(self, layer: LinearLayer, moments: Moments, options: Any) -> LinearLayer:
        """The layer with corrected constants.

        Args:
            layer: the constants of one linear layer.
            moments: of the layer's input.
            options: an instance of this module's `Options`.
        """
        ...


def names() -> tuple[str, ...]:
    """The names of all weight corrections, sorted."""
    return plugins.names("corrections")


def load(name: str, *, where: str | None = None) -> Correction:
    """The weight correction of that name.

    Args:
        name: such as `bias-correction`.
        where: the recipe key or option that named it, for the error.

    Raises:
        RecipeError: there is no correction of that name.
    """
    return cast(Correction, plugins.load("corrections", name, where=where))
