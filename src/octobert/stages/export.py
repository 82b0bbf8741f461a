"""The QDQ graph → the files of one target, laid out as in the finished package: `onnx/`, and `openvino/` where it applies."""

from __future__ import annotations

from typing import Any

from octobert import plugins
from octobert.artifact import link_or_copy
from octobert.stages import Context

VERSION = 1


def run(context: Context) -> dict[str, Any]:
    """Export."""
    target = plugins.load("targets", context.options["target"])
    source = context.inputs["quantize"]
    for file in source.glob("model_quantized.onnx*"):
        link_or_copy(file, context.work / "onnx" / file.name)
    target.export(context.work / "onnx" / "model_quantized.onnx", context.work)
    main = target.model_file(context.work)
    size = sum(f.stat().st_size for f in main.parent.iterdir())
    return {"size_bytes": size, "format": target.CAPABILITIES.formats[-1]}
