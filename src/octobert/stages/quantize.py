"""The float graph and its ranges → a plan for one target, checked against what it accepts, and the QDQ graph.

Writes `plan.json` and `model_quantized.onnx`.
"""

from __future__ import annotations

from typing import Any

import onnx
import onnx_ir as ir

from octobert import capability, plugins
from octobert.graph import ops, qdq, sites
from octobert.ranges import Ranges
from octobert.results import CaptureFacts
from octobert.stages import Context

VERSION = 1


def run(context: Context) -> dict[str, Any]:
    """Plan, check, write."""
    facts = context.read("capture", "capture.json", CaptureFacts)
    model = ir.load(context.inputs["capture"] / "model.onnx")
    family = plugins.load("encoders", facts.encoder).ENCODER
    method = plugins.load("methods", context.options["method"]["name"])
    options = method.Options.model_validate(context.options["method"]["options"])
    target = plugins.load("targets", context.options["target"]).CAPABILITIES
    ranges = context.read("calibrate", "ranges.json", Ranges)
    plan = method.plan(sites.find_sites(model.graph, family), ranges, target, options)
    capability.check(plan, target)
    qdq.write(model, plan)
    path = context.work / "model_quantized.onnx"
    ops.save(model, path)
    onnx.checker.check_model(str(path), full_check=False)
    context.write("plan.json", plan)
    return {"quantized": len(plan.quantized), "sites": len(plan.decisions), "size_bytes": path.stat().st_size}
