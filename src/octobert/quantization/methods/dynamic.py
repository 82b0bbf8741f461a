"""Dynamic quantization: static weights, activations quantized with the range of each batch. It needs no calibration.

ONNX Runtime fuses the result into DynamicQuantizeMatMul and MatMulIntegerToFloat. Q, K and V share one quantization.
"""

from __future__ import annotations

from collections.abc import Mapping

from octobert.core.axes import Form, Offer
from octobert.core.capability import Capabilities
from octobert.core.plan import FloatType, Quantizer, QuantPlan, Site
from octobert.core.ranges import Ranges
from octobert.quantization.methods import _common


class Options(_common.LinearOptions):
    """Args:
    reduce_range: 7-bit weights, for CPUs whose 8-bit products saturate; `auto` depends on this CPU.
    """


observed_kinds = _common.no_kinds


def plan(
    sites: tuple[Site, ...], ranges: Ranges, capabilities: Capabilities, options: Options
) -> QuantPlan:
    """Make a plan: a decision for every site; see `_common.plan_of_linears`."""
    return _common.plan_of_linears(
        "dynamic",
        sites,
        capabilities,
        options,
        placement="linear",
        inputs=Quantizer(dtype="uint8", symmetric=False, dynamic=True),
        reason="linear layer",
        otherwise="only linear layers can be quantized dynamically",
    )


def offer(
    options: Options, capabilities: Capabilities, problems: Mapping[FloatType, str | None]
) -> Offer:
    """Return one form, for targets that compute such activations in integers."""
    why = (
        None
        if capabilities.activations.dynamic
        else f"{capabilities.name} computes dynamically quantized activations in float"
    )
    return _common.offer_of_linears("dynamic", Form(precision="int8 dynamic", why_not=why))
