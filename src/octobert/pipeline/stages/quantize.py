"""The float graph and its ranges → a plan for one target, checked against what it accepts, refined, and the quantized graph.

Writes `plan.json`, `model_quantized.onnx`, and `refined.npz` where there are refiners.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from octobert.core import capability, plugins
from octobert.core.plan import QuantPlan
from octobert.core.ranges import Ranges
from octobert.core.results import CaptureFacts
from octobert.graph import operators, qdq, sites
from octobert.pipeline.stages import Context, calibration
from octobert.quantization import apply_corrections
from octobert.quantization.layers import LayerChange

VERSION = 4
FILE = "model_quantized.onnx"
# Where training leaves the scales of weights that it has chosen.
SCALES = "scales.npz"


def run(context: Context) -> dict[str, Any]:
    """Plan, check, refine, write."""
    source = context.inputs["float"] / "model.onnx"
    name = context.options["target"]
    target = plugins.load("targets", name).CAPABILITIES
    plan = planned(context, context.read("calibrate", "ranges.json", Ranges), name, context.options["method"])
    if not context.options["strict"]:
        plan = capability.repaired(plan, target)
    capability.check(plan, target)
    layers = _trained(context, plan) or _refined(context, source, plan)
    if layers:
        apply_corrections.save(layers, context.work / "refined.npz")
    size = write(source, plan, layers, context.work / FILE)
    context.write("plan.json", plan)
    return {"quantized": len(plan.quantized), "sites": len(plan.decisions), "refined": len(layers), "size_bytes": size}


def planned(context: Context, ranges: Ranges, target: str, choice: dict[str, Any]) -> QuantPlan:
    """The plan of a method, chosen with its options, for a target and the float graph."""
    facts = context.read("capture", "capture.json", CaptureFacts)
    family = plugins.load("families", facts.family).FAMILY
    method = plugins.load("methods", choice["name"])
    options = method.Options.model_validate(choice["options"])
    capabilities = plugins.load("targets", target).CAPABILITIES
    graph = ir.load(context.inputs["float"] / "model.onnx").graph
    return method.plan(sites.find_sites(graph, family), ranges, capabilities, options)


def write(source: Path, plan: QuantPlan, layers: dict[str, LayerChange], path: Path) -> int:
    """Write a plan with refined layers into a copy of a float graph; its size in bytes."""
    model = ir.load(source)
    qdq.write(model, plan, apply_corrections.apply_(model, layers, plan))
    operators.save(model, path)
    onnx.checker.check_model(str(path), full_check=False)
    return path.stat().st_size


def _trained(context: Context, plan: QuantPlan) -> dict[str, LayerChange]:
    """The scales of weights that quantization-aware training has chosen."""
    path = context.inputs["calibrate"] / SCALES
    if not path.is_file():
        return {}
    # Layers that share a weight are found under the path of the first.
    first: dict[str, str] = {}
    for site, _ in plan.quantized:
        if site.is_weight:
            first.setdefault(site.value.removesuffix(".weight"), site.module)
    with np.load(path) as arrays:
        return {first[name]: LayerChange(None, None, arrays[name]) for name in arrays.files if name in first}


def _refined(context: Context, source: Path, plan: QuantPlan) -> dict[str, LayerChange]:
    chosen = [(plugins.load("corrections", one["name"]), one["options"]) for one in context.options["refine"]]
    if not chosen:
        return {}
    encoder, asked = calibration(context)
    refiners = [(refiner, refiner.Options.model_validate(options)) for refiner, options in chosen]
    return apply_corrections.correct_layers(source, asked.flat, encoder.pad_id, plan, refiners, context.progress)
