"""No quantization: the float graph in the type that the target computes fastest, for comparison or because it is enough."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from octobert.core.capability import Capabilities
from octobert.core.frozen import FrozenModel
from octobert.core.plan import FLOAT, FloatType, QuantPlan, Site
from octobert.core.ranges import Ranges
from octobert.quantization.methods import _common


class Options(FrozenModel):
    """Args:
    float_parts: the type of everything; `auto` takes the target's.
    """

    float_parts: Literal["auto"] | FloatType = "auto"
    # Every method says so; there is nothing that could saturate.
    reduce_range: Literal[False] = False


def observed_kinds(options: Options, targets: Sequence[Capabilities]) -> tuple[str, ...]:
    """Nothing needs a range."""
    return ()


def plan(sites: tuple[Site, ...], ranges: Ranges, capabilities: Capabilities, options: Options) -> QuantPlan:
    """Leave every site float."""
    return QuantPlan(
        method=FLOAT,
        placement="none",
        target=capabilities.name,
        decisions=tuple(_common.float_because(site, "the method is float") for site in sites),
        float_parts=_common.float_parts(options.float_parts, capabilities),
    )
