"""Static quantization: weights and activations, with scales that are fixed in the graph. Activations use calibrated ranges."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from octobert.core.axes import Axis, Form, Offer
from octobert.core.capability import Capabilities
from octobert.core.errors import PlanError
from octobert.core.plan import SHORT, Decision, DType, FloatType, Quantizer, QuantPlan, Site
from octobert.core.ranges import Interval, Ranges
from octobert.quantization import placements
from octobert.quantization.methods import Method, _common

WHERE = "quantize.static"
# Q, K and V as inputs of the attention products, and as outputs of their projections. A placement quantizes one of the two.
_QKV = (
    "scores.query@attention",
    "scores.key@attention",
    "context.value@attention",
    "linear.output@query",
    "linear.output@key",
    "linear.output@value",
)
_QKV_PARTS = ("query", "key", "value")
# MiniLM in OpenVINO, limited to AVX-512 without VNNI, one text: 0.87 to 0.97 × the time of quantized Q and K (2026-11-22).
_SIMULATED = "without integer units symmetric Q and K saturate, and a float product is faster than one behind quantizers"


class Static(Method):
    """Weights and activations have scales that are fixed in the graph.

    Args:
        placement: name of a placement, or a list of kinds of sites; `auto` takes the placement that the target runs fastest.
        activations: type of activations; `auto` takes the target's default for each role. With 16-bit activations weights have
            8 bits; with float8e4m3 they are float8e4m3, too.
        symmetric: zero points of activations are in the middle of the type; `auto` as for `activations`.
        weights: type of weights; `auto` takes the target's default. Embeddings are always int8.
        weights_symmetric: uint8 weights have the zero point 128 and the scales of int8; otherwise each scale covers the
            smallest to the largest weight. `auto` takes the target's default. int8 weights are always symmetric.
        per_channel: one scale per output channel of a weight, instead of one per weight.
        weight_ranges: range of a weight: its largest magnitude (`max`), or the range with the smallest squared error (`mse`).
        weight_form: weights are stored as `integers`, or as floats behind a Quantize/Dequantize `pair`, which some runtimes
            fold themselves; `auto` takes the target's form. Both give the same integers. Embeddings are always integers.
        reduce_range: 8-bit weights whose products cannot saturate, and a float Q·Kᵀ unless `placement` names it, for CPUs
            without VNNI: neighbours whose sum would be more than 128 have a larger scale. `auto` depends on this CPU.
        fuse_qkv: one range for Q, K and V in the attention products, and one scale for their weights if those are per tensor.
        clip_gelu: upper limit of the range of the second feed-forward layer's input: the output of GELU, or of its gate.
        float_parts: type of the operators that stay float; `auto` takes the target's default. Of the CPU
            targets, openvino-cpu computes in 16-bit types, on CPUs with units for them. The others compute them in float32.
        embeddings: keep the word embedding table as int8 rows, or in float; `auto` takes int8 rows where the target supports
            them.
        disable: patterns of modules that stay float (`encoder.layer.0.*`), with or without a role (`*.query:linear.input`), or
            parts of their paths (`intermediate`).
        enable: patterns of modules that are quantized whatever the placement and `disable` say.
    """

    placement: str | tuple[str, ...] = "auto"
    activations: Literal["auto", "uint8", "int8", "uint16", "int16", "float8e4m3"] = "auto"
    symmetric: Literal["auto"] | bool = "auto"
    weights: Literal["auto", "int8", "uint8"] = "auto"
    weights_symmetric: Literal["auto"] | bool = "auto"
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

    @model_validator(mode="after")
    def _types_fit(self) -> Self:
        if self.activations == "float8e4m3" and self.weights != "auto":
            raise ValueError(
                f"weights are float8e4m3 with such activations, not {self.weights}; remove weights"
            )
        return self

    def plan(
        self, sites: tuple[Site, ...], ranges: Ranges, capabilities: Capabilities
    ) -> QuantPlan:
        """Make a plan: a decision for every site.

        Raises:
            PlanError: a pattern matches no site or contradicts another, or an activation has no range.
        """
        name, placement = _common.placement_of(self.placement, capabilities)
        switches = _common.Switches(sites, self.disable, self.enable, where=WHERE)
        # The target, on this CPU, would multiply Q and K in float behind their quantizers.
        saturating = self.placement == _common.AUTO and self.reduce_range is True
        simulated = {
            s for s in sites if saturating and s.role in capabilities.activations.symmetric_int8
        }
        placed_sites = {s for s in sites if placement.takes(s) and not switches.off(s)} - simulated
        chosen = {s for s in sites if switches.on(s)} | placed_sites
        outputs = {s.value for s in chosen if s.role.endswith(".output")}
        decisions = []
        for site in sites:
            shared = _common.common_decision(site, switches, self.embeddings, capabilities)
            if shared is not None:
                decisions.append(shared)
            elif site not in chosen:
                decisions.append(
                    _common.in_float(
                        site, _SIMULATED if site in simulated else placement.why_not(site, name)
                    )
                )
            elif site.value in outputs and not site.role.endswith(".output"):
                decisions.append(
                    _common.in_float(site, "quantized at the operator that outputs it")
                )
            else:
                pattern = switches.on(site)
                reason = f'enabled by "{pattern}"' if pattern else f"placement {name}"
                quantizer = self._quantizer(site, ranges, capabilities)
                decisions.append(Decision(site=site, quantizer=quantizer, reason=reason))
        if self.fuse_qkv:
            decisions = _with_shared_qkv(decisions)
        return QuantPlan(
            method="static",
            placement=name,
            target=capabilities.name,
            decisions=tuple(decisions),
            float_parts=self.float_type(capabilities),
        )

    def observed_kinds(self, targets: Sequence[Capabilities]) -> tuple[str, ...]:
        """Return patterns for the kinds of activations that plans for these targets need ranges for."""
        if self.enable:
            return ("*",)
        kinds = {
            kind
            for target in targets
            for kind in _common.placement_of(self.placement, target)[1].kinds
        }
        return tuple(sorted(kinds))

    def decide(self, *, saturates: bool, trained: bool) -> Self:
        """Return the method with `reduce_range` decided. Trained weights are symmetric."""
        decided = self.replaced(reduce_range=saturates) if self.reduce_range == "auto" else self
        if trained and self.weights_symmetric == "auto":
            return decided.replaced(weights_symmetric=True)
        return decided

    def float_type(self, capabilities: Capabilities) -> FloatType:
        """Return the type of the operators that stay float."""
        return _common.float_type(self.float_parts, capabilities)

    def smoothed(self, capabilities: Capabilities) -> bool:
        """Return whether smoothing helps: 16-bit activations lose nothing, and weights of smoothed layers are harder to
        round."""
        return not self._activation_type("linear.input", capabilities)[0].endswith("16")

    def offer(self, capabilities: Capabilities, problems: Mapping[FloatType, str | None]) -> Offer:
        """Return one form; placements and float types to vary."""
        axes = [*_common.weight_axes("static"), *self._placement_axes(capabilities)]
        # Gains: MiniLM, one thread, AVX512-VNNI and bf16 units, fastest of 42 to 141 interleaved runs (2026-11-22).
        used = self.float_type(capabilities)
        kinds = tuple(kind for kind, why in problems.items() if why is None and kind != used)
        if kinds:
            # bfloat16 in OpenVINO, two runs: 0.98 and 1.04 at 128 tokens, 0.87 and 1.05 at 256, 1.07 and 1.12 at 512, where
            # attention takes more of the time.
            names = tuple(f"{SHORT[kind]} parts" for kind in kinds)
            axes.append(
                Axis(
                    key=f"{WHERE}.float_parts",
                    values=kinds,
                    names=names,
                    changes=("numbers", "time"),
                    invalidates="quantize",
                    gain=1.15,
                )
            )
        return Offer(
            forms=(Form(precision="int8"),),
            axes=tuple(axes),
            varies=("transforms", "calibrate", "corrections"),
            falls_back=True,
        )

    def _quantizer(self, site: Site, ranges: Ranges, capabilities: Capabilities) -> Quantizer:
        if site.is_weight:
            weights = capabilities.weights
            chosen = "float8e4m3" if self.activations == "float8e4m3" else self.weights
            dtype = weights.types[0] if chosen == "auto" else chosen
            free = self.weights_symmetric is False or (
                self.weights_symmetric == "auto" and weights.zero_points == "preferred"
            )
            return Quantizer(
                dtype=dtype,
                symmetric=not (free and dtype == "uint8"),
                axis=weights.axis if self.per_channel else None,
                weight_ranges=self.weight_ranges,
                weight_form=weights.form if self.weight_form == "auto" else self.weight_form,
                reduce_range=self.reduce_range is True,
            )
        interval = ranges.intervals.get(site.value)
        if interval is None:
            raise PlanError(
                f'no calibrated range for "{site.value}"',
                where=site.node,
                fix="calibrate with this placement",
            )
        ceiling = (
            self.clip_gelu
            if site.kind in ("linear.input@ffn_down", "activation.output@activation")
            else None
        )
        if ceiling is not None:
            interval = Interval(
                low=interval.low,
                high=min(interval.high, ceiling),
                bound=min(interval.bound, ceiling),
            )
        dtype, symmetric = self._activation_type(site.role, capabilities)
        low, high = (
            (-interval.bound, interval.bound) if symmetric else (interval.low, interval.high)
        )
        return Quantizer(dtype=dtype, symmetric=symmetric, low=low, high=high, ceiling=ceiling)

    def _activation_type(self, role: str, capabilities: Capabilities) -> tuple[DType, bool]:
        accepted = capabilities.activations.accepted
        preferred: tuple[tuple[DType, bool], ...] = (
            (("int8", True),) if role in capabilities.activations.symmetric_int8 else ()
        )
        if self.reduce_range is True:
            # A product of two activations has no weight that could be limited, and symmetric int8 would saturate there.
            preferred = ()
        for dtype, symmetric in preferred + accepted:
            if self.activations in ("auto", dtype) and self.symmetric in ("auto", symmetric):
                return dtype, symmetric
        # The target takes no such type: `core.capability` refuses or repairs the plan.
        dtype = accepted[0][0] if self.activations == "auto" else self.activations
        return dtype, self.symmetric if self.symmetric != "auto" else not dtype.startswith("uint")

    def _placement_axes(self, capabilities: Capabilities) -> Iterator[Axis]:
        """Other placements whose sites the target computes in integers: those that quantize less, and the rest."""
        current, placement = _common.placement_of(self.placement, capabilities)
        current_kinds = _common.kinds_of(placement)
        less: list[str] = []
        more: list[str] = []
        # The placements that quantize most come first.
        every = {name: _common.kinds_of(each) for name, each in placements.each()}
        for name, kinds in sorted(every.items(), key=lambda item: -len(item[1])):
            if (
                name != current
                and kinds != current_kinds
                and all(kind.partition("@")[0] in capabilities.roles for kind in kinds)
            ):
                (less if kinds < current_kinds else more).append(name)
        # No placement was faster than the target's own (0.91 to 1.00). On other CPUs the order may be another.
        for names, gain, prior in ((less, 1.0, 0.3), (more, 1.05, 0.1)):
            if names:
                yield Axis(
                    key=f"{WHERE}.placement",
                    values=tuple(names),
                    names=tuple(names),
                    changes=("numbers", "time"),
                    invalidates="calibrate",
                    gain=gain,
                    prior=prior,
                )


def _with_shared_qkv(decisions: Sequence[Decision]) -> list[Decision]:
    """Give Q, K and V of each layer one range, and their weights one scale if those are per tensor."""
    groups: dict[int | None, list[Quantizer]] = {}
    for decision in decisions:
        if decision.site.kind in _QKV and decision.quantizer is not None:
            groups.setdefault(decision.site.layer, []).append(decision.quantizer)
    fused = []
    for decision in decisions:
        site, quantizer = decision.site, decision.quantizer
        if quantizer is not None and site.kind in _QKV:
            group = groups[site.layer]
            # The interval of a symmetric quantizer is [-bound, bound]; it takes part in the common range.
            low, high = min(q.low or 0.0 for q in group), max(q.high or 0.0 for q in group)
            if quantizer.symmetric:
                low, high = -max(-low, high), max(-low, high)
            quantizer = quantizer.replaced(low=low, high=high, shared=f"layer {site.layer} q k v")
        elif (
            quantizer is not None
            and site.role == "linear.weight"
            and site.part in _QKV_PARTS
            and quantizer.axis is None
        ):
            quantizer = quantizer.replaced(shared=f"layer {site.layer} qkv")
        fused.append(decision.replaced(quantizer=quantizer))
    return fused
