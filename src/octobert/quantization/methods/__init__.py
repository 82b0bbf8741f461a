"""Methods: one file each, make a quantization plan for one target from the sites of a graph and their ranges."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Annotated, Self

from octobert.core import plugins
from octobert.core.axes import Offer
from octobert.core.capability import Capabilities
from octobert.core.frozen import FrozenModel
from octobert.core.plan import FloatType, QuantPlan, Site
from octobert.core.ranges import Ranges


class Method(FrozenModel, ABC):
    """From sites and ranges to a plan. The fields of a method are its options; every one has a default."""

    @abstractmethod
    def plan(
        self, sites: tuple[Site, ...], ranges: Ranges, capabilities: Capabilities
    ) -> QuantPlan:
        """Make a plan: a decision for every site.

        Args:
            sites: all sites of the graph.
            ranges: calibrated intervals, at least of the sites of `observed_kinds`.
            capabilities: of the target.

        Raises:
            PlanError: options contradict each other or match no site, or a range is missing.
        """

    def observed_kinds(self, targets: Sequence[Capabilities]) -> tuple[str, ...]:
        """Return patterns for the kinds of sites that need calibrated ranges; by default none do.

        Args:
            targets: the targets that plans are made for; one observation serves all of them.
        """
        return ()

    def decide(self, *, saturates: bool, trained: bool) -> Self:
        """Return the method without options that are `auto` and depend on more than the target.

        Args:
            saturates: 8-bit products saturate on this CPU.
            trained: the weights were trained for this method.
        """
        return self

    def float_type(self, capabilities: Capabilities) -> FloatType:
        """Return the type of the operators that plans for a target leave in float."""
        return "float32"

    def smoothed(self, capabilities: Capabilities) -> bool:
        """Return whether smoothing helps plans for a target."""
        return True

    def offer(
        self, capabilities: Capabilities, problems: Mapping[FloatType, str | None]
    ) -> Offer | None:
        """Return what a search may try, which begins with these options; None where the method is used by name only.

        Args:
            capabilities: of the target.
            problems: types in which the target computes float operators → why not on this machine, or None.
        """
        return None


PLUGINS = plugins.Plugins("methods", Method)
MethodField = Annotated[Method, PLUGINS]
names, load, each = PLUGINS.names, PLUGINS.load, PLUGINS.each
