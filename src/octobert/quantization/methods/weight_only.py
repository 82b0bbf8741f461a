"""Weight-only quantization: 8-bit weights, dequantized before float products. It needs no calibration.

Weights take a quarter of the bytes. Models are faster only where memory bandwidth is the bottleneck.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from octobert.core.axes import Form, Offer
from octobert.core.capability import Capabilities
from octobert.core.frozen import FrozenModel
from octobert.core.plan import Decision, FloatType, QuantPlan, Site
from octobert.core.ranges import Ranges
from octobert.quantization.methods import _common

WHERE = "quantize.weight-only"
_TAKEN = ("linear.weight", "head.weight")


class Options(FrozenModel):
    """Args:
    per_channel: one scale per output channel of a weight, instead of one per weight.
    weight_ranges: range of a weight: its largest magnitude (`max`), or the range with the smallest squared error (`mse`).
    float_parts: type of all other operators; `auto` takes the default of the target.
    reduce_range: always false, because float products cannot saturate; every method has this option.
    embeddings: keep the word embedding table as int8 rows, or in float; `auto` takes int8 rows where the target supports them.
    disable: patterns of modules that stay float (`encoder.layer.0.*`), or parts of their paths (`intermediate`).
    enable: patterns of modules that are quantized whatever else applies; heads are float unless enabled.
    """

    per_channel: bool = True
    weight_ranges: Literal["max", "mse"] = "max"
    reduce_range: Literal[False] = False
    float_parts: Literal["auto"] | FloatType = "auto"
    embeddings: Literal["auto", "int8", "float"] = "auto"
    disable: tuple[str, ...] = ()
    enable: tuple[str, ...] = ()


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
        if shared is not None:
            decisions.append(shared)
        elif site.role in _TAKEN and (site.role == "linear.weight" or switches.on(site)):
            quantizer = _common.weight(options, capabilities)
            decisions.append(Decision(site=site, quantizer=quantizer, reason="weight of a linear layer"))
        else:
            decisions.append(_common.float_because(site, "the method quantizes weights only"))
    return QuantPlan(
        method="weight-only",
        placement="weights",
        target=capabilities.name,
        decisions=tuple(decisions),
        float_parts=_common.float_parts(options.float_parts, capabilities),
    )


def offer(options: Options, capabilities: Capabilities, problems: Mapping[FloatType, str | None]) -> Offer:
    """Return one form, for searches for small files or little memory: the products are those of the float model."""
    return Offer(
        forms=(Form(precision="int8 weights", saves=("size", "memory")),),
        axes=_common.weight_axes("weight-only"),
        varies=("transforms", "corrections"),
        falls_back=True,
    )
