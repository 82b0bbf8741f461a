"""The float graph and its ranges → a plan for one target, checked against what it accepts, refined, and the quantized graph.

Writes `plan.json`, `model_quantized.onnx`, and `refined.npz` where there are refiners.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir

from octobert import capability, plugins, refine, texts
from octobert.graph import ops, qdq, sites
from octobert.plan import QuantPlan
from octobert.ranges import Ranges
from octobert.refinement import Change
from octobert.results import CaptureFacts
from octobert.stages import Context

VERSION = 2
FILE = "model_quantized.onnx"


def run(context: Context) -> dict[str, Any]:
    """Plan, check, refine, write."""
    facts = context.read("capture", "capture.json", CaptureFacts)
    source = context.inputs["float"] / "model.onnx"
    family = plugins.load("encoders", facts.encoder).ENCODER
    method = plugins.load("methods", context.options["method"]["name"])
    options = method.Options.model_validate(context.options["method"]["options"])
    target = plugins.load("targets", context.options["target"]).CAPABILITIES
    ranges = context.read("calibrate", "ranges.json", Ranges)
    plan = method.plan(sites.find_sites(ir.load(source).graph, family), ranges, target, options)
    capability.check(plan, target)
    layers = _refined(context, source, plan)
    if layers:
        refine.save(layers, context.work / "refined.npz")
    size = write(source, plan, layers, context.work / FILE)
    context.write("plan.json", plan)
    return {"quantized": len(plan.quantized), "sites": len(plan.decisions), "refined": len(layers), "size_bytes": size}


def write(source: Path, plan: QuantPlan, layers: dict[str, Change], path: Path) -> int:
    """Write a plan with refined layers into a copy of a float graph; its size in bytes."""
    model = ir.load(source)
    qdq.write(model, plan, refine.apply_(model, layers, plan))
    ops.save(model, path)
    onnx.checker.check_model(str(path), full_check=False)
    return path.stat().st_size


def _refined(context: Context, source: Path, plan: QuantPlan) -> dict[str, Change]:
    chosen = [(plugins.load("refiners", one["name"]), one["options"]) for one in context.options["refine"]]
    if not chosen:
        return {}
    encoder = texts.TextEncoder(context.inputs["capture"], context.options["max_length"])
    rows = encoder.encode([tuple(t) for t in context.read_json("data", "calibration.json")["inputs"]])
    refiners = [(refiner, refiner.Options.model_validate(options)) for refiner, options in chosen]
    return refine.refine(source, rows, encoder.pad_id, plan, refiners, context.progress)
