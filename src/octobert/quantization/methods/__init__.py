"""Methods: one file each, from the sites of a graph and their ranges to a quantization plan for one target."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, cast

from octobert.core import plugins
from octobert.core.capability import Capabilities
from octobert.core.frozen import FrozenModel
from octobert.core.plan import QuantPlan, Site
from octobert.core.ranges import Ranges


class Method(Protocol):
    """What a method's module has."""

    @property
    def Options(self) -> type[FrozenModel]:
        """The options, with defaults."""
        ...

    def observed_kinds(self, options: Any, targets: Sequence[Capabilities]) -> tuple[str, ...]:
        """Patterns of the kinds of sites that need calibrated ranges; none where nothing does.

        Args:
            options: an instance of this module's `Options`.
            targets: the plans are made for these; one observation serves all of them.
        """
        ...

    def plan(self, sites: tuple[Site, ...], ranges: Ranges, capabilities: Capabilities, options: Any) -> QuantPlan:
        """Decide every site.

        Args:
            sites: all sites of the graph.
            ranges: intervals of the activations of `observed_kinds`.
            capabilities: the target's.
            options: an instance of this module's `Options`.

        Raises:
            PlanError: the options contradict each other, or a range is missing.
        """
        ...


def names() -> tuple[str, ...]:
    """The names of all methods, sorted."""
    return plugins.names("methods")


def load(name: str, *, where: str | None = None) -> Method:
    """The method of that name.

    Args:
        name: such as `static`.
        where: the recipe key or option that named it, for the error.

    Raises:
        RecipeError: there is no method of that name.
    """
    return cast(Method, plugins.load("methods", name, where=where))
