"""Encoder families: one file each, the module names of its parts."""

from __future__ import annotations

from typing import Protocol

from octobert.core import plugins
from octobert.core.family import EncoderFamily


class FamilyPlugin(Protocol):
    """The module of a family.

    Attributes:
        FAMILY: the family.
    """

    FAMILY: EncoderFamily


_PLUGINS = plugins.Family[FamilyPlugin]("families")
names = _PLUGINS.names


def load(name: str, *, where: str | None = None) -> EncoderFamily:
    """The encoder family of that name.

    Args:
        name: such as `deberta-v2`.
        where: the recipe key or option that named it, for the error.

    Raises:
        RecipeError: there is no family of that name.
    """
    return _PLUGINS.load(name, where=where).FAMILY
