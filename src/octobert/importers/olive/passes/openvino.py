"""OpenVINO's passes: conversion, shapes, quantization by NNCF, and encapsulation for ONNX Runtime."""

from __future__ import annotations

from octobert.importers.olive import systems
from octobert.importers.olive.draft import Draft, Rule, apply, false_is_default, key, needless, refuse
from octobert.importers.olive.model import TASKS, fix_shape
from octobert.importers.olive.passes import graph
from octobert.importers.outcomes import Node

_CAPTURED = "octobert captures one graph, and OpenVINO's model is made from it"


def _quantize(draft: Draft, step: Node) -> None:
    draft.method = draft.method or "static"
    if (kind := step.get("type")) is not None:
        kind.mapped("quantize", "static")


def _implied(draft: Draft, node: Node) -> None:
    """A pass names the device: the target is OpenVINO on it."""
    device = node.text.lower()
    if device not in systems.OPENVINO:
        node.refused(f"OpenVINO's targets are for {', '.join(systems.OPENVINO)}")
        return
    draft.openvino_device = draft.openvino_device or device
    if not any(provider == "OpenVINO" for provider, _ in draft.providers):
        target = {"cpu": "openvino-cpu"}.get(device, systems.OPENVINO[device])
        draft.implied.setdefault(target, node)
    node.mapped("targets", f"OpenVINO on the {device.upper()}")


def _shapes(draft: Draft, node: Node) -> None:
    if isinstance(node.value, list) and node.value:
        fix_shape(draft, node)
    else:
        node.not_needed("the target has fixed shapes, or takes any")


def _half(draft: Draft, node: Node) -> None:
    node.not_needed("the target says the type of weights that are not quantized" if node.value else "off, as in octobert")


def _arguments(draft: Draft, node: Node) -> None:
    device, task = node.get("device"), node.get("task")
    if device is not None:
        _implied(draft, device)
    if task is not None and task.text in TASKS:
        draft.task = TASKS[task.text]
        task.mapped("task", "the exported head; it comes before the model's task")
    apply(draft, node, {})


def _alpha(draft: Draft, node: Node) -> None:
    """Options of nncf.quantize."""
    apply(draft, node, _NNCF)


_CONVERSION: dict[str, Rule] = {
    "input_shapes": _shapes,
    "compress_to_fp16": _half,
    "static": needless("the NPU's target has fixed shapes, and the other targets take any"),
    "example_input_func": needless(_CAPTURED),
    "extra_configs": refuse("arguments of OpenVINO's converter cannot be set"),
    "model_name": needless("a package has the name of its target"),
    "shared_cache": needless("stored results are reused always"),
    "user_script": needless("its functions are not needed"),
}
_OPTIMUM: dict[str, Rule] = {
    "extra_args": _arguments,
    "components": needless("an encoder is one graph"),
    "device": _implied,
    "ov_quant_config": refuse("quantize says how the model is quantized"),
    "target_opset": graph.opset,
    "fp16": false_is_default("the target says its float type"),
}
_IO: dict[str, Rule] = {
    "input_shapes": _shapes,
    "input_names": needless("the captured graph names its inputs as transformers does"),
    "static": needless("the NPU's target has fixed shapes, and the other targets take any"),
    "extra_configs": refuse("arguments of OpenVINO's converter cannot be set"),
}
_QUANTIZATION: dict[str, Rule] = {
    "data_config": needless("calibration rows: see data.calibrate"),
    "target_device": _implied,
    "model_type": needless("octobert knows that it quantizes a transformer"),
    "preset": needless("symmetric or not is the target's default for each place; quantize.static.symmetric sets it"),
    "ignored_scope": refuse("keep modules in float: quantize.static.disable: [encoder.layer.0.*]"),
    "ignored_scope_type": refuse("keep modules in float: quantize.static.disable: [encoder.layer.0.*]"),
    "transform_fn": needless("it gives token rows to the model, as octobert does with rows of the data"),
    "validation_func": refuse("the accuracy criterion is of the task's metric: metric: file.py:function"),
    "max_drop": key("accuracy.max_drop"),
    "drop_type": lambda draft, node: draft.set("accuracy.relative", node.text.upper() == "RELATIVE", node),
    "extra_configs": _alpha,
    "user_script": needless("its functions are not needed"),
}
_NNCF: dict[str, Rule] = {
    "subset_size": lambda draft, node: draft.set(
        "data.calibrate", {**draft.recipe.get("data", {}).get("calibrate", {"from": "train"}), "samples": node.value}, node
    ),
    "fast_bias_correction": needless("corrections: [bias-correction] corrects biases"),
    "advanced_parameters": refuse("transforms, corrections and quantize have octobert's settings"),
}
_ENCAPSULATION: dict[str, Rule] = {
    "target_device": _implied,
    "ov_version": needless("the package states the version of OpenVINO that made it"),
    "opset_imports": needless("the wrapper has the domains that it needs"),
    "keep_ov_dynamic_dims": needless("the NPU has fixed shapes"),
    "genai_config_override": needless("a setting for models that generate"),
}
PASSES: dict[str, tuple[Rule | None, dict[str, Rule]]] = {
    "openvinoconversion": (None, _CONVERSION),
    "openvinooptimumconversion": (None, _OPTIMUM),
    "optimumconversion": (None, _OPTIMUM),
    "openvinoioupdate": (None, _IO),
    "openvinoquantization": (_quantize, _QUANTIZATION),
    "openvinoquantizationwithaccuracy": (_quantize, _QUANTIZATION),
    "openvinoencapsulation": (None, _ENCAPSULATION),
}
