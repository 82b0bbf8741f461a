"""Shared code of methods: placements by name or by kinds of sites, and patterns that disable and enable sites."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import ClassVar, Literal, Self

from pydantic import Field

from octobert.core.axes import Axis, Form, Offer
from octobert.core.capability import Capabilities
from octobert.core.errors import PlanError, did_you_mean
from octobert.core.family import LINEAR_PARTS, NORM_PARTS
from octobert.core.plan import ROLES, Decision, FloatType, Placement, Quantizer, QuantPlan, Site
from octobert.quantization import placements
from octobert.quantization.methods import Method

AUTO = "auto"
_NORMS = (*NORM_PARTS, "final_norm")
_PARTS = {
    "linear": LINEAR_PARTS,
    "scores": ("attention",),
    "context": ("attention",),
    "probs": ("attention",),
    "activation": ("activation",),
    "residual": _NORMS,
    "norm": (*_NORMS, "embeddings"),
    "head": ("head", "decoder"),
    "embedding": ("embeddings",),
}
# All kinds of sites.
_KINDS = tuple(f"{role}@{part}" for role in ROLES for part in _PARTS[role.split(".")[0]])
_WILD = frozenset("*?[")
EMBEDDING_REASON = "stored as int8 rows, dequantized after the lookup: a quarter of the bytes"


def known_placement(value: str | tuple[str, ...]) -> str | tuple[str, ...]:
    """Check the name of a placement, or the kinds of sites of a custom one.

    Raises:
        ValueError: unknown name, or a kind that no site can have.
    """
    if isinstance(value, str):
        choices = (AUTO, *placements.names())
        if value not in choices:
            raise ValueError(f'there is no placement "{value}"; {did_you_mean(value, choices)}')
        return value
    kinds = [*ROLES, *_KINDS]
    for kind in value:
        if not any(fnmatchcase(name, kind) for name in kinds):
            raise ValueError(
                f'unknown kind of site "{kind}"; {did_you_mean(kind, kinds if "@" in kind else ROLES)}'
            )
    if not value:
        raise ValueError("a placement needs at least one kind of site")
    return value


def placement_of(
    chosen: str | tuple[str, ...], capabilities: Capabilities
) -> tuple[str, Placement]:
    """Return (name, placement) for the option `placement`; `auto` is the placement that the target runs fastest."""
    if not isinstance(chosen, str):
        return "custom", Placement(description="kinds of sites from the recipe", kinds=chosen)
    name = capabilities.placement if chosen == AUTO else chosen
    return name, placements.load(name)


def kinds_of(placement: Placement) -> set[str]:
    """Return the kinds of sites (`role@part`) that a placement quantizes."""
    patterns = placement.kinds
    return {
        kind
        for kind in _KINDS
        if any(fnmatchcase(kind if "@" in p else kind.partition("@")[0], p) for p in patterns)
    }


def matches(pattern: str, site: Site) -> bool:
    """Return whether a pattern matches a site.

    A pattern with wildcards is matched against the module path, or against `path:role` if it has a colon. A pattern without
    wildcards matches every module path that contains it as whole dotted parts: `layer.1` matches layer 1 and not layer 10.
    """
    text = f"{site.module}:{site.role}" if ":" in pattern else site.module
    if _WILD & set(pattern):
        return fnmatchcase(text, pattern)
    return f".{pattern}." in f".{text}." or text == pattern


class Switches:
    """The sites that patterns disable and enable; `enable` wins over `disable`.

    Args:
        sites: of the graph.
        disable: patterns of sites that stay float.
        enable: patterns of sites that are quantized whatever the placement says.
        where: the recipe key of the method, for errors.

    Raises:
        PlanError: a pattern matches no site, or patterns contradict each other.
    """

    def __init__(
        self, sites: Sequence[Site], disable: Sequence[str], enable: Sequence[str], *, where: str
    ) -> None:
        both = sorted(set(disable) & set(enable))
        if both:
            raise PlanError(
                f'the pattern "{both[0]}" is in both disable and enable',
                where=where,
                fix="remove it from one of the two lists",
            )
        self._off = {pattern: _matched(pattern, sites, f"{where}.disable") for pattern in disable}
        self._on = {pattern: _matched(pattern, sites, f"{where}.enable") for pattern in enable}
        enabled = set().union(*self._on.values())
        for pattern, off in self._off.items():
            if off <= enabled:
                raise PlanError(
                    f'other patterns enable every site that "{pattern}" disables',
                    where=where,
                    got=f"disable {list(disable)}, enable {list(enable)}",
                    fix="remove the pattern, or narrow the patterns of enable",
                )

    def off(self, site: Site) -> str | None:
        """Return the pattern that disables a site; None where there is none, or where another pattern enables it."""
        if self.on(site):
            return None
        return next((pattern for pattern, sites in self._off.items() if site in sites), None)

    def on(self, site: Site) -> str | None:
        """Return the pattern that enables a site, or None."""
        return next((pattern for pattern, sites in self._on.items() if site in sites), None)


def _matched(pattern: str, sites: Sequence[Site], where: str) -> set[Site]:
    matched = {site for site in sites if matches(pattern, site)}
    if not matched:
        words = {word for s in sites for word in s.module.split(".")}
        raise PlanError(
            f'the pattern "{pattern}" matches no module',
            where=where,
            fix=did_you_mean(
                pattern, sorted({s.module for s in sites} if "." in pattern else words)
            ),
        )
    return matched


class LinearMethod(Method):
    """A method that quantizes linear layers, heads where they are enabled, and word embeddings.

    Attributes:
        name: of the plugin.

    Args:
        bits: of the weights of linear layers. 4 bits have one scale per group of input channels, take half of the bytes, and
            are further from float.
        group: channels with a scale of their own, of 4-bit weights and of tokens that are quantized for themselves; at most the
            width of the narrowest layer. Smaller groups are closer to float, and slower.
        per_channel: one scale per output channel of a weight, instead of one per weight.
        weight_ranges: range of a weight: its largest magnitude (`max`), or the range with the smallest squared error (`mse`).
        reduce_range: each method describes its own.
        embeddings: keep the word embedding table as int8 rows, or in float; `auto` takes int8 rows where the target supports
            them.
        disable: patterns of modules that stay float (`encoder.layer.0.*`), or parts of their paths (`intermediate`).
        enable: patterns of modules that are quantized whatever else applies; heads are float unless enabled.
    """

    name: ClassVar[str]

    bits: Literal[8, 4] = 8
    group: int = Field(default=128, ge=16, le=1024)
    per_channel: bool = True
    weight_ranges: Literal["max", "mse"] = "max"
    reduce_range: Literal["auto"] | bool = "auto"
    embeddings: Literal["auto", "int8", "float"] = "auto"
    disable: tuple[str, ...] = ()
    enable: tuple[str, ...] = ()

    def decide(self, *, saturates: bool, trained: bool) -> Self:
        """Return the method with `reduce_range` decided."""
        return self.replaced(reduce_range=saturates) if self.reduce_range == "auto" else self

    def linear_weight(
        self, capabilities: Capabilities, before: Literal["token", "float"]
    ) -> Quantizer:
        """Return the quantizer of the weights of linear layers, of 8 bits or 4.

        Args:
            before: the activations that they are multiplied with, as `Weights.int4` names them.

        Raises:
            PlanError: the target takes no 4-bit weights, or none behind such activations.
        """
        if self.bits == 8:
            return Quantizer(
                dtype=capabilities.weights.types[0],
                symmetric=True,
                axis=capabilities.weights.axis if self.per_channel else None,
                weight_ranges=self.weight_ranges,
                reduce_range=self.reduce_range is True,
            )
        taken = capabilities.weights.int4
        if before not in taken:
            kinds = {"token": "dynamic", "float": "weight-only"}
            others = " or ".join(f"quantize: {{{kinds[kind]}: {{bits: 4}}}}" for kind in taken)
            raise PlanError(
                f"{capabilities.name} takes no 4-bit weights{' in this method' if taken else ''}",
                where=f"quantize.{self.name}.bits",
                expected="8",
                fix=f"set it to 8, or {others or 'choose another target'} (octobert targets --json lists what each takes)",
            )
        return Quantizer(
            dtype="int4",
            symmetric=True,
            axis=1,
            group=self.group,
            weight_ranges=self.weight_ranges,
        )

    def plan_of_linears(
        self,
        sites: Sequence[Site],
        capabilities: Capabilities,
        *,
        placement: str,
        inputs: Quantizer | None,
        weights: Quantizer,
        reason: str,
        otherwise: str,
    ) -> QuantPlan:
        """Make a plan: a decision for every site.

        Args:
            inputs: quantizer of the layers' inputs; None where they stay float.
            weights: quantizer of their weights.
            placement: its name in the plan.
            reason: why a site is quantized.
            otherwise: why a site stays float.

        Raises:
            PlanError: a pattern matches no site, or contradicts another.
        """
        switches = Switches(sites, self.disable, self.enable, where=f"quantize.{self.name}")
        decisions = []
        for site in sites:
            quantizer = weights if site.is_weight else inputs
            layer, _, end = site.role.partition(".")
            shared = common_decision(site, switches, self.embeddings, capabilities)
            if shared is not None:
                decisions.append(shared)
            elif (
                quantizer
                and end in ("input", "weight")
                and (layer == "linear" or (layer == "head" and switches.on(site)))
            ):
                decisions.append(Decision(site=site, quantizer=quantizer, reason=reason))
            else:
                decisions.append(in_float(site, otherwise))
        return QuantPlan(
            method=self.name,
            placement=placement,
            target=capabilities.name,
            decisions=tuple(decisions),
            float_parts=self.float_type(capabilities),
        )

    def offer_of_linears(self, *forms: Form, axes: tuple[Axis, ...] = (), smoothed: bool) -> Offer:
        """Return an offer of forms.

        Args:
            axes: besides those of weights.
            smoothed: whether smoothing helps plans with the default options.
        """
        return Offer(
            forms=forms,
            axes=(*weight_axes(self.name), *axes),
            varies=("transforms", "corrections") if smoothed else ("corrections",),
            falls_back=True,
        )


def float_type(chosen: Literal["auto"] | FloatType, capabilities: Capabilities) -> FloatType:
    """Return the type that the option `float_parts` means; `auto` is the default of the target."""
    return capabilities.float_parts.in_files[0] if chosen == "auto" else chosen


def in_float(site: Site, reason: str) -> Decision:
    """Return the decision that keeps a site in float."""
    return Decision(site=site, quantizer=None, reason=reason)


def common_decision(
    site: Site, switches: Switches, embeddings: str, capabilities: Capabilities
) -> Decision | None:
    """Return the decisions that all methods share: disabled sites and the word embedding table; None for other sites."""
    off = switches.off(site)
    if off is not None:
        return in_float(site, f'disabled by "{off}"')
    return embedding(site, embeddings, capabilities) if site.role == "embedding.weight" else None


def embedding(site: Site, choice: str, capabilities: Capabilities) -> Decision:
    """Return the decision for the word embedding table."""
    if choice == "float":
        return in_float(site, "option embeddings is float")
    if choice == AUTO and site.role not in capabilities.roles:
        return in_float(site, f"{capabilities.name} does not take int8 embedding rows")
    return Decision(
        site=site,
        quantizer=Quantizer(dtype="int8", symmetric=True, axis=0),
        reason=EMBEDDING_REASON,
    )


def weight_axes(method: str) -> tuple[Axis, ...]:
    """Return the axes of the options for weights."""
    return (
        Axis(
            key=f"quantize.{method}.weight_ranges",
            values=("mse", "max"),
            names=("mse weights", "max weights"),
            changes=("numbers",),
            invalidates="quantize",
            prior=0.4,
        ),
        # Less accurate. MiniLM at 1 × 128, one thread, AVX512-VNNI: 1.00 times as fast with static activations in ONNX Runtime,
        # 0.95 in OpenVINO, and 1.03 with dynamic ones (2026-11-22, fastest of 89 interleaved runs).
        Axis(
            key=f"quantize.{method}.per_channel",
            values=(False, True),
            names=("per tensor", "per channel"),
            changes=("numbers", "time"),
            invalidates="quantize",
            gain=1.03,
        ),
    )
