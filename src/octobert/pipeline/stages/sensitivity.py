"""A plan and calibration rows → what every quantized value costs, before refinement.

A corrected bias belongs to its 8-bit weight: beside the float weight it would be an error of its own.

Writes `sensitivity.json`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from octobert.core.plan import QuantPlan
from octobert.pipeline.stages import Context, calibration, observe
from octobert.quantization import sensitivity

VERSION = 3
# Rows that every value is tried on: errors of outputs are averages over them, and their ranking settles early.
ROWS = 32


def run(context: Context) -> dict[str, Any]:
    """Measure."""
    plan = context.read("quantize", "plan.json", QuantPlan)
    encoder, asked = calibration(context)
    rows = asked.flat
    chosen = np.random.default_rng(int(context.options["seed"])).permutation(len(rows))[:ROWS]
    model = ir.load(context.inputs["float"] / "model.onnx")
    statistics = observe.load(context.inputs["observe"] / "statistics.npz")
    found = sensitivity.measure(
        model,
        plan,
        [rows[i] for i in chosen],
        encoder.pad_id,
        statistics,
        lambda done, of: context.progress("measuring sensitivity", done, of),
    )
    context.write("sensitivity.json", found)
    return {"values": len(found.values), "worst": found.values[0].value, "together": found.together}
