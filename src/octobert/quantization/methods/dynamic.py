"""Dynamic quantization: static weights, activations quantized with the range of each batch. It needs no calibration.

ONNX Runtime fuses the result into DynamicQuantizeMatMul and MatMulIntegerToFloat. Q, K and V share one quantization.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from octobert.core.axes import Form, Offer
from octobert.core.capability import Capabilities
from octobert.core.frozen import FrozenModel
from octobert.core.placement import Placement
from octobert.core.plan import Decision, FloatType, Quantizer, QuantPlan, Site
from octobert.core.ranges import Ranges
from octobert.quantization.methods import _common

WHERE = "quantize.dynamic"
_WHY = "only linear layers can be quantized dynamically"


class Options(FrozenModel):
    """Args:
    per_channel: one scale per output channel of a weight, instead of one per weight.
    weight_ranges: range of a weight: its largest magnitude (`max`), or the range with the smallest squared error (`mse`).
    reduce_range: 7-bit weights, for CPUs whose 8-bit products saturate; `auto` depends on this CPU.
    embeddings: keep the word embedding table as int8 rows, or in float; `auto` takes int8 rows where the target supports them.
    disable: patterns of modules that stay float (`encoder.layer.0.*`), or parts of their paths (`intermediate`).
    enable: patterns of modules that are quantized whatever else applies; heads are float unless enabled.
    """

    per_channel: bool = True
    weight_ranges: Literal["max", "mse"] = "max"
    reduce_range: Literal["auto"] | bool = "auto"
    embeddings: Literal["auto", "int8", "float"] = "auto"
    disable: tuple[str, ...] = ()
    enable: tuple[str, ...] = ()


_LINEARS = Placement(description="linear layers", kinds=("linear.input", "linear.weight"))
_TAKEN = ("linear.input", "linear.weight", "head.input", "head.weight")


def observed_kinds(options: Options, targets: Sequence[Capabilities]) -> tuple[str, ...]:
    """Return no kinds: nothing needs a calibrated range."""
    return ()


def plan(sites: tuple[Site, ...], ranges: Ranges, capabilities: Capabilities, options: Options) -> QuantPlan:
    """Make a plan: a decision for every site.

    Raises:
        PlanError: a pattern matches no site, or contradicts another.
    """
    switches = _common.Switches(sites, options.disable, options.enable, where=WHERE)
    decisions = []
    for site in sites:
        shared = _common.common_decision(site, switches, options.embeddings, capabilities)
        on = switches.on(site)
        if shared is not None:
            decisions.append(shared)
        elif site.role in _TAKEN and (_LINEARS.takes(site) or on):
            decisions.append(Decision(site=site, quantizer=_quantizer(site, capabilities, options), reason="linear layer"))
        else:
            decisions.append(_common.float_because(site, _WHY))
    return QuantPlan(method="dynamic", placement="linear", target=capabilities.name, decisions=tuple(decisions))


def _quantizer(site: Site, capabilities: Capabilities, options: Options) -> Quantizer:
    if not site.is_weight:
        return Quantizer(dtype="uint8", symmetric=False, dynamic=True)
    return _common.weight(options, capabilities)


def offer(options: Options, capabilities: Capabilities, problems: Mapping[FloatType, str | None]) -> Offer:
    """Return one form, for targets that compute such activations in integers."""
    why = None if capabilities.dynamic else f"{capabilities.name} computes dynamically quantized activations in float"
    return Offer(
        forms=(Form(precision="int8 dynamic", why_not=why),),
        axes=_common.weight_axes("dynamic"),
        varies=("transforms", "corrections"),
        falls_back=True,
    )
