"""What a target accepts and runs fast, as a table; and the one function that holds a plan against it."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

from octobert.core.errors import PlanError
from octobert.core.frozen import FrozenModel
from octobert.core.plan import Decision, DType, FloatType, Quantizer, QuantPlan, Site

# Features of x86 CPUs of which one is needed for fast and exact products of 8-bit numbers.
INTEGER_UNITS = ("avx512_vnni", "avx_vnni", "amx_int8")


class Capabilities(FrozenModel):
    """One target.

    Args:
        name: as users write it, `openvino-cpu`.
        runtime: a module of `octobert.targets.runtimes`, such as `ort`.
        description: one line for people.
        device: what it runs on, such as `CPU` or `NVIDIA GPU`.
        float_precisions: precisions in which the float model runs on this device; the first is the float baseline. Empty where
            the device cannot run a float model: the CPU target of the same runtime is the baseline then.
        float_model: what the float baseline opens in a run, the captured graph or the checkpoint (by transformers).
        placement: name of the placement that the runtime runs fastest; what `placement: auto` means.
        activations: accepted (type, symmetric) pairs; the first is the default.
        simulated_activations: pairs that are accepted, but dequantized and computed in float.
        dynamic: it computes dynamically quantized activations in integers.
        saturates_without: CPU features of which one is needed for exact products of 8-bit numbers on x86.
        symmetric_int8: roles whose activations default to symmetric int8 instead, where products do not saturate.
        weights: accepted weight types; the first is the default.
        weight_form: weights lie in the file as integers, or as floats behind a Quantize/Dequantize pair.
        weight_axis: the axis of a [in, out] weight that may have its own scale each, None for per-tensor only.
        roles: site roles that the runtime computes in integers.
        simulated: roles that are accepted, but dequantized and computed in float.
        least_range: the narrowest range of an activation.
        float_parts: accepted types of what is not quantized; the first is the default.
        shapes: batch and sequence are free in its files, free within limits that are written beside them, or fixed.
        opset: accepted range of the ONNX opset.
        domains: operator domains beside ONNX's own that it takes.
        refuses: operators that it does not compute at all, not even in float.
        int32_bias: it takes biases that are int32 behind DequantizeLinear, as other tools write them.
        integer_operators: operators that it computes in integers if all their inputs are quantized.
        whole_graph: it is meant to compute everything in integers; what is not quantized falls to slower units.
        first_token: the last layer computes the first token only, where the head reads no other; not where fused operators take
            layers whole.
        fast_norms: on machines with up to so many cores norms are faster in operators that compute with vectors (`norms`).
        lowest_constant: below this a mask's constant is no number to it any more.
        pairs: it computes in integers what stands between Quantize/DequantizeLinear; otherwise its own operators only.
        file: the ONNX file of a package that it opens, or that what it opens was made from.
        formats: what is written into the package.
        written_anywhere: its files are written where it cannot run, too; they are not measured there.
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
    weights: tuple[DType, ...]
    weight_form: Literal["integers", "pair"] = "integers"
    weight_axis: int | None
    roles: tuple[str, ...]
    simulated: tuple[str, ...] = ()
    least_range: float = 0.0
    float_parts: tuple[FloatType, ...] = ("float32",)
    shapes: Literal["dynamic", "profiles", "fixed"] = "dynamic"
    opset: tuple[int, int]
    domains: tuple[str, ...] = ()
    refuses: tuple[str, ...] = ()
    int32_bias: bool = True
    integer_operators: tuple[str, ...] = ("MatMul", "Gemm")
    whole_graph: bool = False
    first_token: bool = True
    fast_norms: int = 0
    lowest_constant: float = -3.0e38
    pairs: bool = True
    file: str = "onnx/model_quantized.onnx"
    formats: tuple[str, ...]
    written_anywhere: bool = False
    status: str


class Probe(FrozenModel):
    """Whether a target can run on this machine.

    Args:
        available: it can.
        version: of the runtime, where it is installed.
        missing: what is missing, in words.
        install: the command that mends it.
    """

    available: bool
    version: str | None = None
    missing: str | None = None
    install: str | None = None


def saturates(capabilities: Capabilities, features: Collection[str]) -> bool:
    """Whether products of full 8-bit numbers are inexact on a CPU with these features; weights need 7 bits there."""
    return lacks(capabilities.saturates_without, features)


def lacks(needed: Collection[str], features: Collection[str]) -> bool:
    """Whether an x86 CPU has none of the features of which it needs one."""
    return bool(needed) and "avx2" in features and not set(needed) & set(features)


def violations(plan: QuantPlan, capabilities: Capabilities) -> list[str]:
    """Every rule of a target that a plan breaks, as sentences without a final stop."""
    found = [] if plan.float_parts in capabilities.float_parts else [_wrong_float(plan, capabilities)]
    found += [sentence for d in plan.decisions for sentence, _ in _broken(d, capabilities)]
    return list(dict.fromkeys(found))


def check(plan: QuantPlan, capabilities: Capabilities) -> None:
    """Refuse a plan that the target refuses.

    Raises:
        PlanError: with every broken rule.
    """
    found = violations(plan, capabilities)
    if found:
        shown = "; ".join(found[:5]) + (f"; and {len(found) - 5} more" if len(found) > 5 else "")
        raise PlanError(
            f"the plan breaks {len(found)} rules of the target",
            where=f"target {capabilities.name}",
            got=shown,
            fix="choose another method, placement or type (octobert targets --json lists what the target takes), "
            "or have it repaired with strict: false",
        )


def repaired(plan: QuantPlan, capabilities: Capabilities) -> QuantPlan:
    """The plan as the target takes it; whatever had to change says so in its reason."""
    parts = plan.float_parts if plan.float_parts in capabilities.float_parts else capabilities.float_parts[0]
    decisions = tuple(_repaired(decision, capabilities) for decision in plan.decisions)
    return plan.model_copy(update={"decisions": decisions, "float_parts": parts})


def _repaired(decision: Decision, capabilities: Capabilities) -> Decision:
    changes: list[str] = []
    # A quantizer that is mended in one respect may break another rule; each repair satisfies its rule for good.
    while decision.quantizer is not None and (broken := _broken(decision, capabilities)):
        sentence, quantizer = broken[0]
        changes.append(sentence)
        decision = decision.model_copy(update={"quantizer": quantizer})
    return decision.model_copy(update={"reason": f"repaired: {'; '.join(changes)}"}) if changes else decision


def _broken(decision: Decision, capabilities: Capabilities) -> list[tuple[str, Quantizer | None]]:
    """The rules that a decision breaks: (sentence, the nearest quantizer that keeps the rule, None for float)."""
    site, quantizer, name = decision.site, decision.quantizer, capabilities.name
    if quantizer is None:
        return []
    if site.role not in capabilities.roles + capabilities.simulated:
        return [(f"{site.node}: {name} does not take 8-bit {site.role}", None)]
    if site.is_weight:
        return _broken_weight(site, quantizer, capabilities)
    if quantizer.dynamic:
        sentence = f"{site.value}: {name} computes dynamically quantized activations in float"
        return [] if capabilities.dynamic else [(sentence, None)]
    accepted = capabilities.activations + capabilities.simulated_activations
    found: list[tuple[str, Quantizer | None]] = []
    if (quantizer.dtype, quantizer.symmetric) not in accepted:
        expected = " or ".join(kind_of(*pair) for pair in accepted)
        sentence = f"{site.value}: {name} takes {expected} activations, not {kind_of(quantizer.dtype, quantizer.symmetric)}"
        found.append((sentence, _retyped(quantizer, *accepted[0])))
    elif quantizer.low is None or quantizer.high is None:
        found.append((f"{site.value}: an activation needs a range", None))
    elif quantizer.high - quantizer.low < capabilities.least_range:
        sentence = f"{site.value}: {name} takes ranges of at least {capabilities.least_range:g}"
        middle = quantizer.low + capabilities.least_range
        low, high = (-middle, middle) if quantizer.symmetric else (quantizer.low, middle)
        found.append((sentence, quantizer.model_copy(update={"low": low, "high": high})))
    return found


def _broken_weight(site: Site, quantizer: Quantizer, capabilities: Capabilities) -> list[tuple[str, Quantizer | None]]:
    found: list[tuple[str, Quantizer | None]] = []
    is_table = site.role == "embedding.weight"
    taken: tuple[DType, ...] = ("int8",) if is_table else capabilities.weights
    axis = 0 if is_table else capabilities.weight_axis
    if quantizer.dtype not in taken or not quantizer.symmetric:
        changed = quantizer.model_copy(update={"dtype": taken[0], "symmetric": True})
        found.append((f"{site.value}: weights must be symmetric {' or '.join(taken)}", changed))
    if quantizer.axis not in (None, axis):
        wanted = "one scale each" if axis is None else f"one scale per index of axis {axis}"
        changed = quantizer.model_copy(update={"axis": axis})
        found.append((f"{site.value}: weights may have {wanted}, not one per index of axis {quantizer.axis}", changed))
    return found


def _retyped(quantizer: Quantizer, dtype: DType, symmetric: bool) -> Quantizer:
    """The same range in another type."""
    low, high = quantizer.low, quantizer.high
    if symmetric and low is not None and high is not None:
        low, high = -max(-low, high), max(-low, high)
    return quantizer.model_copy(update={"dtype": dtype, "symmetric": symmetric, "low": low, "high": high})


def kind_of(dtype: DType, symmetric: bool) -> str:
    """A type of activations in words."""
    return f"{'symmetric' if symmetric else 'asymmetric'} {dtype}"


def _wrong_float(plan: QuantPlan, capabilities: Capabilities) -> str:
    return f"{capabilities.name} takes float parts of type {' or '.join(capabilities.float_parts)}, not {plan.float_parts}"
