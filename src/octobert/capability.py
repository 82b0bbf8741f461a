"""What a target accepts and runs fast, as a table; and the one function that holds a plan against it."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

from octobert.errors import PlanError
from octobert.plan import DType, Noun, QuantPlan


class Capabilities(Noun):
    """One target.

    Args:
        name: as users write it, `openvino-cpu`.
        runtime: which session opens its models: `ort`, `openvino` or `torch`.
        description: one line for people.
        placement: name of the placement that the runtime runs fastest; what `placement: auto` means.
        activations: accepted (type, symmetric) pairs; the first is the default.
        simulated_activations: pairs that are accepted, but dequantized and computed in float.
        dynamic: it computes dynamically quantized activations in integers.
        saturates_without: CPU features of which one is needed for exact products of 8-bit numbers on x86.
        symmetric_int8: roles whose activations default to symmetric int8 instead, where products do not saturate.
        weights: accepted weight types.
        weight_form: weights lie in the file as integers, or as floats behind a Quantize/Dequantize pair.
        weight_axis: the axis of a [in, out] weight that may have its own scale each, None for per-tensor only.
        roles: site roles that the runtime computes in integers.
        simulated: roles that are accepted, but dequantized and computed in float.
        opset: accepted range of the ONNX opset.
        formats: what is written into the package.
        written_anywhere: its files are written where it cannot run, too; they are not measured there.
        status: `run here`, `run on a GPU`, or `structurally checked, not run`.
    """

    name: str
    runtime: Literal["ort", "openvino", "torch"]
    description: str
    placement: str
    activations: tuple[tuple[DType, bool], ...]
    simulated_activations: tuple[tuple[DType, bool], ...] = ()
    dynamic: bool = False
    saturates_without: tuple[str, ...] = ()
    symmetric_int8: tuple[str, ...] = ()
    weights: tuple[Literal["int8", "uint8"], ...]
    weight_form: Literal["integers", "pair"] = "integers"
    weight_axis: int | None
    roles: tuple[str, ...]
    simulated: tuple[str, ...] = ()
    opset: tuple[int, int]
    formats: tuple[str, ...]
    written_anywhere: bool = False
    status: str


class Probe(Noun):
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
    needed = set(capabilities.saturates_without)
    return bool(needed) and "avx2" in features and not needed & set(features)


def violations(plan: QuantPlan, capabilities: Capabilities) -> list[str]:
    """Every rule of a target that a plan breaks, as sentences without a final stop."""
    found: list[str] = []
    for site, quantizer in plan.quantized:
        if site.role not in capabilities.roles + capabilities.simulated:
            found.append(f"{site.node}: {capabilities.name} does not take 8-bit {site.role}")
        elif site.is_weight:
            if quantizer.dtype not in capabilities.weights or not quantizer.symmetric:
                found.append(f"{site.value}: weights must be symmetric {' or '.join(capabilities.weights)}")
            axis = 0 if site.role == "embedding.weight" else capabilities.weight_axis
            if quantizer.axis not in (None, axis):
                found.append(f"{site.value}: weights may have one scale per index of axis {axis}, not {quantizer.axis}")
        elif quantizer.dynamic:
            if not capabilities.dynamic:
                found.append(f"{site.value}: {capabilities.name} computes dynamically quantized activations in float")
        elif (quantizer.dtype, quantizer.symmetric) not in capabilities.activations + capabilities.simulated_activations:
            kind = f"{'symmetric' if quantizer.symmetric else 'asymmetric'} {quantizer.dtype}"
            found.append(f"{site.value}: {capabilities.name} does not run {kind} activations in integers")
        elif quantizer.low is None or quantizer.high is None:
            found.append(f"{site.value}: an activation needs a range")
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
            fix="choose another method, placement or type (octobert targets --json lists what the target takes)",
        )
