"""The float graph and its ranges → a plan for one target, checked against its capabilities, and the quantized graph.

Layers that would make most of the expected error stay in float. A corrected bias belongs to its 8-bit weight, so the error is
that before weights are corrected. What was trained in 8 bits stays so.

Writes `plan.json`, `model_quantized.onnx`, `sensitivity.json` where it was estimated, and `corrections.npz` where weights were
corrected.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx_ir as ir

from octobert import targets
from octobert.config.recipe import Choice
from octobert.core import capability, environment
from octobert.core.arrays import arrays_in
from octobert.core.plan import QuantPlan
from octobert.core.ranges import Ranges
from octobert.core.results import Sensitivity
from octobert.data.tokenization import EncodedTexts, Tokenizer
from octobert.pipeline.contract import Context, StepResult, Summary, TaskSpec
from octobert.pipeline.stages import _artifacts, _plans
from octobert.quantization import apply_corrections
from octobert.quantization import sensitivity as estimating
from octobert.quantization.corrections import LayerChange, load

# Rows of the estimate: errors of outputs are averages over them, and their ranking settles early.
ROWS = 16


def run(
    context: Context,
    capture: StepResult,
    data: StepResult,
    float_graph: StepResult,
    ranges: StepResult,
    before: StepResult | None,
    *,
    target: str,
    method: Choice,
    corrections: tuple[Choice, ...],
    sensitivity: bool,
    repair: bool,
    spec: TaskSpec,
    seed: int,
) -> Summary:
    """Plan, check, correct, write.

    Args:
        float_graph: the graph to quantize.
        before: the same of another target: weights that it has corrected for the same quantizers are taken.
        sensitivity: estimate the output error of each value.
        repair: change a plan that breaks a rule of its target; otherwise it is an error.
        seed: draws the rows of the estimate.
    """
    graph = float_graph.path(_artifacts.FLOAT)
    plan = _plans.plan_of(capture, graph, ranges.read(_artifacts.RANGES, Ranges), target, method)
    capabilities = targets.load(target).CAPABILITIES
    if repair:
        plan = capability.repaired(plan, capabilities)
    capability.check(plan, capabilities)
    changes = _trained_scales(ranges, plan)
    estimated = sensitivity and bool(plan.quantized)
    if estimated or corrections:
        tokenizer, rows = _artifacts.calibration_rows(capture, data, spec.build())
    if estimated:
        expected = _expected(context, graph, plan, tokenizer, rows, changes, seed)
        if not changes and not capabilities.integer_only:
            plan, expected = estimating.in_float(plan, expected)
        context.write(_artifacts.SENSITIVITY, expected)
    if not changes and corrections and before and _corrects_the_same(graph, plan, before):
        changes = apply_corrections.load(before.path(_artifacts.CORRECTIONS))
    elif not changes and corrections:
        loaded = [(load(choice.name), choice.options) for choice in corrections]
        steps = [
            (correction, correction.Options.model_validate(options))
            for correction, options in loaded
        ]
        changes = apply_corrections.correct_layers(
            graph, rows.flat, tokenizer.pad_id, plan, steps, context.progress
        )
    if changes:
        apply_corrections.save(changes, context.work / _artifacts.CORRECTIONS)
    size = _plans.write_quantized(graph, plan, changes, context.work / _artifacts.QUANTIZED)
    context.write(_artifacts.PLAN, plan)
    sites = len(plan.decisions)
    return {
        "quantized": len(plan.quantized),
        "sites": sites,
        "corrected": len(changes),
        "size_bytes": size,
    }


def _expected(
    context: Context,
    graph: Path,
    plan: QuantPlan,
    tokenizer: Tokenizer,
    rows: EncodedTexts,
    trained: Mapping[str, LayerChange],
    seed: int,
) -> Sensitivity:
    """What the values of a plan cost, estimated on some of the calibration rows."""
    model = ir.load(graph)
    chosen = np.random.default_rng(seed).permutation(len(rows.flat))[:ROWS]
    expected = estimating.estimate(
        model,
        plan,
        [rows.flat[i] for i in chosen],
        tokenizer.pad_id,
        lambda done, of: context.progress("estimating errors", done, of),
        apply_corrections.apply_(model, trained, plan),
        seed,
    )
    # Moments of all layers come next.
    environment.release_memory()
    return expected


def _corrects_the_same(graph: Path, plan: QuantPlan, before: StepResult) -> bool:
    corrected = before.path(_artifacts.CORRECTIONS).is_file()
    return corrected and apply_corrections.same(
        graph, plan, before.read(_artifacts.PLAN, QuantPlan)
    )


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
    scales = arrays_in(path)
    return {
        first[name]: LayerChange(None, None, scale)
        for name, scale in scales.items()
        if name in first
    }
