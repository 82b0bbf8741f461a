"""Capability tables of targets, and the comparison of plans with them."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

from pydantic import Field

from octobert.core.errors import PlanError
from octobert.core.frozen import FrozenModel
from octobert.core.plan import Decision, DType, FloatType, Quantizer, QuantPlan, Site
from octobert.core.session import RuntimeOption

# Features of x86 CPUs for 8-bit products. A CPU with none of them computes these products slowly, and they saturate.
INTEGER_UNITS = ("avx512_vnni", "avx_vnni", "amx_int8")


class Capabilities(FrozenModel):
    """What a target accepts, and what it runs fast.

    Args:
        name: of the target, such as `openvino-cpu`.
        runtime: a module of `octobert.targets.runtimes`, such as `ort`.
        description: one line for lists.
        device: what it runs on, such as `CPU` or `NVIDIA GPU`.
        float_precisions: precisions in which the float model runs on this device; the first is the float baseline. Empty where
            the device cannot run a float model: the CPU target of the same runtime is the baseline then.
        float_model: what the float baseline opens in a run, the captured graph or the checkpoint (by transformers).
        placement: name of the placement that the runtime runs fastest; `placement: auto` takes it.
        activations: accepted (type, symmetric) pairs; the first is the default.
        simulated_activations: pairs that are accepted, but dequantized and computed in float.
        dynamic: the target computes dynamically quantized activations in integers.
        saturates_without: CPU features. On an x86 CPU with none of them 8-bit products saturate.
        symmetric_int8: roles whose activations default to symmetric int8 instead, where products do not saturate.
        weights: accepted weight types; the first is the default.
        weight_form: weights are stored as `integers`, or as floats behind a Quantize/Dequantize `pair`.
        weight_axis: axis of a [in, out] weight with one scale per index; None if weights have one scale per tensor.
        roles: roles of sites that the runtime computes in integers.
        simulated: roles that are accepted, but dequantized and computed in float.
        smallest_range: smallest width of the interval of an activation.
        float_parts: types of operators that are not quantized which files may have; the first is the default.
        float_entries: type of these operators → options of the runtime that make it compute in the type, where the machine does
            so natively. A type that is not among `float_parts` as well leaves the file in float32.
        shapes: batch and sequence are dynamic, dynamic within profiles that are written next to the model, or fixed.
        static_lengths: a session may have models of static lengths for single rows besides the one for all shapes.
        opset: lowest and highest accepted ONNX opset.
        domains: accepted operator domains besides ONNX's own.
        refuses: operators that the target does not support.
        int32_bias: the target accepts int32 biases behind DequantizeLinear, which other tools write.
        integer_operators: operators that run in integers if all their inputs are quantized.
        whole_graph: the device computes in integers only; other operators fall back to slower units.
        qoperator: the target also takes products as integer operators (`graph.passes.qoperator`), which it runs faster.
        first_token: the last layer may compute the first token only, where the head reads no other token.
        fast_norms: largest number of cores at which norms are rewritten to vectorized operators (`graph.passes.norms`).
        lowest_constant: lowest constant of a mask that the target can represent.
        pairs: operators between Quantize/DequantizeLinear run in integers; otherwise only the target's own operators do.
        file: ONNX file of a package that the target opens, or from which its model file is made.
        formats: formats that are written into the package.
        extra: extra of octobert whose packages the target needs; empty if none.
        build: package with a build of onnxruntime that has the target's provider; empty if the ordinary one has it.
        drivers: what its device needs of the system, by names in `octobert.api.setup`.
        written_anywhere: files are also written on machines where the target cannot run, without measurements.
        status: `run here`, `run on a GPU`, or `structurally checked, not run`.
    """

    name: str
    runtime: str
    description: str
    device: str = "CPU"
    float_precisions: tuple[str, ...] = ("f32",)
    float_model: Literal["graph", "checkpoint"] = "graph"
    placement: str
    activations: tuple[tuple[DType, bool], ...]
    simulated_activations: tuple[tuple[DType, bool], ...] = ()
    dynamic: bool = False
    saturates_without: tuple[str, ...] = ()
    symmetric_int8: tuple[str, ...] = ()
    weights: tuple[DType, ...] = ("int8",)
    weight_form: Literal["integers", "pair"] = "integers"
    weight_axis: int | None = 1
    roles: tuple[str, ...]
    simulated: tuple[str, ...] = ()
    smallest_range: float = 0.0
    float_parts: tuple[FloatType, ...] = ("float32",)
    float_entries: dict[FloatType, dict[str, RuntimeOption]] = Field(default_factory=dict)
    shapes: Literal["dynamic", "profiles", "fixed"] = "dynamic"
    static_lengths: bool = False
    opset: tuple[int, int]
    domains: tuple[str, ...] = ()
    refuses: tuple[str, ...] = ()
    int32_bias: bool = True
    integer_operators: tuple[str, ...] = ("MatMul", "Gemm")
    whole_graph: bool = False
    qoperator: bool = False
    first_token: bool = True
    fast_norms: int = 0
    lowest_constant: float = -3.0e38
    pairs: bool = True
    file: str = "onnx/model_quantized.onnx"
    formats: tuple[str, ...] = ("onnx",)
    extra: str = ""
    build: str = ""
    drivers: tuple[str, ...] = ()
    written_anywhere: bool = False
    status: str

    @property
    def float_types(self) -> tuple[FloatType, ...]:
        """Accepted types of operators that are not quantized: in files, or by options of the runtime."""
        return tuple(dict.fromkeys((*self.float_parts, *self.float_entries)))


class Probe(FrozenModel):
    """Whether a target can run on this machine.

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
    """Whether 8-bit products saturate on a CPU, so that weights need 7 bits.

    Args:
        features: of the CPU (`Environment.features`).
    """
    return lacks(capabilities.saturates_without, features)


def lacks(needed: Collection[str], features: Collection[str]) -> bool:
    """Whether an x86 CPU has none of the needed features.

    Example:
        >>> lacks(INTEGER_UNITS, ("avx2",)), lacks(INTEGER_UNITS, ("avx2", "avx_vnni"))
        (True, False)
    """
    return bool(needed) and "avx2" in features and not set(needed) & set(features)


def violations(plan: QuantPlan, capabilities: Capabilities) -> list[str]:
    """Return the rules of a target that a plan breaks, as sentences without a full stop."""
    types = capabilities.float_types
    wrong = f"{capabilities.name} takes float parts of type {' or '.join(types)}, not {plan.float_parts}"
    broken = [] if plan.float_parts in types else [wrong]
    broken += [sentence for d in plan.decisions for sentence, _ in _broken(d, capabilities)]
    return list(dict.fromkeys(broken))


def check(plan: QuantPlan, capabilities: Capabilities) -> None:
    """Check a plan against the rules of a target.

    Raises:
        PlanError: the plan breaks rules.
    """
    broken = violations(plan, capabilities)
    if broken:
        shown = "; ".join(broken[:5]) + (f"; and {len(broken) - 5} more" if len(broken) > 5 else "")
        raise PlanError(
            f"the plan breaks {len(broken)} rules of the target",
            where=f"target {capabilities.name}",
            got=shown,
            fix="choose another method, placement or type (octobert targets --json lists what the target accepts), "
            "or repair the plan with repair: true",
        )


def repaired(plan: QuantPlan, capabilities: Capabilities) -> QuantPlan:
    """Return the plan with each broken rule repaired by the closest change. The reasons of the decisions name the changes."""
    parts = (
        plan.float_parts
        if plan.float_parts in capabilities.float_types
        else capabilities.float_parts[0]
    )
    decisions = tuple(_repaired(decision, capabilities) for decision in plan.decisions)
    return plan.model_copy(update={"decisions": decisions, "float_parts": parts})


def _repaired(decision: Decision, capabilities: Capabilities) -> Decision:
    changes: list[str] = []
    # A repaired quantizer may break another rule. No repair breaks a rule that an earlier repair has satisfied.
    while decision.quantizer is not None and (broken := _broken(decision, capabilities)):
        sentence, quantizer = broken[0]
        changes.append(sentence)
        decision = decision.model_copy(update={"quantizer": quantizer})
    return (
        decision.model_copy(update={"reason": f"repaired: {'; '.join(changes)}"})
        if changes
        else decision
    )


def _broken(decision: Decision, capabilities: Capabilities) -> list[tuple[str, Quantizer | None]]:
    """Return the rules that a decision breaks: (sentence, the closest quantizer that keeps the rule or None for float)."""
    site, quantizer, name = decision.site, decision.quantizer, capabilities.name
    if quantizer is None:
        return []
    if site.role not in capabilities.roles + capabilities.simulated:
        return [(f"{site.node}: {name} does not support 8-bit {site.role}", None)]
    if site.is_weight:
        return _broken_weight(site, quantizer, capabilities)
    if quantizer.dynamic:
        sentence = f"{site.value}: {name} computes dynamically quantized activations in float"
        return [] if capabilities.dynamic else [(sentence, None)]
    accepted = capabilities.activations + capabilities.simulated_activations
    broken: list[tuple[str, Quantizer | None]] = []
    if (quantizer.dtype, quantizer.symmetric) not in accepted:
        expected = " or ".join(kind_of(*pair) for pair in accepted)
        sentence = f"{site.value}: {name} takes {expected} activations, not {kind_of(quantizer.dtype, quantizer.symmetric)}"
        broken.append((sentence, _retyped(quantizer, *accepted[0])))
    elif quantizer.low is None or quantizer.high is None:
        broken.append((f"{site.value}: an activation needs a range", None))
    elif quantizer.high - quantizer.low < capabilities.smallest_range:
        sentence = f"{site.value}: {name} takes ranges of at least {capabilities.smallest_range:g}"
        middle = quantizer.low + capabilities.smallest_range
        low, high = (-middle, middle) if quantizer.symmetric else (quantizer.low, middle)
        broken.append((sentence, quantizer.model_copy(update={"low": low, "high": high})))
    return broken


def _broken_weight(
    site: Site, quantizer: Quantizer, capabilities: Capabilities
) -> list[tuple[str, Quantizer | None]]:
    broken: list[tuple[str, Quantizer | None]] = []
    is_table = site.role == "embedding.weight"
    accepted: tuple[DType, ...] = ("int8",) if is_table else capabilities.weights
    axis = 0 if is_table else capabilities.weight_axis
    if quantizer.dtype not in accepted or not quantizer.symmetric:
        changed = quantizer.model_copy(update={"dtype": accepted[0], "symmetric": True})
        broken.append((f"{site.value}: weights must be symmetric {' or '.join(accepted)}", changed))
    if quantizer.axis not in (None, axis):
        expected = "one scale each" if axis is None else f"one scale per index of axis {axis}"
        changed = quantizer.model_copy(update={"axis": axis})
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
    return quantizer.model_copy(
        update={"dtype": dtype, "symmetric": symmetric, "low": low, "high": high}
    )


def kind_of(dtype: DType, symmetric: bool) -> str:
    """Return a type of activations in words."""
    return f"{'symmetric' if symmetric else 'asymmetric'} {dtype}"
