"""A plan and calibration rows → what every quantized value costs, before weights are corrected.

A corrected bias belongs to its 8-bit weight: beside the float weight it would be an error of its own.

Writes `sensitivity.json`.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from octobert.core.plan import QuantPlan
from octobert.pipeline.contract import Context, StepResult, Summary, TaskSpec
from octobert.pipeline.stages import _artifacts
from octobert.quantization import observer, sensitivity

# Rows that every value is tried on: errors of outputs are averages over them, and their ranking settles early.
ROWS = 32


def run(
    context: Context,
    capture: StepResult,
    data: StepResult,
    float_graph: StepResult,
    quantized: StepResult,
    observed: StepResult,
    *,
    spec: TaskSpec,
    seed: int,
) -> Summary:
    """Measure.

    Args:
        float_graph: the graph that was quantized.
        quantized: its plan.
        seed: draws the rows.
    """
    task = spec.build()
    tokenizer, encoded = _artifacts.calibration_rows(capture, data, task)
    chosen = np.random.default_rng(seed).permutation(len(encoded.flat))[:ROWS]
    measured = sensitivity.measure(
        ir.load(float_graph.path(_artifacts.FLOAT)),
        quantized.read(_artifacts.PLAN, QuantPlan),
        [encoded.flat[i] for i in chosen],
        tokenizer.pad_id,
        observer.load(observed.path(_artifacts.STATISTICS)),
        lambda done, of: context.progress("measuring sensitivity", done, of),
    )
    context.write(_artifacts.SENSITIVITY, measured)
    worst = measured.values[0].value if measured.values else None
    return {"values": len(measured.values), "worst": worst, "together": measured.together}
