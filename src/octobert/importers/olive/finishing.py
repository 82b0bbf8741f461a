"""What can be set only when the method and the targets are known: options of the method, opset, shapes."""

from __future__ import annotations

from octobert.importers.olive import systems
from octobert.importers.olive.draft import Draft

# The first opsets with 16-bit Quantize/DequantizeLinear, and with LayerNormalization.
_WIDE_SINCE, _NORM_SINCE = 21, 17


def method(draft: Draft, *, any_pass: bool) -> None:
    """Choose the method, once all passes are read."""
    for transform in ("transforms", "corrections"):
        # Olive has none unless the config says so.
        if any_pass and not draft.has(transform) and not draft.has("qat"):
            draft.set(transform, [])
    if not any_pass:
        return
    method = draft.method or "float"
    if draft.half is not None:
        options = draft.options if method != "dynamic" else None
        if options is None:
            draft.half.refused("dynamically quantized models have float32 parts")
        else:
            options["float_parts"] = "float16"
            draft.half.mapped(f"quantize.{method}.float_parts")
    draft.method = method


def fit(draft: Draft) -> None:
    """Leave out an opset, a form and a type of weights that a target cannot have."""
    targets = draft.recipe["targets"]
    if draft.opset is not None:
        wide = draft.options.get("activations") in ("uint16", "int16") and not set(targets) <= set(systems.CONTRIB)
        if wide and draft.opset.value < _WIDE_SINCE:
            draft.opset.refused(
                "16-bit Quantize/DequantizeLinear are in ONNX since opset 21; the least that holds the model is taken"
            )
        elif draft.opset.value < _NORM_SINCE and set(targets) & set(systems.WHOLE):
            draft.opset.refused("LayerNormalization is in ONNX since opset 17, and this NPU runs no primitive norms")
        else:
            draft.set("opset", draft.opset.value, draft.opset)
    if "ort-cuda" in targets and not draft.has("transforms") and not draft.has("qat"):
        # Its fused operators read the residual path, which SmoothQuant would rescale.
        draft.set("transforms", [])
    for field in draft.formats:
        if set(targets) <= set(systems.QOPERATOR):
            draft.set("format", "qoperator", field)
        else:
            field.refused("integer operators are a form of ort-cpu; other targets take Q/DQ")
    if draft.options.get("weights") == "uint8" and not set(targets) <= set(systems.UNSIGNED):
        del draft.options["weights"]
    if draft.method is not None:
        draft.set("quantize", {draft.method: draft.options} if draft.options else draft.method)
    for field in draft.weights:
        if "weights" in draft.options:
            field.mapped("quantize.static.weights")
        else:
            field.refused(f"a target of these takes int8 weights only: {', '.join(targets)}")


def shapes(draft: Draft) -> None:
    """Set the shape, for targets with fixed shapes; and what is timed, for all."""
    if draft.shape is None:
        return
    batch, sequence = draft.shape
    fixed = [target for target in draft.recipe["targets"] if target in systems.FIXED]
    if fixed:
        draft.set("shape", {"batch": batch, "sequence": sequence})
    draft.set("benchmark.batch", [batch])
    draft.set("benchmark.sequence", [sequence])
    if draft.task and "max_length" not in draft.task_options:
        draft.task_options["max_length"] = sequence
    for field in draft.shape_fields:
        where = "shape" if fixed else "benchmark"
        field.mapped(
            where, "" if fixed else "the file of this target takes any shape; this one is timed, and texts are cut there"
        )
