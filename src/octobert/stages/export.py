"""The QDQ graph → the files of one target, laid out as in the finished package: `onnx/`, and what else its runtime opens."""

from __future__ import annotations

import shutil
from typing import Any

import onnx_ir as ir

from octobert import plugins
from octobert.graph import norms, ops, slicing
from octobert.plan import QuantPlan
from octobert.session import Form
from octobert.stages import Context

VERSION = 4


def run(context: Context) -> dict[str, Any]:
    """Export."""
    target = plugins.load("targets", context.options["target"])
    plan = context.read("quantize", "plan.json", QuantPlan)
    form = Form(shape=context.options.get("shape"), float_parts=plan.float_parts)
    written = context.inputs["quantize"] / "model_quantized.onnx"
    products = rows = 0
    if target.CAPABILITIES.first_token or context.options["fast_norms"]:
        model = ir.load(written)
        if target.CAPABILITIES.first_token:
            products = slicing.slice_first_token_(model)
        if context.options["fast_norms"] and plan.float_parts == "float32":
            rows = norms.vectorize_norms_(model)
        if products or rows:
            written = context.work / "rewritten" / written.name
            written.parent.mkdir()
            ops.save(model, written)
    target.export(written, context.work, form)
    shutil.rmtree(context.work / "rewritten", ignore_errors=True)
    main = target.model_file(context.work)
    size = sum(f.stat().st_size for f in main.parent.iterdir())
    return {"size_bytes": size, "format": target.CAPABILITIES.formats[-1], "first_token": products, "fast_norms": rows}
