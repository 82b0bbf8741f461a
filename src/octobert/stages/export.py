"""The QDQ graph → the files of one target, laid out as in the finished package: `onnx/`, and what else its runtime opens."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import onnx_ir as ir

from octobert import plugins
from octobert.graph import ops, slicing
from octobert.plan import QuantPlan
from octobert.session import Form
from octobert.stages import Context

VERSION = 3


def run(context: Context) -> dict[str, Any]:
    """Export."""
    target = plugins.load("targets", context.options["target"])
    plan = context.read("quantize", "plan.json", QuantPlan)
    form = Form(shape=context.options.get("shape"), float_parts=plan.float_parts)
    written = context.inputs["quantize"] / "model_quantized.onnx"
    products = 0
    if target.CAPABILITIES.first_token:
        written, products = _sliced(written, context.work / "sliced" / written.name)
    target.export(written, context.work, form)
    shutil.rmtree(context.work / "sliced", ignore_errors=True)
    main = target.model_file(context.work)
    size = sum(f.stat().st_size for f in main.parent.iterdir())
    return {"size_bytes": size, "format": target.CAPABILITIES.formats[-1], "first_token": products}


def _sliced(written: Path, path: Path) -> tuple[Path, int]:
    """The graph without what the head never reads, and how many of its products that concerns."""
    model = ir.load(written)
    products = slicing.slice_first_token_(model)
    if products:
        path.parent.mkdir()
        ops.save(model, path)
    return path if products else written, products
