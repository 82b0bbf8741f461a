"""Weight-only quantization: weights of 8 or 4 bits, dequantized before float products. It needs no calibration.

Weights take a quarter or an eighth of the bytes. Models are faster only where memory bandwidth is the bottleneck.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from octobert.core.axes import Form, Offer
from octobert.core.capability import Capabilities
from octobert.core.plan import FloatType, QuantPlan, Site
from octobert.core.ranges import Ranges
from octobert.quantization.methods import _common


class Options(_common.LinearOptions):
    """Args:
    float_parts: type of all other operators; `auto` takes the default of the target.
    reduce_range: always false, because float products cannot saturate; every method has this option.
    """

    float_parts: Literal["auto"] | FloatType = "auto"
    reduce_range: Literal[False] = False


observed_kinds = _common.no_kinds


def plan(
    sites: tuple[Site, ...], ranges: Ranges, capabilities: Capabilities, options: Options
) -> QuantPlan:
    """Make a plan: a decision for every site; see `_common.plan_of_linears`."""
    return _common.plan_of_linears(
        "weight-only",
        sites,
        capabilities,
        options,
        placement="weights",
        inputs=None,
        weights=_common.linear_weight(options, capabilities, "float", "weight-only"),
        reason="weight of a linear layer",
        otherwise="the method quantizes weights only",
    )


def smoothed(options: Options, capabilities: Capabilities) -> bool:
    """Return False: smoothing makes weights harder to round, and nothing else is rounded."""
    return False


def offer(
    options: Options, capabilities: Capabilities, problems: Mapping[FloatType, str | None]
) -> Offer:
    """Return one form per size of weights, for searches for small files or little memory: the products are those of the float
    model."""
    forms = [Form(precision="int8 weights", saves=("size", "memory"))]
    if "float" in capabilities.weights.int4:
        narrow = {"bits": 4}
        forms.append(Form(precision="int4 weights", options=narrow, saves=("size", "memory")))
    return _common.offer_of_linears("weight-only", *forms, smoothed=False)
