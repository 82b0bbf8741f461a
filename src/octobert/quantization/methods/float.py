"""No quantization: the float graph, in float32, float16 or bfloat16."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from octobert.core.axes import Form, Offer
from octobert.core.capability import Capabilities
from octobert.core.plan import FLOAT, SHORT, FloatType, QuantPlan, Site
from octobert.core.ranges import Ranges
from octobert.quantization.methods import Method, _common


class Float(Method):
    """Every site stays float.

    Args:
        float_parts: type of all operators; `auto` takes the default of the target.
        reduce_range: always false, because float products cannot saturate.
    """

    float_parts: Literal["auto"] | FloatType = "auto"
    reduce_range: Literal[False] = False

    def plan(
        self, sites: tuple[Site, ...], ranges: Ranges, capabilities: Capabilities
    ) -> QuantPlan:
        """Make a plan that keeps every site in float."""
        return QuantPlan(
            method=FLOAT,
            placement="none",
            target=capabilities.name,
            decisions=tuple(_common.in_float(site, "the method is float") for site in sites),
            float_parts=self.float_type(capabilities),
        )

    def float_type(self, capabilities: Capabilities) -> FloatType:
        """Return the type of all operators."""
        return _common.float_type(self.float_parts, capabilities)

    def offer(self, capabilities: Capabilities, problems: Mapping[FloatType, str | None]) -> Offer:
        """Return one form for every type that the target computes in."""
        return Offer(
            forms=tuple(
                Form(precision=SHORT[kind], options={"float_parts": kind}, why_not=why)
                for kind, why in problems.items()
            )
        )
