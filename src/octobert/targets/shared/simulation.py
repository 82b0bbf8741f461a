"""What a target's plan computes, on machines without the target's device."""

from __future__ import annotations

from pathlib import Path

import onnx_ir as ir

from octobert import targets
from octobert.core.plan import QuantPlan
from octobert.core.session import Session, SessionOptions
from octobert.graph import operators
from octobert.graph.passes import float16
from octobert.targets.runtimes import ort


def open_plan(quantized: Path, plan: QuantPlan, folder: Path) -> Session:
    """Open the quantized graph of a plan on the CPU, as it is written: every value that the plan rounds is rounded, and what
    lies between is computed in float, and rounded to float16 where the device has that type.

    Products of 8-bit integers and their sums in 32 bits are exact in that. A device may add in float16 inside an operator, or
    approximate it.

    Args:
        quantized: an ONNX file with Q/DQ.
        plan: that it was written by.
        folder: for the graph in the types of the device.

    Raises:
        TargetError: the CPU cannot run the graph.
    """
    # A device of integers alone has no float values between them.
    capabilities = targets.load(plan.target).capabilities
    computed = None if capabilities.integer_only else capabilities.float_parts.computed
    if "float16" in (computed, plan.float_parts):
        model = ir.load(quantized)
        float16.round_(model, plan.unfit)
        quantized = folder / quantized.name
        operators.save(model, quantized)
    return ort.OrtSession(quantized, SessionOptions(), ort.CPU, optimize=False)
