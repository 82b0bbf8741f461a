"""A float model, its calibrated ranges and training rows → weights and ranges that were trained with values rounded.

Every value that the plan of any target quantizes is rounded in training, as the first such target has it.

Writes `checkpoint/`, `ranges.json`, `plan.json` (what was rounded), and `scales.npz` where scales of weights were chosen.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from octobert.config.training import Qat
from octobert.core import plugins
from octobert.core.plan import QuantPlan
from octobert.core.ranges import Ranges
from octobert.core.results import CaptureFacts
from octobert.pipeline.stages import Context, finetune, model_of
from octobert.pipeline.stages.quantize import SCALES, planned
from octobert.training import trainer

VERSION = 1


def run(context: Context) -> dict[str, Any]:
    """Train."""
    from octobert.training.simulation import Simulation

    base, settings = model_of(context), Qat.model_validate(context.options["qat"])
    family = plugins.load("families", context.read("capture", "capture.json", CaptureFacts).family).FAMILY
    calibrated = context.read("calibrate", "ranges.json", Ranges)
    plan = _of_all([planned(context, calibrated, name, how) for name, how in context.options["methods"].items()])
    teacher = finetune.teacher_of(context, base, settings)
    model = finetune.load(context, base, settings)
    simulation = Simulation(
        model, plan, family, learned=settings.ranges == "learned", keep=settings.keep, share=settings.average
    ).attach()
    found, asked = finetune.train_(context, base, model, settings, simulation=simulation, teacher=teacher)
    intervals, scales = simulation.intervals(), simulation.weight_scales()
    simulation.detach()
    finetune.save(context, base, model, {**found, **asked, "settings": settings.model_dump(mode="json")})
    if trainer.is_first():
        began = {"calibrator": calibrated.calibrator, **calibrated.options, "ranges": settings.ranges}
        ranges = Ranges(calibrator="qat", options=began, intervals=intervals, provenance=calibrated.provenance)
        context.write("ranges.json", ranges)
        context.write("plan.json", plan)
        np.savez(context.work / SCALES, **scales)  # type: ignore[arg-type]
    return {**found, **asked, "values": len(simulation.ranges.quantizers), "moved": _moved(calibrated, intervals)}


def _of_all(plans: list[QuantPlan]) -> QuantPlan:
    """The first plan, with what it leaves in float as the first of the others has it that does not."""
    first = plans[0]
    decisions = []
    for several in zip(*(plan.decisions for plan in plans), strict=True):
        decisions.append(next((d for d in several if d.quantizer is not None), several[0]))
    return first.model_copy(update={"decisions": tuple(decisions)})


def _moved(before: Ranges, after: dict[str, Any]) -> float:
    """How far the ends of ranges went, as the median share of their width."""
    shares = []
    for value, now in after.items():
        then = before.intervals[value]
        width = max(then.high - then.low, 1e-12)
        shares.append((abs(now.low - min(then.low, 0.0)) + abs(now.high - max(then.high, 0.0))) / width)
    return float(np.median(shares)) if shares else 0.0
