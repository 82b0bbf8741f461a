"""The QDQ graph → the files of one target, laid out as in the finished package: `onnx/`, and what else its runtime opens."""

from __future__ import annotations

from typing import Any

from octobert import plugins
from octobert.plan import QuantPlan
from octobert.session import Form
from octobert.stages import Context

VERSION = 2


def run(context: Context) -> dict[str, Any]:
    """Export."""
    target = plugins.load("targets", context.options["target"])
    plan = context.read("quantize", "plan.json", QuantPlan)
    form = Form(shape=context.options.get("shape"), float_parts=plan.float_parts)
    target.export(context.inputs["quantize"] / "model_quantized.onnx", context.work, form)
    main = target.model_file(context.work)
    size = sum(f.stat().st_size for f in main.parent.iterdir())
    return {"size_bytes": size, "format": target.CAPABILITIES.formats[-1]}
