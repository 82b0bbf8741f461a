"""Weight-only quantization: weights of 8 or 4 bits, dequantized before float products. It needs no calibration.

Weights take a quarter or an eighth of the bytes. Models are faster only where memory bandwidth is the bottleneck.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from octobert.core.axes import Form, Offer
from octobert.core.capability import Capabilities
from octobert.core.plan import FloatType, QuantPlan, Site
from octobert.core.ranges import Ranges
from octobert.quantization.methods import _common


class WeightOnly(_common.LinearMethod):
    """Weights alone are integers.

    Args:
        float_parts: type of all other operators; `auto` takes the default of the target.
        reduce_range: always false, because float products cannot saturate.
    """

    name: ClassVar[str] = "weight-only"

    float_parts: Literal["auto"] | FloatType = "auto"
    reduce_range: Literal[False] = False

    def plan(
        self, sites: tuple[Site, ...], ranges: Ranges, capabilities: Capabilities
    ) -> QuantPlan:
        """Make a plan: a decision for every site; see `plan_of_linears`."""
        return self.plan_of_linears(
            sites,
            capabilities,
            placement="weights",
            inputs=None,
            weights=self.linear_weight(capabilities, "float"),
            reason="weight of a linear layer",
            otherwise="the method quantizes weights only",
        )

    def float_type(self, capabilities: Capabilities) -> FloatType:
        """Return the type of all other operators."""
        return _common.float_type(self.float_parts, capabilities)

    def smoothed(self, capabilities: Capabilities) -> bool:
        """Return False: smoothing makes weights harder to round, and nothing else is rounded."""
        return False

    def offer(self, capabilities: Capabilities, problems: Mapping[FloatType, str | None]) -> Offer:
        """Return one form per size of weights, for searches for small files or little memory: the products are those of the
        float model."""
        forms = [Form(precision="int8 weights", saves=("size", "memory"))]
        if "float" in capabilities.weights.int4:
            narrow = {"bits": 4}
            forms.append(Form(precision="int4 weights", options=narrow, saves=("size", "memory")))
        return self.offer_of_linears(*forms, smoothed=False)
