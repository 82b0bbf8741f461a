"""Capability tables of targets, and the comparison of plans with them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Literal

from pydantic import Field

from octobert.core.errors import PlanError
from octobert.core.frozen import FrozenModel
from octobert.core.plan import Decision, DType, FloatType, Quantizer, QuantPlan, Site
from octobert.core.session import RuntimeOption

# Features of x86 CPUs for 8-bit products. A CPU with none of them computes these products slowly, and they saturate.
INTEGER_UNITS = ("avx512_vnni", "avx_vnni", "amx_int8")
# Features that only x86 CPUs have: (V)PMADDUBSW is of SSSE3.
_X86 = {"ssse3", "avx2"}


class Activations(FrozenModel):
    """The quantized activations that a target takes.

    Args:
        computed: (type, symmetric) pairs whose products are computed in integers; the first is the default.
        simulated: pairs that are accepted, but dequantized and computed in float.
        symmetric_int8: roles whose activations default to symmetric int8 instead, where products do not saturate.
        dynamic: the dynamically quantized activations that the target computes in integers: with one interval per `batch`,
            or per `token` and group of channels; None for none. `Weights.int4` says what is before
            4-bit weights.
        smallest_range: smallest width of an interval.
        keep_float: options of the runtime without which it may quantize float activations before 8-bit weights.
    """

    computed: tuple[tuple[DType, bool], ...]
    simulated: tuple[tuple[DType, bool], ...] = ()
    symmetric_int8: tuple[str, ...] = ()
    dynamic: Literal["batch", "token"] | None = None
    smallest_range: float = 0.0
    keep_float: dict[str, RuntimeOption] = Field(default_factory=dict)

    @property
    def accepted(self) -> tuple[tuple[DType, bool], ...]:
        """All accepted (type, symmetric) pairs, computed in integers or not."""
        return self.computed + self.simulated


class Weights(FrozenModel):
    """The quantized weights and biases that a target takes.

    Args:
        types: accepted types; the first is the default.
        form: weights are stored as `integers`, or as floats behind a Quantize/Dequantize `pair`.
        axis: axis of a [in, out] weight with one scale per index; None if weights have one scale per tensor.
        int32_bias: the target accepts int32 biases behind DequantizeLinear, which other tools write.
        zero_points: uint8 weights are symmetric, with the zero point in the middle of the type; or may be asymmetric (`any`),
            by default where it is `preferred`.
        int4: what the runtime multiplies symmetric 4-bit weights of groups of channels with: activations that it quantizes
            per `token` itself, or `float` ones; empty where it takes none.
    """

    types: tuple[DType, ...] = ("int8",)
    int4: tuple[Literal["token", "float"], ...] = ()
    form: Literal["integers", "pair"] = "integers"
    axis: int | None = 1
    int32_bias: bool = True
    zero_points: Literal["middle", "any", "preferred"] = "middle"

    @property
    def accepted(self) -> tuple[DType, ...]:
        """All accepted types."""
        return (*self.types, *(("int4",) if self.int4 else ()))

    def takes(self, dtype: DType, symmetric: bool) -> bool:
        """Return whether weights of a type may be symmetric or not, as they are."""
        return symmetric or (dtype == "uint8" and self.zero_points != "middle")


class FloatParts(FrozenModel):
    """Types of operators that are not quantized.

    Args:
        in_files: types that files may have; the first is the default.
        by_options: type → options of the runtime that make it compute in the type, where the machine does so natively. A type
            that is not among `in_files` as well leaves the file in float32.
        computed: the type in which the device computes all of them, whatever type a file gives them; None where it keeps to
            the file.
    """

    in_files: tuple[FloatType, ...] = ("float32",)
    by_options: dict[FloatType, dict[str, RuntimeOption]] = Field(default_factory=dict)
    computed: FloatType | None = None

    def mixes(self, chosen: FloatType) -> bool:
        """Return whether some operators stay float32 among those of a chosen type."""
        return self.computed is None and chosen not in self.by_options

    @property
    def accepted(self) -> tuple[FloatType, ...]:
        """All accepted types: in files, or by options of the runtime."""
        return tuple(dict.fromkeys((*self.in_files, *self.by_options)))


class OnnxRules(FrozenModel):
    """Limits of the ONNX files that a target takes.

    Args:
        opset: lowest and highest accepted opset.
        domains: accepted operator domains besides ONNX's own.
        refuses: operators that the target does not support.
        lowest_constant: lowest constant of a mask that the target can represent.
    """

    opset: tuple[int, int]
    domains: tuple[str, ...] = ()
    refuses: tuple[str, ...] = ()
    lowest_constant: float = -3.0e38


class Rewrites(FrozenModel):
    """Rewrites of a file that make it faster on the target.

    Args:
        first_token: the last layer computes the first token only, where the head reads no other token.
        integer_products: products may be integer operators (`graph.passes.cpu`).
        norms_up_to_cores: largest number of cores at which norms are written in vectorized operators (`graph.passes.cpu`).
        smoothed: residual paths may read a norm whose channels were scaled and restored.
    """

    first_token: bool = True
    integer_products: bool = False
    norms_up_to_cores: int = 0
    smoothed: bool = True


class Needs(FrozenModel):
    """The software that has to be installed for a target.

    Args:
        extra: extra of octobert whose packages the target needs; empty if none.
        build: package with a build of onnxruntime that has the target's provider; empty if the ordinary one has it.
        drivers: what its device needs of the system, by names in `octobert.api.setup`.
    """

    extra: str = ""
    build: str = ""
    drivers: tuple[str, ...] = ()


class Capabilities(FrozenModel):
    """The models that a target accepts, and those that it runs fast.

    Args:
        name: of the target, such as `openvino-cpu`.
        runtime: a module of `octobert.targets.runtimes`, such as `ort`.
        description: one line for lists.
        device: what it runs on, such as `CPU` or `NVIDIA GPU`.
        baseline_precisions: precisions in which the float model runs on this device; the first is the float baseline. Empty
            where the device cannot run a float model: the CPU target of the same runtime is the baseline then.
        placement: name of the placement that the runtime runs fastest; `placement: auto` takes it.
        activations, weights, float_parts: types and forms of values.
        saturates_without: CPU features. On an x86 CPU with none of them 8-bit products saturate.
        roles: roles of sites that the runtime computes in integers.
        simulated_roles: roles that are accepted, but dequantized and computed in float.
        integer_operators: operators that run in integers if all their inputs are quantized.
        integer_only: the device computes in integers only; other operators fall back to slower units.
        qdq: operators between Quantize/DequantizeLinear run in integers; otherwise only the target's own operators do.
        onnx: what its ONNX files may hold.
        rewrites: what makes its files faster.
        shapes: batch and sequence are dynamic, fixed where the recipe says so (`either`), dynamic within profiles that are
            written next to the model, or fixed.
        exact_rows: outputs of a row in static quantization are the same to the last bit alone, padded and in any batch.
        static_lengths: a session may have models of static lengths for single rows besides the one for all shapes.
        file: ONNX file of a package that the target opens, or from which its model file is made.
        formats: formats that are written into the package.
        needs: what has to be installed.
        written_anywhere: files are also written on machines where the target cannot run, without measurements.
        status: `run here`, `run on a GPU`, or `structurally checked, not run`.
    """

    name: str
    runtime: str
    description: str
    device: str = "CPU"
    baseline_precisions: tuple[str, ...] = ("f32",)
    placement: str
    activations: Activations
    weights: Weights = Weights()
    float_parts: FloatParts = FloatParts()
    saturates_without: tuple[str, ...] = ()
    roles: tuple[str, ...]
    simulated_roles: tuple[str, ...] = ()
    integer_operators: tuple[str, ...] = ("MatMul", "Gemm")
    integer_only: bool = False
    qdq: bool = True
    onnx: OnnxRules
    rewrites: Rewrites = Rewrites()
    shapes: Literal["dynamic", "either", "profiles", "fixed"] = "dynamic"
    exact_rows: bool = False
    static_lengths: bool = False
    file: str = "onnx/model_quantized.onnx"
    formats: tuple[str, ...] = ("onnx",)
    needs: Needs = Needs()
    written_anywhere: bool = False
    status: str

    def but(self, **changes: Any) -> Capabilities:
        """Return a table with other values; a dictionary changes some values of a group.

        Example:
            >>> from octobert.targets import ort_cpu
            >>> ort_cpu.CAPABILITIES.but(name="ort-cpu-per-tensor", weights={"axis": None}).weights.types
            ('int8', 'uint8', 'float8e4m3')
        """
        for name, change in changes.items():
            group = getattr(self, name, None)
            if isinstance(change, dict) and isinstance(group, FrozenModel):
                changes[name] = {**dict(group), **change}
        return Capabilities(**{**dict(self), **changes})


class Probe(FrozenModel):
    """The availability of a target on this machine.

    Args:
        available: the target can run.
        version: of the runtime; None if it is not installed.
        missing: what is missing.
        install: command that installs it.
    """

    available: bool
    version: str | None = None
    missing: str | None = None
    install: str | None = None


def saturates(capabilities: Capabilities, features: Collection[str]) -> bool:
    """Return whether 8-bit products saturate on a CPU, so that weights need `reduce_range`.

    Args:
        features: of the CPU (`Environment.features`).
    """
    return bool(capabilities.saturates_without) and x86_saturates(features)


def x86_saturates(features: Collection[str]) -> bool:
    """Return whether a CPU is an x86 one without units for 8-bit products.

    Args:
        features: as for `saturates`.
    """
    return not _X86.isdisjoint(features) and {*INTEGER_UNITS}.isdisjoint(features)


def violations(plan: QuantPlan, capabilities: Capabilities) -> list[str]:
    """Return the rules of a target that a plan breaks, as sentences without a full stop."""
    types = capabilities.float_parts.accepted
    wrong = f"{capabilities.name} takes float parts of type {' or '.join(types)}, not {plan.float_parts}"
    broken = [] if plan.float_parts in types else [wrong]
    narrow = _narrow(plan)
    broken += [sentence for d in plan.decisions for sentence, _ in _broken(d, capabilities, narrow)]
    return list(dict.fromkeys(broken))


def check(plan: QuantPlan, capabilities: Capabilities) -> None:
    """Check a plan against the rules of a target.

    Raises:
        PlanError: the plan breaks rules.
    """
    broken = violations(plan, capabilities)
    if broken:
        raise PlanError(
            f"the plan breaks {len(broken)} rules of the target",
            where=f"target {capabilities.name}",
            got="; ".join(broken[:5])
            + (f"; and {len(broken) - 5} more" if len(broken) > 5 else ""),
            fix="choose another method, placement or type (octobert targets --json lists what the target accepts), "
            "or repair the plan with repair: true",
        )


def repaired(plan: QuantPlan, capabilities: Capabilities) -> QuantPlan:
    """Return the plan with each broken rule repaired by the closest change. The reasons of the decisions name the changes."""
    parts = (
        plan.float_parts
        if plan.float_parts in capabilities.float_parts.accepted
        else capabilities.float_parts.in_files[0]
    )
    narrow = _narrow(plan)
    decisions = tuple(_repaired(decision, capabilities, narrow) for decision in plan.decisions)
    return plan.replaced(decisions=decisions, float_parts=parts)


# Operator with 4-bit weights → what these are multiplied with.
_Narrow = Mapping[str, Literal["token", "float"]]


def _narrow(plan: QuantPlan) -> _Narrow:
    per_token = {site.node for site, quantizer in plan.quantized if quantizer.dynamic}
    return {
        site.node: "token" if site.node in per_token else "float"
        for site, quantizer in plan.quantized
        if quantizer.dtype == "int4"
    }


def _repaired(decision: Decision, capabilities: Capabilities, narrow: _Narrow) -> Decision:
    changes: list[str] = []
    # A repaired quantizer may break another rule. No repair breaks a rule that an earlier repair has satisfied.
    while decision.quantizer is not None and (broken := _broken(decision, capabilities, narrow)):
        sentence, quantizer = broken[0]
        changes.append(sentence)
        decision = decision.replaced(quantizer=quantizer)
    return decision.replaced(reason=f"repaired: {'; '.join(changes)}") if changes else decision


def _broken(
    decision: Decision, capabilities: Capabilities, narrow: _Narrow
) -> list[tuple[str, Quantizer | None]]:
    """Return the rules that a decision breaks: (sentence, the closest quantizer that keeps the rule or None for float)."""
    site, quantizer, name = decision.site, decision.quantizer, capabilities.name
    if quantizer is None:
        return []
    if site.role not in capabilities.roles + capabilities.simulated_roles:
        return [(f"{site.node}: {name} does not support 8-bit {site.role}", None)]
    if site.is_weight:
        return _broken_weight(site, quantizer, capabilities, narrow)
    if quantizer.dynamic:
        kind = "batch" if quantizer.group is None else "token"
        before_int4 = site.node in narrow and "token" in capabilities.weights.int4
        if kind == ("token" if before_int4 else capabilities.activations.dynamic):
            return []
        return [(f"{site.value}: {name} does not quantize activations per {kind}", None)]
    accepted = capabilities.activations.accepted
    broken: list[tuple[str, Quantizer | None]] = []
    if (quantizer.dtype, quantizer.symmetric) not in accepted:
        expected = " or ".join(kind_of(*pair) for pair in accepted)
        sentence = f"{site.value}: {name} takes {expected} activations, not {kind_of(quantizer.dtype, quantizer.symmetric)}"
        broken.append((sentence, _retyped(quantizer, *accepted[0])))
    elif quantizer.low is None or quantizer.high is None:
        broken.append((f"{site.value}: an activation needs a range", None))
    elif quantizer.high - quantizer.low < capabilities.activations.smallest_range:
        sentence = f"{site.value}: {name} takes ranges of at least {capabilities.activations.smallest_range:g}"
        middle = quantizer.low + capabilities.activations.smallest_range
        low, high = (-middle, middle) if quantizer.symmetric else (quantizer.low, middle)
        broken.append((sentence, quantizer.replaced(low=low, high=high)))
    return broken


def _broken_weight(
    site: Site, quantizer: Quantizer, capabilities: Capabilities, narrow: _Narrow
) -> list[tuple[str, Quantizer | None]]:
    broken: list[tuple[str, Quantizer | None]] = []
    is_table = site.role == "embedding.weight"
    accepted: tuple[DType, ...] = ("int8",) if is_table else capabilities.weights.types
    if not is_table and narrow.get(site.node) in capabilities.weights.int4:
        accepted = (*accepted, "int4")
    axis = 0 if is_table else capabilities.weights.axis
    takes = capabilities.weights.takes(quantizer.dtype, quantizer.symmetric)
    if quantizer.dtype not in accepted or not takes:
        changed = quantizer.replaced(dtype=accepted[0], symmetric=True, group=None)
        broken.append((f"{site.value}: weights must be symmetric {' or '.join(accepted)}", changed))
    if quantizer.axis not in (None, axis):
        expected = "one scale each" if axis is None else f"one scale per index of axis {axis}"
        changed = quantizer.replaced(axis=axis)
        broken.append(
            (
                f"{site.value}: weights may have {expected}, not one per index of axis {quantizer.axis}",
                changed,
            )
        )
    return broken


def _retyped(quantizer: Quantizer, dtype: DType, symmetric: bool) -> Quantizer:
    """Return a quantizer with the same range in another type."""
    low, high = quantizer.low, quantizer.high
    if symmetric and low is not None and high is not None:
        low, high = -max(-low, high), max(-low, high)
    return quantizer.replaced(dtype=dtype, symmetric=symmetric, low=low, high=high)


def kind_of(dtype: DType, symmetric: bool) -> str:
    """Return a type of activations in words."""
    return f"{'symmetric' if symmetric else 'asymmetric'} {dtype}"
