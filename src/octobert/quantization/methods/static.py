"""Static quantization: weights from their own values, activations from calibrated ranges, both fixed in the graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field, field_validator

from octobert.core.capability import Capabilities
from octobert.core.errors import PlanError
from octobert.core.frozen import FrozenModel
from octobert.core.plan import Decision, DType, FloatType, Quantizer, QuantPlan, Site
from octobert.core.ranges import Interval, Ranges
from octobert.quantization.methods import _common

WHERE = "quantize.static"
# Q, K and V where they enter attention products, or where they are made, whichever a placement quantizes.
_QKV = (
    "scores.query@attention",
    "scores.key@attention",
    "context.value@attention",
    "linear.output@query",
    "linear.output@key",
    "linear.output@value",
)
_QKV_PARTS = ("query", "key", "value")


class Options(FrozenModel):
    """Args:
    placement: name of a file in `placements/`, or kinds of sites written out; `auto` takes what the target runs fastest.
    activations: type of activations; `auto` takes the target's default for each role. 16 bits keep 8-bit weights,
        float8e4m3 has weights of its own type.
    symmetric: zero points of activations are in the middle of the type, or free; `auto` as for `activations`.
    per_channel: one scale per output channel of a weight, or one per weight.
    weight_ranges: all weights fit (`max`), or the interval of least squared error (`mse`).
    weight_form: weights are written as integers, or as floats behind a Quantize/Dequantize pair, which some runtimes want
        to fold themselves; `auto` takes the target's. The integers are the same; embeddings are always integers.
    reduce_range: 7-bit weights, and Q and K like any other activation, for CPUs whose 8-bit products saturate; `auto` looks
        at this CPU.
    fuse_qkv: one range for the Q, K and V that enter attention products, and for their weights if those are per tensor.
    clip_gelu: upper end of the range of what enters the second feed-forward layer: GELU's output, or what a gate makes of it.
    float_parts: the type of what stays float; `auto` takes the target's. 16 bits are for GPUs, CPUs widen them again.
    embeddings: store the word embedding table as int8 rows, or leave it float; `auto` stores rows where the target takes them.
    disable, enable: patterns of modules (`encoder.layer.0.*`), with a role if wanted (`*.query:linear.input`), or words of
        their paths (`intermediate`); what is enabled is quantized whatever the placement and `disable` say.
    """

    placement: str | tuple[str, ...] = "auto"
    activations: Literal["auto", "uint8", "int8", "uint16", "int16", "float8e4m3"] = "auto"
    symmetric: Literal["auto"] | bool = "auto"
    per_channel: bool = True
    weight_ranges: Literal["max", "mse"] = "max"
    weight_form: Literal["auto", "integers", "pair"] = "auto"
    reduce_range: Literal["auto"] | bool = "auto"
    fuse_qkv: bool = False
    clip_gelu: float | None = Field(default=None, gt=0)
    float_parts: Literal["auto"] | FloatType = "auto"
    embeddings: Literal["auto", "int8", "float"] = "auto"
    disable: tuple[str, ...] = ()
    enable: tuple[str, ...] = ()

    @field_validator("placement")
    @classmethod
    def _known_placement(cls, value: str | tuple[str, ...]) -> str | tuple[str, ...]:
        return _common.known_placement(value)


def observed_kinds(options: Options, targets: Sequence[Capabilities]) -> tuple[str, ...]:
    """The kinds of activations that plans for these targets need ranges for; one observation serves all of them."""
    if options.enable:
        return ("*",)
    kinds = {kind for target in targets for kind in _common.placement_of(options.placement, target)[1].kinds}
    return tuple(sorted(kinds))


def plan(sites: tuple[Site, ...], ranges: Ranges, capabilities: Capabilities, options: Options) -> QuantPlan:
    """Decide every site.

    Raises:
        PlanError: a pattern that matches nothing or contradicts another, or an activation without a range.
    """
    name, placement = _common.placement_of(options.placement, capabilities)
    switches = _common.Switches(sites, options.disable, options.enable, where=WHERE)
    taken = {s for s in sites if switches.on(s) or (placement.takes(s) and not switches.off(s))}
    made = {s.value for s in taken if s.role.endswith(".output")}
    decisions = []
    for site in sites:
        known = _common.settled(site, switches, options.embeddings, capabilities)
        if known is not None:
            decisions.append(known)
        elif site not in taken:
            decisions.append(_common.float_because(site, placement.why_not(site, name)))
        elif site.value in made and not site.role.endswith(".output"):
            decisions.append(_common.float_because(site, "quantized where the value is made"))
        else:
            on = switches.on(site)
            reason = f'enabled by "{on}"' if on else f"placement {name}"
            quantizer = _quantizer(site, ranges, capabilities, options)
            decisions.append(Decision(site=site, quantizer=quantizer, reason=reason))
    if options.fuse_qkv:
        decisions = _fused(decisions)
    return QuantPlan(
        method="static",
        placement=name,
        target=capabilities.name,
        decisions=tuple(decisions),
        float_parts=_common.float_parts(options.float_parts, capabilities),
    )


def _quantizer(site: Site, ranges: Ranges, capabilities: Capabilities, options: Options) -> Quantizer:
    if site.is_weight:
        form = capabilities.weight_form if options.weight_form == "auto" else options.weight_form
        float8: dict[str, object] = {"dtype": "float8e4m3"} if options.activations == "float8e4m3" else {}
        return _common.weight(options, capabilities).model_copy(update={"weight_form": form, **float8})
    interval = ranges.intervals.get(site.value)
    if interval is None:
        raise PlanError(f'no range was calibrated for "{site.value}"', where=site.node, fix="calibrate for this placement")
    ceiling = options.clip_gelu if site.kind in ("linear.input@ffn_down", "activation.output@activation") else None
    if ceiling is not None:
        interval = Interval(low=interval.low, high=min(interval.high, ceiling), bound=min(interval.bound, ceiling))
    dtype, symmetric = _activation_type(site.role, capabilities, options)
    low, high = (-interval.bound, interval.bound) if symmetric else (interval.low, interval.high)
    return Quantizer(dtype=dtype, symmetric=symmetric, low=low, high=high, ceiling=ceiling)


def _activation_type(role: str, capabilities: Capabilities, options: Options) -> tuple[DType, bool]:
    accepted = capabilities.activations + capabilities.simulated_activations
    preferred: tuple[tuple[DType, bool], ...] = (("int8", True),) if role in capabilities.symmetric_int8 else ()
    if options.reduce_range is True:
        # In a product of two activations there is no weight to take a bit from, and it would saturate.
        preferred = ()
    for dtype, symmetric in preferred + accepted:
        if options.activations in ("auto", dtype) and options.symmetric in ("auto", symmetric):
            return dtype, symmetric
    # What was asked for, which `capability` then refuses or repairs.
    dtype = accepted[0][0] if options.activations == "auto" else options.activations
    return dtype, options.symmetric if options.symmetric != "auto" else not dtype.startswith("uint")


def _fused(decisions: Sequence[Decision]) -> list[Decision]:
    """One range for Q, K and V of a layer, and one scale for their weights where each has only one."""
    groups: dict[int | None, list[Quantizer]] = {}
    for decision in decisions:
        if decision.site.kind in _QKV and decision.quantizer is not None:
            groups.setdefault(decision.site.layer, []).append(decision.quantizer)
    found = []
    for decision in decisions:
        site, quantizer = decision.site, decision.quantizer
        if quantizer is not None and site.kind in _QKV:
            group = groups[site.layer]
            # A symmetric member holds [-bound, bound], which is part of the common range like any other.
            low, high = min(q.low or 0.0 for q in group), max(q.high or 0.0 for q in group)
            if quantizer.symmetric:
                low, high = -max(-low, high), max(-low, high)
            quantizer = quantizer.model_copy(update={"low": low, "high": high, "shared": f"layer {site.layer} q k v"})
        elif quantizer is not None and site.role == "linear.weight" and site.part in _QKV_PARTS and quantizer.axis is None:
            quantizer = quantizer.model_copy(update={"shared": f"layer {site.layer} qkv"})
        found.append(decision.model_copy(update={"quantizer": quantizer}))
    return found
