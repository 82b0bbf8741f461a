"""Methods: one file each, make a quantization plan for one target from the sites of a graph and their ranges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from octobert.core import plugins
from octobert.core.axes import Offer
from octobert.core.capability import Capabilities
from octobert.core.frozen import FrozenModel
from octobert.core.plan import FloatType, QuantPlan, Site
from octobert.core.ranges import Ranges
from octobert.quantization.methods import _common


class Method(Protocol):
    """The module of a method. With a function `offer`, as below without `name`, searches try the method as well.

    A function `smoothed(options, capabilities)` says whether smoothing helps its plans for a target; without it, it does.

    Attributes:
        Options: the model of its options. Every option has a default.
    """

    Options: type[FrozenModel]

    def observed_kinds(self, options: Any, targets: Sequence[Capabilities]) -> tuple[str, ...]:
        """Return patterns for the kinds of sites that need calibrated ranges; empty where none do.

        Args:
            options: an instance of this module's `Options`.
            targets: the targets that plans are made for; one observation serves all of them.
        """

    def plan(
        self, sites: tuple[Site, ...], ranges: Ranges, capabilities: Capabilities, options: Any
    ) -> QuantPlan:
        """Make a plan: a decision for every site.

        Args:
            sites: all sites of the graph.
            ranges: calibrated intervals, at least of the sites of `observed_kinds`.
            capabilities: of the target.
            options: an instance of this module's `Options`.

        Raises:
            PlanError: options contradict each other or match no site, or a range is missing.
        """


_PLUGINS = plugins.Family[Method]("methods")
names, load, each = _PLUGINS.names, _PLUGINS.load, _PLUGINS.each
float_parts = _common.float_parts


def offer(
    name: str, options: Any, capabilities: Capabilities, problems: Mapping[FloatType, str | None]
) -> Offer | None:
    """Return what a method offers to a search, or None if it says nothing of searches.

    Args:
        name: of the method.
        options: an instance of its `Options`: where the search begins.
        capabilities: of the target.
        problems: types in which the target computes float operators → why not on this machine, or None.
    """
    declared = getattr(load(name), "offer", None)
    return None if declared is None else declared(options, capabilities, problems)
