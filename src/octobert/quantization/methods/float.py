"""No quantization: the float graph, in float32, float16 or bfloat16."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from octobert.core.axes import Form, Offer
from octobert.core.capability import Capabilities
from octobert.core.frozen import FrozenModel
from octobert.core.plan import FLOAT, SHORT, FloatType, QuantPlan, Site
from octobert.core.ranges import Ranges
from octobert.quantization.methods import _common


class Options(FrozenModel):
    """Args:
    float_parts: type of all operators; `auto` takes the default of the target.
    reduce_range: always false, because float products cannot saturate; every method has this option.
    """

    float_parts: Literal["auto"] | FloatType = "auto"
    reduce_range: Literal[False] = False


observed_kinds = _common.no_kinds


def plan(
    sites: tuple[Site, ...], ranges: Ranges, capabilities: Capabilities, options: Options
) -> QuantPlan:
    """Make a plan that keeps every site in float."""
    return QuantPlan(
        method=FLOAT,
        placement="none",
        target=capabilities.name,
        decisions=tuple(_common.in_float(site, "the method is float") for site in sites),
        float_parts=_common.float_parts(options, capabilities),
    )


def offer(
    options: Options, capabilities: Capabilities, problems: Mapping[FloatType, str | None]
) -> Offer:
    """Return one form for every type that the target computes in."""
    return Offer(
        forms=tuple(
            Form(precision=SHORT[kind], options={"float_parts": kind}, why_not=why)
            for kind, why in problems.items()
        )
    )
