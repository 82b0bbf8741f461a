"""What a target's plan computes, on machines without the target's device."""

from __future__ import annotations

from pathlib import Path

import onnx_ir as ir

from octobert.core.plan import FloatType
from octobert.core.session import Session, SessionOptions
from octobert.graph import operators
from octobert.graph.passes import float16
from octobert.targets.runtimes import ort


def open_plan(quantized: Path, float_parts: FloatType, folder: Path) -> Session:
    """Open the quantized graph of a plan on the CPU, as it is written: every value that the plan rounds is rounded, and what
    lies between is computed in float.

    Products of 8-bit integers and their sums in 32 bits are exact in that. A device may compute the float operators in other
    types, or approximate them.

    Args:
        quantized: an ONNX file with Q/DQ.
        float_parts: type of the operators between.
        folder: for the graph in that type.

    Raises:
        TargetError: the CPU cannot run the graph.
    """
    if float_parts != "float32":
        model = ir.load(quantized)
        float16.convert_(model, float_parts)
        quantized = folder / quantized.name
        operators.save(model, quantized)
    return ort.OrtSession(quantized, SessionOptions(), ort.CPU, optimize=False)
