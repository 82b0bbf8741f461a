"""Weight-only quantization: 8-bit weights, dequantized before float products; a quarter of the bytes, nothing to calibrate.

It makes models smaller, and faster only where memory and not arithmetic is what they wait for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from octobert.core.capability import Capabilities
from octobert.core.frozen import FrozenModel
from octobert.core.plan import Decision, FloatType, QuantPlan, Site
from octobert.core.ranges import Ranges
from octobert.quantization.methods import _common

WHERE = "quantize.weight-only"
_TAKEN = ("linear.weight", "head.weight")


class Options(FrozenModel):
    """Args:
    per_channel: one scale per output channel of a weight, or one per weight.
    weight_ranges: all weights fit (`max`), or the interval of least squared error (`mse`).
    float_parts: the type of everything else; `auto` takes the target's.
    embeddings: store the word embedding table as int8 rows, or leave it float; `auto` stores rows where the target takes them.
    disable, enable: patterns of modules, or words of their paths; heads stay float unless enabled.
    """

    per_channel: bool = True
    weight_ranges: Literal["max", "mse"] = "max"
    # Products are computed in float: no sum of theirs saturates.
    reduce_range: Literal[False] = False
    float_parts: Literal["auto"] | FloatType = "auto"
    embeddings: Literal["auto", "int8", "float"] = "auto"
    disable: tuple[str, ...] = ()
    enable: tuple[str, ...] = ()


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
        if known is not None:
            decisions.append(known)
        elif site.role in _TAKEN and (site.role == "linear.weight" or switches.on(site)):
            quantizer = _common.weight(options, capabilities)
            decisions.append(Decision(site=site, quantizer=quantizer, reason="weight of a linear layer"))
        else:
            decisions.append(_common.float_because(site, "weights only"))
    return QuantPlan(
        method="weight-only",
        placement="weights",
        target=capabilities.name,
        decisions=tuple(decisions),
        float_parts=_common.float_parts(options.float_parts, capabilities),
    )
