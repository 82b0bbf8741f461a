"""The float graph and its ranges → a plan for one target, checked against its capabilities, and the quantized graph.

Writes `plan.json`, `model_quantized.onnx`, and `corrections.npz` where weights were corrected.
"""

from __future__ import annotations

from pathlib import Path

from octobert import targets
from octobert.config.recipe import Choice
from octobert.core import capability
from octobert.core.plan import QuantPlan
from octobert.core.ranges import Ranges
from octobert.pipeline.contract import Context, StepResult, Summary, TaskSpec
from octobert.pipeline.stages import _artifacts, _plans
from octobert.quantization import apply_corrections
from octobert.quantization.corrections import LayerChange, load


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
    repair: bool,
    spec: TaskSpec,
) -> Summary:
    """Plan, check, correct, write.

    Args:
        float_graph: the graph to quantize.
        before: the same of another target: weights that it has corrected for the same quantizers are taken.
        repair: change a plan that breaks a rule of its target; otherwise it is an error.
    """
    graph = float_graph.path(_artifacts.FLOAT)
    plan = _plans.plan_of(capture, graph, ranges.read(_artifacts.RANGES, Ranges), target, method)
    capabilities = targets.load(target).CAPABILITIES
    if repair:
        plan = capability.repaired(plan, capabilities)
    capability.check(plan, capabilities)
    changes = _trained_scales(ranges, plan)
    if not changes and corrections and before and _corrects_the_same(graph, plan, before):
        changes = apply_corrections.load(before.path(_artifacts.CORRECTIONS))
    elif not changes and corrections:
        tokenizer, encoded = _artifacts.calibration_rows(capture, data, spec.build())
        loaded = [(load(choice.name), choice.options) for choice in corrections]
        steps = [
            (correction, correction.Options.model_validate(options))
            for correction, options in loaded
        ]
        changes = apply_corrections.correct_layers(
            graph, encoded.flat, tokenizer.pad_id, plan, steps, context.progress
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
    scales = _artifacts.arrays_in(path)
    return {
        first[name]: LayerChange(None, None, scale)
        for name, scale in scales.items()
        if name in first
    }
