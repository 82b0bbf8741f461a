"""Dynamic quantization: weights fixed in the graph, activations quantized from the values of each batch; nothing to calibrate.

What ONNX Runtime fuses into DynamicQuantizeMatMul and MatMulIntegerToFloat, with one quantization for Q, K and V.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from octobert.core.capability import Capabilities
from octobert.core.frozen import FrozenModel
from octobert.core.placement import Placement
from octobert.core.plan import Decision, Quantizer, QuantPlan, Site
from octobert.core.ranges import Ranges
from octobert.quantization.methods import _common

WHERE = "quantize.dynamic"
_WHY = "only linear layers have a dynamic form that runs in integers"


class Options(FrozenModel):
    """Args:
    per_channel: one scale per output channel of a weight, or one per weight.
    weight_ranges: all weights fit (`max`), or the interval of least squared error (`mse`).
    reduce_range: 7-bit weights, for CPUs whose 8-bit products saturate; `auto` looks at this CPU.
    embeddings: store the word embedding table as int8 rows, or leave it float; `auto` stores rows where the target takes them.
    disable, enable: patterns of modules, or words of their paths; heads stay float unless enabled.
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
    """Nothing needs a range."""
    return ()


def plan(sites: tuple[Site, ...], ranges: Ranges, capabilities: Capabilities, options: Options) -> QuantPlan:
    """Decide every site.

    Raises:
        PlanError: a pattern that matches nothing or contradicts another.
    """
    switches = _common.Switches(sites, options.disable, options.enable, where=WHERE)
    decisions = []
    for site in sites:
        known = _common.settled(site, switches, options.embeddings, capabilities)
        on = switches.on(site)
        if known is not None:
            decisions.append(known)
        elif site.role in _TAKEN and (_LINEARS.takes(site) or on):
            decisions.append(Decision(site=site, quantizer=_quantizer(site, capabilities, options), reason="linear layer"))
        else:
            decisions.append(_common.float_because(site, _WHY))
    return QuantPlan(method="dynamic", placement="linear", target=capabilities.name, decisions=tuple(decisions))


def _quantizer(site: Site, capabilities: Capabilities, options: Options) -> Quantizer:
    if not site.is_weight:
        return Quantizer(dtype="uint8", symmetric=False, dynamic=True)
    return _common.weight(options, capabilities)
