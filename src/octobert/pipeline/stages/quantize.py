"""The float graph and its ranges → a plan for one target, checked against its capabilities, and the quantized graph.

Writes `plan.json`, `model_quantized.onnx`, and `corrections.npz` where weights were corrected.
"""

from __future__ import annotations

import numpy as np

from octobert import targets
from octobert.config.recipe import Choice
from octobert.core import capability
from octobert.core.frozen import FrozenModel
from octobert.core.plan import QuantPlan
from octobert.core.ranges import Ranges
from octobert.pipeline.contract import Context, StepResult, Summary, TaskSpec
from octobert.pipeline.stages import _artifacts, _plans, _rows
from octobert.quantization import apply_corrections, corrections
from octobert.quantization.layers import LayerChange


class Inputs(FrozenModel):
    """The captured graph, the graph to quantize, the calibration rows, and the step that made the ranges."""

    capture: StepResult
    data: StepResult
    float_graph: StepResult
    ranges: StepResult


class Options(FrozenModel):
    """Method, corrections, and whether a plan that breaks a rule of its target is an error (`strict`) or is repaired."""

    target: str
    method: Choice
    corrections: tuple[Choice, ...]
    strict: bool
    task: TaskSpec


def run(context: Context[Inputs, Options]) -> Summary:
    """Plan, check, correct, write."""
    inputs, options = context.inputs, context.options
    graph = inputs.float_graph.path(_artifacts.FLOAT)
    ranges = inputs.ranges.read(_artifacts.RANGES, Ranges)
    plan = _plans.plan_of(inputs.capture, graph, ranges, options.target, options.method)
    capabilities = targets.load(options.target).CAPABILITIES
    if not options.strict:
        plan = capability.repaired(plan, capabilities)
    capability.check(plan, capabilities)
    changes = _trained_scales(inputs.ranges, plan) or _corrected(context, plan)
    if changes:
        apply_corrections.save(changes, context.work / _artifacts.CORRECTIONS)
    size = _plans.write_quantized(graph, plan, changes, context.work / _artifacts.QUANTIZED)
    context.write(_artifacts.PLAN, plan)
    sites = len(plan.decisions)
    return {"quantized": len(plan.quantized), "sites": sites, "corrected": len(changes), "size_bytes": size}


def _trained_scales(ranges: StepResult, plan: QuantPlan) -> dict[str, LayerChange]:
    """The scales of weights that quantization-aware training chose; none where the ranges were calibrated."""
    path = ranges.path(_artifacts.SCALES)
    if not path.is_file():
        return {}
    # Layers that share a weight are listed under the path of the first.
    first: dict[str, str] = {}
    for site, _ in plan.quantized:
        if site.is_weight:
            first.setdefault(site.value.removesuffix(".weight"), site.module)
    with np.load(path) as arrays:
        return {first[name]: LayerChange(None, None, arrays[name]) for name in arrays.files if name in first}


def _corrected(context: Context[Inputs, Options], plan: QuantPlan) -> dict[str, LayerChange]:
    chosen = [(corrections.load(choice.name), choice.options) for choice in context.options.corrections]
    if not chosen:
        return {}
    inputs, task = context.inputs, context.options.task.build()
    tokenizer = _rows.tokenizer_of(inputs.capture, task)
    rows = _rows.calibration_rows(inputs.data, task, tokenizer).flat
    steps = [(correction, correction.Options.model_validate(options)) for correction, options in chosen]
    graph = inputs.float_graph.path(_artifacts.FLOAT)
    return apply_corrections.correct_layers(graph, rows, tokenizer.pad_id, plan, steps, context.progress)
