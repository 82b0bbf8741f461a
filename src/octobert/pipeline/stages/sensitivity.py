"""A plan and calibration rows → what every quantized value costs, before weights are corrected.

A corrected bias belongs to its 8-bit weight: beside the float weight it would be an error of its own.

Writes `sensitivity.json`.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from octobert.core.frozen import FrozenModel
from octobert.core.plan import QuantPlan
from octobert.pipeline.contract import Context, StepResult, Summary, TaskSpec
from octobert.pipeline.stages import _artifacts, _rows, observe
from octobert.quantization import observer, sensitivity

FACTS = "sensitivity.json"
# Rows that every value is tried on: errors of outputs are averages over them, and their ranking settles early.
ROWS = 32


class Inputs(FrozenModel):
    """The captured graph, the graph that was quantized, the calibration rows, the plan, and the statistics."""

    capture: StepResult
    data: StepResult
    float_graph: StepResult
    quantize: StepResult
    observe: StepResult


class Options(FrozenModel):
    """The seed draws the rows."""

    task: TaskSpec
    seed: int


def run(context: Context[Inputs, Options]) -> Summary:
    """Measure."""
    inputs, task = context.inputs, context.options.task.build()
    tokenizer = _rows.tokenizer_of(inputs.capture, task)
    rows = _rows.calibration_rows(inputs.data, task, tokenizer).flat
    chosen = np.random.default_rng(context.options.seed).permutation(len(rows))[:ROWS]
    measured = sensitivity.measure(
        ir.load(inputs.float_graph.path(_artifacts.FLOAT)),
        inputs.quantize.read(_artifacts.PLAN, QuantPlan),
        [rows[i] for i in chosen],
        tokenizer.pad_id,
        observer.load(inputs.observe.path(observe.STATISTICS)),
        lambda done, of: context.progress("measuring sensitivity", done, of),
    )
    context.write(FACTS, measured)
    worst = measured.values[0].value if measured.values else None
    return {"values": len(measured.values), "worst": worst, "together": measured.together}
