"""Everything measured → `report.json`: scores, paired comparisons, latencies, the plan and where all of it comes from."""

from __future__ import annotations

from typing import Any

import numpy as np

from octobert.core import environment
from octobert.core.measurements import Comparison
from octobert.core.plan import QuantPlan
from octobert.core.ranges import Ranges
from octobert.core.results import CaptureFacts, RangeFacts, Report, Search, Sensitivity, Simulated, TaskFacts, TransformFacts
from octobert.evaluation import candidates, scoring
from octobert.pipeline.stages import Context, encoder_of, evaluation, task_of
from octobert.pipeline.stages.benchmark import Timings
from octobert.pipeline.stages.evaluate import Scores

VERSION = 4


def run(context: Context) -> dict[str, Any]:
    """Gather and compare."""
    options, task = context.options, task_of(context.options)
    named: list[str] = options["candidates"]
    ranges = context.read("calibrate", "ranges.json", Ranges)
    timings = _timings(context)
    report = Report(
        recipe=options["recipe"],
        task=TaskFacts(**options["task"], labels=task.labels, head=task.head, primary=task.primary),
        data=options["data_summary"],
        model=context.read("capture", "capture.json", CaptureFacts),
        model_digest=options["model_digest"],
        ranges=RangeFacts(calibrator=ranges.calibrator, options=ranges.options, provenance=ranges.provenance),
        plans={t: context.read(f"quantize/{t}", "plan.json", QuantPlan) for t in options["targets"]},
        transforms=context.read("prepare", "prepared.json", TransformFacts) if "prepare" in context.inputs else None,
        sensitivities={
            t: context.read(f"sensitivity/{t}", "sensitivity.json", Sensitivity)
            for t in options["targets"]
            if f"sensitivity/{t}" in context.inputs
        },
        searches={
            t: context.read(f"quantize/{t}", "search.json", Search)
            for t in options["targets"]
            if (context.inputs[f"quantize/{t}"] / "search.json").is_file()
        },
        simulations={
            t: context.read(f"simulate/{t}", "simulation.json", Simulated)
            for t in options["targets"]
            if f"simulate/{t}" in context.inputs
        },
        scores={n: context.read(f"evaluate/{n}", "scores.json", Scores).scores for n in named},
        comparisons=tuple(_compared(context)),
        latencies=timings.latencies,
        footprints=timings.footprints,
        environment=timings.environment,
        absent=options["absent"],
        stages=options["stages"],
    )
    context.write("report.json", report)
    return {"comparisons": len(report.comparisons)}


def _timings(context: Context) -> Timings:
    """What the benchmark found; nothing where there was none."""
    if "benchmark" in context.inputs:
        return context.read("benchmark", "timings.json", Timings)
    return Timings(latencies=(), footprints=(), environment=environment.current())


def _compared(context: Context) -> list[Comparison]:
    """Every target with the float model of its own runtime, and every other baseline with ONNX Runtime's."""
    if not context.options["candidates"]:
        return []
    task, seed = task_of(context.options), int(context.options["seed"])
    asked, gold = evaluation(context, encoder_of(context))
    outputs = {}
    for name in context.options["candidates"]:
        with np.load(context.inputs[f"evaluate/{name}"] / "outputs.npz") as arrays:
            outputs[name] = {k: arrays[k] for k in arrays.files}
    found = []
    for name in outputs:
        reference = "ort-f32" if name in candidates.BASELINES else candidates.float_baseline(name, outputs)
        if reference in outputs and reference != name:
            pair = (outputs[name], outputs[reference])
            found.append(scoring.compare(task, (name, reference), pair, asked, gold, seed=seed))
    return found
