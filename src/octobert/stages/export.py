"""The QDQ graph → the files of one target, laid out as in the finished package: `onnx/`, and what else its runtime opens."""

from __future__ import annotations

from typing import Any

from octobert import plugins
from octobert.session import Shape
from octobert.stages import Context

VERSION = 2


def run(context: Context) -> dict[str, Any]:
    """Export."""
    target = plugins.load("targets", context.options["target"])
    shape = Shape.model_validate(context.options["shape"]) if "shape" in context.options else None
    target.export(context.inputs["quantize"] / "model_quantized.onnx", context.work, shape)
    main = target.model_file(context.work)
    size = sum(f.stat().st_size for f in main.parent.iterdir())
    return {"size_bytes": size, "format": target.CAPABILITIES.formats[-1]}
