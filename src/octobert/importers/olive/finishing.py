"""What can be set only when the method and the targets are known (options of the method, opset, shapes), and packaging."""

from __future__ import annotations

from octobert.importers.olive.rules import Draft, apply, computed, names
from octobert.importers.olive.systems import are
from octobert.importers.outcomes import Node

# The first opsets with 16-bit Quantize/DequantizeLinear, and with LayerNormalization.
_WIDE_SINCE, _NORM_SINCE = 21, 17


def method(draft: Draft) -> None:
    """Choose the method, once all passes are read."""
    for key in ("transforms", "corrections"):
        # Olive has none unless the config says so.
        if draft.get(key) is None and draft.get("qat") is None:
            draft.set(key, [])
    draft.method = draft.method or "float"
    for field in draft.later["half"][:1]:
        if draft.method == "dynamic":
            field.refused("dynamically quantized models have float32 parts")
        else:
            draft.option("float_parts", "float16", field)


def fit(draft: Draft) -> None:
    """Leave out an opset, a form and a type of weights that a target cannot have."""
    targets = draft.recipe["targets"]
    _opset(draft)
    if "ort-cuda" in targets and draft.get("transforms") is None and draft.get("qat") is None:
        # Its fused operators read the residual path, which SmoothQuant would rescale.
        draft.set("transforms", [])
    for field in draft.later["format"]:
        if are(draft, "integer_operators"):
            draft.set("format", "qoperator", field)
        else:
            field.refused("integer operators are a form of ort-cpu; other targets take Q/DQ")
    if draft.options.get("weights") == "uint8" and not are(draft, "uint8_weights"):
        del draft.options["weights"]
    if draft.method is not None:
        draft.set("quantize", {draft.method: draft.options} if draft.options else draft.method)
    for field in draft.later["weights"]:
        if "weights" in draft.options:
            field.mapped("quantize.static.weights")
        else:
            field.refused(f"a target of these takes int8 weights only: {', '.join(targets)}")


def _opset(draft: Draft) -> None:
    fields = draft.later["opset"]
    for field in fields:
        if type(field.value) is not int:
            field.refused("an opset is a number")
    # The last one is that of the file.
    for field in [field for field in fields if type(field.value) is int][-1:]:
        is_wide = draft.options.get("activations") in ("uint16", "int16") and not are(
            draft, "contrib_operators"
        )
        if is_wide and field.value < _WIDE_SINCE:
            field.refused(
                "16-bit Quantize/DequantizeLinear are in ONNX since opset 21; the least that holds the model is taken"
            )
        elif field.value < _NORM_SINCE and set(draft.recipe["targets"]) & set(
            names("whole_graphs")
        ):
            field.refused(
                "LayerNormalization is in ONNX since opset 17, and this NPU runs no primitive norms"
            )
        else:
            draft.set("opset", field.value, field)


def shapes(draft: Draft) -> None:
    """Set the shape, for targets with fixed shapes; and what is timed, for all."""
    if draft.shape is None:
        return
    batch, sequence = draft.shape
    key, note = (
        "benchmark",
        "the file of this target takes any shape; this one is timed, and texts are cut there",
    )
    if set(draft.recipe["targets"]) & set(names("fixed_shapes")):
        key, note = "shape", ""
        draft.set("shape", {"batch": batch, "sequence": sequence})
    draft.set("benchmark.batch", [batch])
    draft.set("benchmark.sequence", [sequence])
    if draft.task:
        draft.task_options.setdefault("max_length", sequence)
    for field in draft.later["shape"]:
        field.mapped(key, note)


@computed
def packaging(draft: Draft, node: Node) -> None:
    """Packages as zip files."""
    for element in node.elements():
        kind = element.get("type")
        if kind.lower == "zipfile":
            draft.set("zip", True, kind)
            apply(draft, element, "zip")
        else:
            element.refused(
                "octobert packs folders as zip files; a registry or an image takes those"
            )
