"""A float model, its calibrated ranges and training rows → weights and ranges from quantization-aware training.

Every value that the plan of any target quantizes is fake-quantized in training, as the first such target has it.

Writes `checkpoint/`, `curve.json` (loss and learning rate of each step), `ranges.json`, `plan.json` (what was fake-quantized),
and `scales.npz` (scales of weights).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from octobert.config.training import Qat
from octobert.core.errors import PlanError
from octobert.core.plan import QuantPlan
from octobert.core.processes import is_first
from octobert.core.ranges import Interval, Ranges
from octobert.engine.contract import Context, Summary, stage
from octobert.models.source import ModelSource
from octobert.pipeline import artifacts
from octobert.pipeline.artifacts import (
    Calibrated,
    CapturedModel,
    Checkpoint,
    FloatGraph,
    Rows,
    TrainedModel,
)
from octobert.pipeline.stages import _plans, finetune
from octobert.quantization.methods import MethodField
from octobert.targets import TargetField


@stage(TrainedModel)
def run(
    context: Context,
    capture: CapturedModel,
    data: Rows,
    float_graph: FloatGraph,
    calibrated: Calibrated,
    trained: Checkpoint | None,
    *,
    lesson: finetune.Lesson,
    targets: tuple[tuple[TargetField, MethodField], ...],
    attached: ModelSource | None,
) -> Summary:
    """Train, or take what a loop of the user's own has trained.

    Args:
        float_graph: the graph that plans are made for.
        trained: what `finetune` trained.
        targets: with the method of quantization for each.
        attached: folder of a training that is finished; nothing is trained.
    """
    from octobert.training.simulation import Simulation

    settings = lesson.settings
    assert isinstance(settings, Qat)
    lesson = lesson.replaced(base=artifacts.source_of(lesson.base, trained))
    before = calibrated.ranges
    graph = float_graph.load()
    plan = union(
        [_plans.plan_of(capture, graph, before, target, method) for target, method in targets]
    )
    del graph
    if attached is not None:
        return _taken(context, lesson, attached.path, plan, before)
    pupil = finetune.load(lesson)
    simulation = Simulation(
        pupil,
        plan,
        capture.family,
        learned=settings.ranges == "learned",
        keep=settings.keep,
        rate=settings.average,
    ).attach()
    facts = finetune.train_(context, data, lesson, pupil, simulation)
    intervals, scales = simulation.intervals(), simulation.weight_scales()
    simulation.detach()
    finetune.save(context.work, lesson, pupil, facts)
    if is_first():
        _write(context, plan, before, settings.ranges, intervals, scales)
    return {**facts, "values": len(simulation.ranges.quantizers), "moved": moved(before, intervals)}


def _taken(
    context: Context, lesson: finetune.Lesson, folder: Path, plan: QuantPlan, before: Ranges
) -> Summary:
    """Take the checkpoint and the ranges of a finished training.

    Raises:
        ModelError: the folder holds no such training, or the checkpoint lacks weights.
        PlanError: it was trained with another plan than the recipe's.
    """
    from octobert.models import checkpoint
    from octobert.training import attached

    record = attached.read(folder)
    if record.plan.decisions != plan.decisions:
        raise PlanError(
            "the model was trained with another plan",
            where=f"qat.trained: {folder}",
            got=f"{len(record.plan.quantized)} quantized values",
            expected=f"the plan of this recipe, {len(plan.quantized)} quantized values with its calibrated ranges",
            fix="attach the plan of a package made with this model, data, calibration, method and target, and transforms: []",
        )
    model = checkpoint.load_torch(folder, lesson.spec.build().head)
    finetune.save(context.work, lesson, model, {})
    scales = {name: np.asarray(scale, np.float32) for name, scale in record.scales.items()}
    _write(context, plan, before, record.ranges, record.intervals, scales)
    return {"values": len(record.intervals), "moved": moved(before, record.intervals)}


def _write(
    context: Context,
    plan: QuantPlan,
    before: Ranges,
    kind: str,
    intervals: dict[str, Interval],
    scales: dict[str, np.ndarray],
) -> None:
    """Write what a training leaves besides weights."""
    began = {"calibrator": before.calibrator, **before.options, "ranges": kind}
    context.write(
        artifacts.RANGES,
        Ranges(calibrator="qat", options=began, intervals=intervals, provenance=before.provenance),
    )
    context.write(artifacts.PLAN, plan)
    np.savez(context.work / artifacts.SCALES, **scales)  # type: ignore[arg-type]


def union(plans: Sequence[QuantPlan]) -> QuantPlan:
    """The first plan; what it leaves in float is quantized as the first of the others does that quantizes it."""
    decisions = tuple(
        next((d for d in several if d.quantizer is not None), several[0])
        for several in zip(*(plan.decisions for plan in plans), strict=True)
    )
    return plans[0].replaced(decisions=decisions)


def moved(before: Ranges, after: Mapping[str, Interval]) -> float:
    """How far training moved the ends of ranges: the median share of their width."""
    shares = []
    for value, now in after.items():
        then = before.intervals[value]
        width = max(then.high - then.low, 1e-12)
        shares.append(
            (abs(now.low - min(then.low, 0.0)) + abs(now.high - max(then.high, 0.0))) / width
        )
    return float(np.median(shares)) if shares else 0.0
