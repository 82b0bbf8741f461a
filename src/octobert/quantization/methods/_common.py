"""What planners share: placements by name or written out, and sites switched off and on by pattern."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Literal, Protocol, cast

from octobert.core import plugins
from octobert.core.capability import Capabilities
from octobert.core.errors import PlanError, did_you_mean
from octobert.core.family import LINEAR_PARTS, NORM_PARTS
from octobert.core.placement import Placement
from octobert.core.plan import ROLES, Decision, FloatType, Quantizer, Site

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
    "head": ("head",),
    "embedding": ("embeddings",),
}
_WILD = frozenset("*?[")
EMBEDDING_REASON = "rows are looked up, then dequantized: a quarter of the bytes"


def known_placement(value: str | tuple[str, ...]) -> str | tuple[str, ...]:
    """A placement's name or kinds, checked.

    Raises:
        ValueError: an unknown name, or a kind that no site can have.
    """
    if isinstance(value, str):
        known = (AUTO, *plugins.names("placements"))
        if value not in known:
            raise ValueError(f'there is no placement "{value}"; {did_you_mean(value, known)}')
        return value
    kinds = [*ROLES, *(f"{role}@{part}" for role in ROLES for part in _PARTS[role.split(".")[0]])]
    for kind in value:
        if not any(fnmatchcase(one, kind) for one in kinds):
            raise ValueError(f'no site is of kind "{kind}"; {did_you_mean(kind, kinds if "@" in kind else ROLES)}')
    if not value:
        raise ValueError("a placement needs at least one kind of site")
    return value


def placement_of(chosen: str | tuple[str, ...], capabilities: Capabilities) -> tuple[str, Placement]:
    """The placement that was chosen, or the target's own: (name, placement)."""
    if not isinstance(chosen, str):
        return "custom", Placement(description="written out in the recipe", kinds=chosen)
    name = capabilities.placement if chosen == AUTO else chosen
    return name, plugins.load("placements", name).PLACEMENT


def matches(pattern: str, site: Site) -> bool:
    """Whether a pattern means a site.

    A pattern with wildcards is held against the module path, or against `path:role` if it has a colon; a plain word means
    every module that has it among its dotted parts: `layer.1` is layer 1 and not layer 10.
    """
    text = f"{site.module}:{site.role}" if ":" in pattern else site.module
    if _WILD & set(pattern):
        return fnmatchcase(text, pattern)
    return f".{pattern}." in f".{text}." or text == pattern


class Switches:
    """Which sites patterns switch off, and which they switch on again; on is applied last.

    Raises:
        PlanError: a pattern that matches nothing, or patterns that contradict each other.
    """

    def __init__(self, sites: Sequence[Site], disable: Sequence[str], enable: Sequence[str], *, where: str) -> None:
        both = sorted(set(disable) & set(enable))
        if both:
            raise PlanError(
                f'the pattern "{both[0]}" is both disabled and enabled', where=where, fix="remove it from one of the two lists"
            )
        self._off = {pattern: _matched(pattern, sites, f"{where}.disable") for pattern in disable}
        self._on = {pattern: _matched(pattern, sites, f"{where}.enable") for pattern in enable}
        enabled = set().union(*self._on.values())
        for pattern, off in self._off.items():
            if off <= enabled:
                raise PlanError(
                    f'everything that "{pattern}" disables is enabled again by other patterns',
                    where=where,
                    got=f"disable {list(disable)}, enable {list(enable)}",
                    fix="remove the pattern, or narrow those that enable",
                )

    def off(self, site: Site) -> str | None:
        """The pattern that switches a site off, unless another switches it on."""
        if self.on(site):
            return None
        return next((pattern for pattern, sites in self._off.items() if site in sites), None)

    def on(self, site: Site) -> str | None:
        """The pattern that switches a site on."""
        return next((pattern for pattern, sites in self._on.items() if site in sites), None)


def _matched(pattern: str, sites: Sequence[Site], where: str) -> set[Site]:
    found = {site for site in sites if matches(pattern, site)}
    if not found:
        words = {word for s in sites for word in s.module.split(".")}
        near = did_you_mean(pattern, sorted({s.module for s in sites} if "." in pattern else words))
        raise PlanError(f'the pattern "{pattern}" matches no module', where=where, fix=near)
    return found


class WeightOptions(Protocol):
    """The options about weights that every planner has."""

    @property
    def per_channel(self) -> bool: ...
    @property
    def weight_ranges(self) -> Literal["max", "mse"]: ...
    @property
    def reduce_range(self) -> Literal["auto"] | bool: ...


def weight(options: WeightOptions, capabilities: Capabilities) -> Quantizer:
    """The quantizer of a linear layer's weight."""
    axis = capabilities.weight_axis if options.per_channel else None
    reduced = options.reduce_range is True
    return Quantizer(
        dtype=capabilities.weights[0], symmetric=True, axis=axis, weight_ranges=options.weight_ranges, reduce_range=reduced
    )


def float_because(site: Site, reason: str) -> Decision:
    """A site that stays float."""
    return Decision(site=site, quantizer=None, reason=reason)


def settled(site: Site, switches: Switches, embeddings: str, capabilities: Capabilities) -> Decision | None:
    """What every method decides alike: sites that are switched off, and the word embedding table; None for all others."""
    off = switches.off(site)
    if off is not None:
        return float_because(site, f'disabled by "{off}"')
    return embedding(site, embeddings, capabilities) if site.role == "embedding.weight" else None


def float_parts(chosen: str, capabilities: Capabilities) -> FloatType:
    """The type of what stays float: as chosen, or the target's own."""
    return capabilities.float_parts[0] if chosen == AUTO else cast(FloatType, chosen)


def embedding(site: Site, how: str, capabilities: Capabilities) -> Decision:
    """The decision about the word embedding table."""
    if how == "float":
        return float_because(site, "embeddings: float")
    if how == AUTO and site.role not in capabilities.roles:
        return float_because(site, f"{capabilities.name} looks up rows in float")
    return Decision(site=site, quantizer=Quantizer(dtype="int8", symmetric=True, axis=0), reason=EMBEDDING_REASON)
