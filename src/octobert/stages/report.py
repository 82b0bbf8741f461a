"""Everything measured → `report.json`: scores, paired comparisons, latencies, the plan and where all of it comes from."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from octobert import candidates, measure
from octobert.stages import Context
from octobert.stages.evaluate import task_of
from octobert.task import Task

VERSION = 1


def run(context: Context) -> dict[str, Any]:
    """Gather and compare."""
    task = task_of(context.options)
    evaluation = context.read_json("data", "evaluation.json")
    gold = np.array(evaluation["gold"])
    named: list[str] = context.options["candidates"]
    outputs = {}
    for name in named:
        with np.load(context.inputs[f"evaluate/{name}"] / "outputs.npz") as arrays:
            outputs[name] = {k: arrays[k] for k in arrays.files}
    compared = []
    for name in named:
        reference = candidates.float_baseline(name) if name not in candidates.BASELINES else "ort-f32"
        if reference in outputs and reference != name:
            compared.append(compare(task, name, reference, outputs, gold, seed=int(context.options["seed"])))
    targets = context.options["targets"]
    report = {
        "recipe": context.options["recipe"],
        "task": {"head": task.head, "labels": task.labels, "primary": task.primary},
        "data": context.options["data_summary"],
        "model": {**context.read_json("capture", "capture.json"), "digest": context.options["model_digest"]},
        "ranges": _provenance(context),
        "plans": {t: context.read_json(f"quantize/{t}", "plan.json") for t in targets},
        "scores": {n: context.read_json(f"evaluate/{n}", "scores.json") for n in named},
        "comparisons": [json.loads(c.model_dump_json()) for c in compared],
        "latencies": context.read_json("benchmark", "latencies.json"),
        "footprints": context.read_json("benchmark", "footprints.json"),
        "environment": context.read_json("benchmark", "environment.json"),
        "absent": context.options["absent"],
        "stages": context.options["stages"],
    }
    context.write_json("report.json", report)
    return {"comparisons": len(compared)}


def compare(
    task: Task, name: str, reference: str, outputs: dict[str, dict[str, np.ndarray]], gold: np.ndarray, *, seed: int
) -> measure.Comparison:
    """One candidate against its float reference, row by row."""
    ours, theirs = outputs[name], outputs[reference]
    fidelity = task.fidelity(ours, theirs)
    mine, other = task.items(ours), task.items(theirs)
    difference = low = high = p_value = None
    if task.primary is not None and len(gold):
        difference, low, high, p_value = measure.paired(task.metrics[task.primary], mine, other, gold, seed=seed)
        if task.head == "sequence-classification":
            p_value = measure.mcnemar(mine, other, gold)
    changed = [(i, float(gold[i]) if len(gold) else 0.0, float(other[i]), float(mine[i])) for i in fidelity.changed]
    return measure.Comparison(
        candidate=name,
        reference=reference,
        metric=task.primary,
        difference=difference,
        low=low,
        high=high,
        p_value=p_value,
        fidelity_name=fidelity.name,
        fidelity=fidelity.agreement,
        output_error=fidelity.error,
        changed=tuple(changed),
    )


def _provenance(context: Context) -> dict[str, Any]:
    ranges = context.read_json("calibrate", "ranges.json")
    return {key: ranges[key] for key in ("calibrator", "options", "provenance")}
