"""Dynamic quantization: static weights, activations quantized with ranges of the run. It needs no calibration.

ONNX Runtime takes one range per batch: it fuses the result into DynamicQuantizeMatMul and MatMulIntegerToFloat, and Q, K and V
share one quantization. OpenVINO takes one range per token and group of channels, which is closer to float and takes longer.
"""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field

from octobert.core.axes import Axis, Form, Offer
from octobert.core.capability import Capabilities
from octobert.core.plan import FloatType, Quantizer, QuantPlan, Site
from octobert.core.ranges import Ranges
from octobert.quantization.methods import _common


class Options(_common.LinearOptions):
    """Args:
    group: channels with a range of their own, of targets that quantize each token for itself (openvino-cpu); at most the width
        of the narrowest layer. Smaller groups are closer to float, and slower.
    reduce_range: 7-bit weights, for CPUs whose 8-bit products saturate; `auto` depends on this CPU.
    """

    group: int = Field(default=128, ge=16, le=1024)


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
        inputs=_activation(capabilities, options.group),
        reason="linear layer",
        otherwise="only linear layers can be quantized dynamically",
    )


def smoothed(capabilities: Capabilities) -> bool:
    """Return whether smoothing helps: where all tokens of a batch share a range."""
    return capabilities.activations.dynamic != "token"


def _activation(capabilities: Capabilities, group: int) -> Quantizer:
    """Return the quantizer of a dynamically quantized activation, in the form that a target computes."""
    if capabilities.activations.dynamic == "token":
        return Quantizer(dtype="int8", symmetric=True, dynamic=True, group=group)
    return Quantizer(dtype="uint8", symmetric=False, dynamic=True)


def offer(
    options: Options, capabilities: Capabilities, problems: Mapping[FloatType, str | None]
) -> Offer:
    """Return one form, for targets that compute such activations in integers."""
    why = None
    if capabilities.activations.dynamic is None:
        why = f"{capabilities.name} computes dynamically quantized activations in float"
    elif capabilities.activations.dynamic == "token" and options.reduce_range is True:
        why = f"without 8-bit units {capabilities.name} quantizes no activations per token"
    form = Form(precision="int8 dynamic", why_not=why)
    offered = _common.offer_of_linears("dynamic", form, smoothed=smoothed(capabilities))
    if capabilities.activations.dynamic != "token":
        return offered
    # BERT-base at 1 × 64, AVX512-VNNI: 29.0 ms in groups of 32, 24.0 of 128, 23.2 of 768 (2026-11-24).
    groups = Axis(
        key="quantize.dynamic.group",
        values=(32,),
        names=("groups of 32",),
        changes=("numbers",),
        invalidates="quantize",
        prior=0.6,
    )
    return offered.model_copy(update={"axes": (*offered.axes, groups)})
