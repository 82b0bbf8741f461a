"""Quantization method: static quantization with the first layer in float."""

from __future__ import annotations

from collections.abc import Mapping

from octobert.core.capability import Capabilities
from octobert.core.plan import FloatType, QuantPlan, Site
from octobert.core.ranges import Ranges
from octobert.quantization.methods.static import Static


class WithoutFirstLayer(Static):
    """Static quantization of all layers but the first.

    Args:
        disable: patterns of modules that stay float.
    """

    disable: tuple[str, ...] = ("layer.0",)

    def plan(
        self, sites: tuple[Site, ...], ranges: Ranges, capabilities: Capabilities
    ) -> QuantPlan:
        """Return the plan of the static method under this method's name."""
        plan = super().plan(sites, ranges, capabilities)
        return plan.model_copy(update={"method": "extra-method"})

    def offer(self, capabilities: Capabilities, problems: Mapping[FloatType, str | None]) -> None:
        """Offer nothing: what a search may vary of the static method is named by its keys."""
