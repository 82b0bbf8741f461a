"""A float model, its calibrated ranges and training rows → weights and ranges from quantization-aware training.

Every value that the plan of any target quantizes is fake-quantized in training, as the first such target has it.

Writes `checkpoint/`, `ranges.json`, `plan.json` (what was fake-quantized), and `scales.npz` (scales of weights).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from octobert.config.recipe import Choice
from octobert.config.training import Qat
from octobert.core.frozen import FrozenModel
from octobert.core.plan import QuantPlan
from octobert.core.ranges import Interval, Ranges
from octobert.pipeline.contract import Context, StepResult, Summary
from octobert.pipeline.stages import _artifacts, _plans, finetune
from octobert.training.distributed import is_first


class Inputs(FrozenModel):
    """The captured graph, the graph that plans are made for, the rows, the ranges, and what `finetune` trained."""

    capture: StepResult
    data: StepResult
    float_graph: StepResult
    calibrate: StepResult
    finetune: StepResult | None = None


class Options(finetune.TrainingOptions):
    """Quantization-aware training, with target → its method."""

    settings: Qat
    methods: dict[str, Choice]


def run(context: Context[Inputs, Options]) -> Summary:
    """Train."""
    from octobert.training.simulation import Simulation

    inputs, options = context.inputs, context.options
    settings = options.settings
    base = _artifacts.trained_source(options.model, inputs.finetune)
    before = inputs.calibrate.read(_artifacts.RANGES, Ranges)
    graph = inputs.float_graph.path(_artifacts.FLOAT)
    plan = union([_plans.plan_of(inputs.capture, graph, before, name, method) for name, method in options.methods.items()])
    model = finetune.load(options, base, settings)
    simulation = Simulation(
        model,
        plan,
        _artifacts.family_of(inputs.capture),
        learned=settings.ranges == "learned",
        keep=settings.keep,
        rate=settings.average,
    ).attach()
    facts = finetune.train_(context, inputs.data, base, settings, model, simulation)
    intervals, scales = simulation.intervals(), simulation.weight_scales()
    simulation.detach()
    finetune.save(context.work, options, base, settings, model, facts)
    if is_first():
        began = {"calibrator": before.calibrator, **before.options, "ranges": settings.ranges}
        ranges = Ranges(calibrator="qat", options=began, intervals=intervals, provenance=before.provenance)
        context.write(_artifacts.RANGES, ranges)
        context.write(_artifacts.PLAN, plan)
        np.savez(context.work / _artifacts.SCALES, **scales)  # type: ignore[arg-type]
    return {**facts, "values": len(simulation.ranges.quantizers), "moved": moved(before, intervals)}


def union(plans: Sequence[QuantPlan]) -> QuantPlan:
    """The first plan; what it leaves in float is quantized as the first of the others does that quantizes it."""
    decisions = []
    for several in zip(*(plan.decisions for plan in plans), strict=True):
        decisions.append(next((d for d in several if d.quantizer is not None), several[0]))
    return plans[0].model_copy(update={"decisions": tuple(decisions)})


def moved(before: Ranges, after: Mapping[str, Interval]) -> float:
    """How far training moved the ends of ranges: the median share of their width."""
    shares = []
    for value, now in after.items():
        then = before.intervals[value]
        width = max(then.high - then.low, 1e-12)
        shares.append((abs(now.low - min(then.low, 0.0)) + abs(now.high - max(then.high, 0.0))) / width)
    return float(np.median(shares)) if shares else 0.0
