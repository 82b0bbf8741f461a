"""Static quantization: weights from their own values, activations from calibrated ranges, both fixed in the graph."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from typing import Literal

from pydantic import Field, field_validator

from octobert import plugins
from octobert.capability import Capabilities
from octobert.errors import PlanError, did_you_mean
from octobert.placement import Placement
from octobert.plan import Decision, Noun, Quantizer, QuantPlan, Site
from octobert.ranges import Ranges


class Options(Noun):
    """Args:
    placement: name of a file in `placements/`; `auto` takes what the target runs fastest.
    activations: integer type of activations; `auto` takes the target's default for each role.
    weights: integer type of weights, always symmetric.
    per_channel: one scale per output channel of a weight.
    embeddings: store the word embedding table as int8 rows, or leave it float.
    exclude: module patterns (`encoder.layer.0.*`) that stay float.
    """

    placement: str = "auto"
    activations: Literal["auto", "uint8", "int8"] = "auto"
    weights: Literal["int8"] = "int8"
    per_channel: bool = True
    embeddings: Literal["int8", "float"] = "int8"
    exclude: tuple[str, ...] = Field(default=())

    @field_validator("placement")
    @classmethod
    def _placement_exists(cls, value: str) -> str:
        known = ("auto", *plugins.names("placements"))
        if value not in known:
            raise ValueError(f'there is no placement "{value}"; {did_you_mean(value, known)}')
        return value


def placement_of(options: Options, capabilities: Capabilities) -> tuple[str, Placement]:
    """The placement that the options name, or the target's own: (name, placement)."""
    name = capabilities.placement if options.placement == "auto" else options.placement
    return name, plugins.load("placements", name).PLACEMENT


def observed_roles(options: Options, targets: Sequence[Capabilities]) -> tuple[str, ...]:
    """The roles whose activations plans for these targets need ranges for; one observation serves all of them."""
    roles = {role for target in targets for role in placement_of(options, target)[1].roles}
    return tuple(sorted(role for role in roles if not role.endswith(".weight")))


def plan(sites: tuple[Site, ...], ranges: Ranges, capabilities: Capabilities, options: Options) -> QuantPlan:
    """Decide every site.

    Raises:
        PlanError: an exclusion that matches nothing, an activation without a range, or a type the target does not take.
    """
    name, placement = placement_of(options, capabilities)
    _check_patterns(sites, options)
    decisions = tuple(_decide(site, name, placement, ranges, capabilities, options) for site in sites)
    return QuantPlan(method="static", placement=name, target=capabilities.name, decisions=decisions)


def _decide(
    site: Site, name: str, placement: Placement, ranges: Ranges, capabilities: Capabilities, options: Options
) -> Decision:
    pattern = next((p for p in options.exclude if fnmatch.fnmatchcase(site.module, p)), None)
    if pattern is not None:
        return Decision(site=site, quantizer=None, reason=f'excluded by "{pattern}"')
    if site.role == "embedding.weight":
        if options.embeddings == "float":
            return Decision(site=site, quantizer=None, reason="embeddings: float")
        rows = Quantizer(dtype=options.weights, symmetric=True, axis=0)
        return Decision(site=site, quantizer=rows, reason="rows are looked up, then dequantized: a quarter of the bytes")
    if site.role not in placement.roles:
        reason = placement.because.get(site.role, f"not in placement {name}")
        return Decision(site=site, quantizer=None, reason=reason)
    if site.is_weight:
        axis = capabilities.weight_axis if options.per_channel else None
        weight = Quantizer(dtype=options.weights, symmetric=True, axis=axis)
        return Decision(site=site, quantizer=weight, reason=f"placement {name}")
    interval = ranges.intervals.get(site.value)
    if interval is None:
        raise PlanError(f'no range was calibrated for "{site.value}"', where=site.node, fix="calibrate for this placement")
    dtype, symmetric = _activation_type(site.role, capabilities, options)
    low, high = (-interval.bound, interval.bound) if symmetric else (interval.low, interval.high)
    activation = Quantizer(dtype=dtype, symmetric=symmetric, low=low, high=high)
    return Decision(site=site, quantizer=activation, reason=f"placement {name}")


def _activation_type(role: str, capabilities: Capabilities, options: Options) -> tuple[Literal["int8", "uint8"], bool]:
    if options.activations == "auto" and role in capabilities.symmetric_int8:
        return "int8", True
    if options.activations == "auto":
        return capabilities.activations[0]
    for dtype, symmetric in capabilities.activations:
        if dtype == options.activations:
            return dtype, symmetric
    accepted = ", ".join(f"{d}{' symmetric' if s else ''}" for d, s in capabilities.activations)
    raise PlanError(
        f"{capabilities.name} does not run {options.activations} activations in integers",
        where="quantize.static.activations",
        expected=accepted,
        fix="use auto",
    )


def _check_patterns(sites: tuple[Site, ...], options: Options) -> None:
    modules = sorted({s.module for s in sites})
    for pattern in options.exclude:
        if not fnmatch.filter(modules, pattern):
            raise PlanError(
                f'the pattern "{pattern}" matches no module',
                where="quantize.static.exclude",
                fix=did_you_mean(pattern, modules),
            )
