"""The QDQ graph → the files of one target, laid out as in the finished package: `onnx/`, and what else its runtime opens."""

from __future__ import annotations

import shutil
from typing import Any

import onnx_ir as ir

from octobert.core import plugins
from octobert.core.capability import Capabilities
from octobert.core.plan import QuantPlan
from octobert.core.session import ExportOptions
from octobert.graph import operators
from octobert.graph.passes import first_token, norms
from octobert.pipeline.stages import Context

VERSION = 4


def run(context: Context) -> dict[str, Any]:
    """Export."""
    target = plugins.load("targets", context.options["target"])
    plan = context.read("quantize", "plan.json", QuantPlan)
    form = ExportOptions(shape=context.options.get("shape"), float_parts=plan.float_parts)
    written = context.inputs["quantize"] / "model_quantized.onnx"
    thin, fast = target.CAPABILITIES.first_token, context.options["fast_norms"] and is_for_it_alone(plan, target.CAPABILITIES)
    products = rewritten = 0
    if thin or fast:
        model = ir.load(written)
        products = first_token.slice_first_token_(model) if thin else 0
        rewritten = norms.vectorize_norms_(model) if fast else 0
        if products or rewritten:
            written = context.work / "rewritten" / written.name
            written.parent.mkdir()
            operators.save(model, written)
    target.export(written, context.work, form)
    shutil.rmtree(context.work / "rewritten", ignore_errors=True)
    main = target.model_file(context.work)
    size = sum(f.stat().st_size for f in main.parent.iterdir())
    return {"size_bytes": size, "format": target.CAPABILITIES.formats[-1], "first_token": products, "fast_norms": rewritten}


def is_for_it_alone(plan: QuantPlan, capabilities: Capabilities) -> bool:
    """Whether a plan is for this target alone: what it quantizes and the target computes in float is for another runtime."""
    taken = all(d.site.role in capabilities.roles for d in plan.decisions if d.quantizer is not None)
    return taken and plan.float_parts == "float32"
