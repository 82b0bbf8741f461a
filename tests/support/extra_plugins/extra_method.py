"""Quantization method: static quantization with the first layer in float."""

from __future__ import annotations

from collections.abc import Sequence

from octobert.core.capability import Capabilities
from octobert.core.plan import QuantPlan, Site
from octobert.core.ranges import Ranges
from octobert.quantization.methods import static


class Options(static.Options):
    """Options of the static method.

    Args:
        disable: patterns of modules that stay float.
    """

    disable: tuple[str, ...] = ("layer.0",)


def observed_kinds(options: Options, targets: Sequence[Capabilities]) -> tuple[str, ...]:
    """Return the kinds that the static method observes."""
    return static.observed_kinds(options, targets)


def plan(
    sites: tuple[Site, ...], ranges: Ranges, capabilities: Capabilities, options: Options
) -> QuantPlan:
    """Return the plan of the static method under this method's name."""
    return static.plan(sites, ranges, capabilities, options).model_copy(
        update={"method": "extra-method"}
    )
