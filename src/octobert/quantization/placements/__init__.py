"""Placements: one file each, which kinds of sites a plan quantizes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from octobert.core import plugins
from octobert.core.plan import Placement


class PlacementPlugin(Protocol):
    """The module of a placement.

    Attributes:
        PLACEMENT: the kinds of sites to quantize, and the reasons for those that stay float.
    """

    PLACEMENT: Placement


_PLUGINS = plugins.Family[PlacementPlugin]("placements")
names = _PLUGINS.names


def load(name: str, *, where: str | None = None) -> Placement:
    """Return a placement by its name.

    Args:
        name: such as `matmul`.
        where: the recipe key or option that named it, for the error.

    Raises:
        RecipeError: there is no placement of that name.
    """
    return _PLUGINS.load(name, where=where).PLACEMENT


def each() -> Iterator[tuple[str, Placement]]:
    """Yield all placements that are not broken, with their names."""
    return ((name, plugin.PLACEMENT) for name, plugin in _PLUGINS.each())
