"""The float graph and its ranges → a plan for one target, checked against its capabilities, and the quantized graph.

Layers that would make most of the expected error stay in float. A corrected bias belongs to its 8-bit weight, so the error is
that before weights are corrected. What was trained in 8 bits stays so.

Writes `plan.json`, `model_quantized.onnx`, `sensitivity.json` where it was estimated, and `corrections.npz` where weights were
corrected.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from octobert.core import capability, environment
from octobert.core.capability import Capabilities
from octobert.core.errors import PlanError
from octobert.core.plan import QuantPlan
from octobert.core.results import Sensitivity
from octobert.data.encoded import Encoded
from octobert.data.tokenization import EncodedTexts, Tokenizer
from octobert.engine.contract import Context, Summary, stage
from octobert.graph import operators
from octobert.graph.passes import float16
from octobert.pipeline import artifacts
from octobert.pipeline.artifacts import Calibrated, CapturedModel, FloatGraph, Planned, Rows
from octobert.pipeline.stages import _plans
from octobert.pipeline.task import TaskSpec
from octobert.quantization import apply_corrections, observer
from octobert.quantization import sensitivity as estimating
from octobert.quantization.corrections import CorrectionField, LayerChange
from octobert.quantization.methods import MethodField
from octobert.targets import TargetField

# Rows of the estimate: errors of outputs are averages over them, and their ranking settles early.
ROWS = 16


@stage(Planned, anywhere=True)
def run(
    context: Context,
    capture: CapturedModel,
    data: Rows,
    float_graph: FloatGraph,
    ranges: Calibrated,
    before: Planned | None,
    *,
    target: TargetField,
    method: MethodField,
    corrections: tuple[CorrectionField, ...],
    sensitivity: bool,
    repair: bool,
    spec: TaskSpec,
    supplement: bool,
    seed: int,
) -> Summary:
    """Plan, check, correct, write.

    Args:
        float_graph: the graph to quantize.
        before: the same of another target: its estimate and its corrected weights are taken where its quantizers are the same.
        sensitivity: estimate the output error of each value.
        repair: change a plan that breaks a rule of its target; otherwise it is an error.
        supplement: what float16 has to hold is measured on other texts than the calibration rows, too.
        seed: draws the rows of the estimate.
    """
    model = float_graph.load()
    plan = _plans.plan_of(capture, model, ranges.ranges, target, method)
    capabilities = target.capabilities
    if repair:
        plan = capability.repaired(plan, capabilities)
    capability.check(plan, capabilities)
    changes = _trained_scales(ranges, plan)
    estimated = sensitivity and bool(plan.quantized)
    task = spec.build()
    if estimated or corrections:
        tokenizer, rows = capture.calibration(data, task)
    if estimated:
        known = before.sensitivity if before else None
        same = estimating.of_part(plan, before.plan, known) if before and known else None
        expected = same or _expected(context, model.clone(), plan, tokenizer, rows, changes, seed)
        if not changes and not capabilities.integer_only:
            plan, expected = estimating.in_float(plan, expected)
        context.write(artifacts.SENSITIVITY, expected)
    if not changes and corrections and before and _corrects_the_same(model, plan, before):
        changes = before.changes()
    elif not changes and corrections:
        changes = apply_corrections.correct_layers(
            model, rows.flat, tokenizer.pad_id, plan, corrections, context.progress
        )
    if changes:
        apply_corrections.save(changes, context.work / artifacts.CORRECTIONS)
    size = _plans.write_quantized_(model, plan, changes, context.work / artifacts.QUANTIZED)
    # What comes next loads the float graph again.
    del model
    if "float16" in (capabilities.float_parts.computed, plan.float_parts):
        tokenizer, rows = capture.calibration(data, task)
        more = artifacts.supplement(tokenizer, rows, task, wanted=supplement)
        fed = [*rows.flat, *more.flat]
        plan = _fitting(context, float_graph, plan, capabilities, fed, tokenizer.pad_id)
    context.write(artifacts.PLAN, plan)
    sites = len(plan.decisions)
    return {
        "quantized": len(plan.quantized),
        "sites": sites,
        "corrected": len(changes),
        "size_bytes": size,
    }


def _expected(
    context: Context,
    model: ir.Model,
    plan: QuantPlan,
    tokenizer: Tokenizer,
    rows: EncodedTexts,
    trained: Mapping[str, LayerChange],
    seed: int,
) -> Sensitivity:
    """What the values of a plan cost, estimated on some of the calibration rows; the graph is changed."""
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


def _fitting(
    context: Context,
    graph: FloatGraph,
    plan: QuantPlan,
    capabilities: Capabilities,
    rows: Sequence[Encoded],
    pad_id: int,
) -> QuantPlan:
    """The plan with the values that float16 cannot hold.

    Raises:
        PlanError: the target computes all of them in float16.
    """
    model = graph.load()
    mixes = capabilities.float_parts.mixes(plan.float_parts)
    seen = observer.largest(model, rows, pad_id, float16.converted(model))
    if capabilities.integer_only:
        # What is only read in integers is float nowhere.
        written = operators.named(ir.load(context.work / artifacts.QUANTIZED).graph)
        seen = {
            name: most
            for name, most in seen.items()
            if any(node.op_type != "QuantizeLinear" for node in operators.readers(written[name]))
        }
    # Small numbers become 0 on such a device, and nothing else.
    unfit = float16.unfit({name: s for name, s in seen.items() if mixes or s > 1})
    if mixes or not unfit:
        return plan.replaced(unfit=unfit)
    name, why = next(iter(unfit.items()))
    raise PlanError(
        f"the target computes in float16, which cannot hold {len(unfit)} values of this model",
        where=f"target {plan.target}",
        got=f"{name} {why}",
        fix="choose float_parts: float32, or a target that computes some operators in another type, such as tensorrt",
    )


def _corrects_the_same(model: ir.Model, plan: QuantPlan, before: Planned) -> bool:
    corrected = before.path(artifacts.CORRECTIONS).is_file()
    return corrected and apply_corrections.same(model, plan, before.plan)


def _trained_scales(ranges: Calibrated, plan: QuantPlan) -> dict[str, LayerChange]:
    """The scales of weights that quantization-aware training chose; none where the ranges were calibrated."""
    # Layers that share a weight are listed under the path of the first.
    first: dict[str, str] = {}
    for site, _ in plan.quantized:
        if site.is_weight:
            first.setdefault(site.value.removesuffix(".weight"), site.module)
    return {
        first[name]: LayerChange(None, None, scale)
        for name, scale in ranges.scales().items()
        if name in first
    }
