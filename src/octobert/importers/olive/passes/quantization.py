"""Passes of ONNX Runtime's quantizer, and what passes that quantize share."""

from __future__ import annotations

import re

from octobert.core.errors import RecipeError
from octobert.importers.olive.draft import Draft, Rule, apply, false_is_default, needless, refuse
from octobert.importers.outcomes import Node

SEARCHABLE = "SEARCHABLE_VALUES"
CALIBRATORS = {"minmax": "minmax", "entropy": "entropy", "percentile": "percentile"}
_TYPES = ("uint8", "int8", "uint16", "int16")
# Operators besides matrix products that ONNX Runtime's quantizer takes; the placement `whole` quantizes them.
_OTHERS = {
    "add",
    "mul",
    "softmax",
    "layernormalization",
    "gelu",
    "biasgelu",
    "tanh",
    "gather",
    "erf",
    "sub",
    "div",
    "pow",
    "sqrt",
}
# `/bert/encoder/layer.0/attention/self/query/MatMul`, as torch's first exporter names nodes.
_NODE = re.compile(
    r"/?(?:bert|roberta|distilbert|albert|electra|mpnet|deberta|mobilebert)?/?(?P<path>.*layer[./].*)/(?:MatMul|Gemm)(?:_\d+)?"
)
_PREPARED = "the canonical graph has its shapes and is folded before it is quantized"
_SEARCHED = "a recipe has one method; static is taken, and --set quantize=dynamic makes the other"
_TABLE = "the target's table says what it computes in integers"


def method(draft: Draft, name: str, field: Node | None, note: str = "") -> None:
    """Set the method, unless an earlier pass has set another one."""
    if draft.method not in (None, name):
        if field is not None:
            field.refused(f"a recipe has one method, and an earlier pass quantizes: {draft.method}")
        return
    draft.method = name
    if field is not None:
        field.mapped("quantize", f"{name}{'; ' if note else ''}{note}")


def static(draft: Draft, step: Node) -> None:
    """The pass quantizes statically."""
    method(draft, "static", step.get("type"))


def dynamic(draft: Draft, step: Node) -> None:
    """The pass quantizes dynamically."""
    method(draft, "dynamic", step.get("type"))


def by_mode(draft: Draft, step: Node) -> None:
    """The method of a pass that has several."""
    mode = step.get("quant_mode") or step.get("approach")
    name = mode.text if mode is not None else "static"
    if mode is not None and mode.path in draft.opened:
        draft.method = draft.method or "static"
    elif name == SEARCHABLE:
        assert mode is not None
        draft.method = "static"
        mode.refused(_SEARCHED)
    elif name in ("static", "dynamic"):
        method(draft, name, mode or step.get("type"))
    elif name == "weight_only":
        raise RecipeError(
            "weight_only means 4-bit weights in Neural Compressor; octobert's have 8",
            where=f"{draft.config.where}: {step.path}",
            fix="take static or dynamic; or write a recipe with quantize: weight-only",
        )
    elif mode is not None:
        mode.refused("octobert has static and dynamic")
    if mode is not None and step.get("type") is not None:
        step.get("type").not_needed("the mode says the method")  # type: ignore[union-attr]


def _weights(draft: Draft, node: Node) -> None:
    name = node.text.lower().removeprefix("q").replace("uint", "uint")
    if name in ("int4", "uint4", "nf4", "int16", "uint16", "int32"):
        raise RecipeError(
            "octobert's weights have 8 bits",
            where=f"{draft.config.where}: {node.path}",
            got=node.text,
            expected="int8 or uint8",
        )
    if node.value == SEARCHABLE:
        node.refused("a recipe has one type of weights; the target's default is taken")
    elif draft.method == "static" and name in ("int8", "uint8"):
        draft.options["weights"] = name
        draft.weights.append(node)
    else:
        node.not_needed(f"{draft.method} quantization has the target's weight type")


def _activations(draft: Draft, node: Node) -> None:
    name = node.text.lower().removeprefix("q")
    if draft.method == "static" and name in _TYPES:
        draft.option("activations", name, node)
    elif draft.method == "dynamic":
        node.not_needed("dynamic activations have the type that the runtime computes")
    else:
        node.refused(f"activations are {', '.join(_TYPES)}; the target's default is taken")


def _calibrator(draft: Draft, node: Node) -> None:
    name = node.text.lower()
    if draft.method != "static":
        node.not_needed("only static quantization calibrates")
    elif name in CALIBRATORS:
        draft.set("calibrate", CALIBRATORS[name], node)
    else:
        node.refused("octobert has no such calibrator; minmax is taken; octobert calibrate RECIPE --sweep compares all")


def option(name: str) -> Rule:
    """Return a rule for a field that is an option of the method."""

    def rule(draft: Draft, node: Node) -> None:
        if node.value == SEARCHABLE:
            node.refused("a recipe has one value; the default is taken")
        elif draft.method == "dynamic" and name == "symmetric":
            node.not_needed("dynamic activations have the form that the runtime computes")
        else:
            draft.option(name, node.value, node)

    return rule


def file_format(draft: Draft, node: Node) -> None:
    """Set the form of the quantized operators."""
    if draft.method != "static":
        node.not_needed("dynamic quantization has operators of its own")
    elif node.text.lower() == "qoperator":
        draft.formats.append(node)
    elif node.text.lower() == "qdq":
        node.not_needed("each target gets the form that it runs fastest")
    else:
        node.refused("formats are QDQ and QOperator; QDQ is taken")


def _only(draft: Draft, node: Node) -> None:
    """Operators to quantize, as a placement."""
    names = {str(name).lower() for name in node.value} if isinstance(node.value, list) else set()
    if draft.method != "static":
        node.not_needed("dynamic quantization takes the inputs and weights of linear layers")
    elif names and names <= {"matmul", "gemm", "attention", "gather", "embedlayernormalization"}:
        draft.options["embeddings"] = "int8" if "gather" in names else "float"
        draft.option("placement", "matmul-attention", node, "matrix products, and embeddings if Gather is listed")
    elif {"matmul", "add", "softmax"} <= names:
        draft.option("placement", "whole", node)
    else:
        node.refused("write a placement: a name of octobert placements, or a list of kinds of sites")


def _without(draft: Draft, node: Node) -> None:
    names = {str(name).lower() for name in node.value} if isinstance(node.value, list) else set()
    if not names:
        node.not_needed("nothing is excluded")
    elif draft.method != "static":
        node.not_needed(
            "dynamic quantization takes the inputs and weights of linear layers, and embeddings: see quantize.dynamic"
        )
    elif names <= _OTHERS:
        if "gather" in names:
            draft.options["embeddings"] = "float"
        draft.option("placement", "matmul-attention", node, "matrix products only")
    else:
        node.refused("write a placement: a name of octobert placements, or a list of kinds of sites")


def _nodes(draft: Draft, node: Node) -> None:
    """Names of nodes to keep in float, as patterns of modules."""
    names = [str(name) for name in node.value] if isinstance(node.value, list) else []
    found = [_NODE.fullmatch(name) for name in names]
    if not names:
        node.not_needed("nothing is excluded")
    elif all(found):
        paths = [match["path"].strip("/").replace("/", ".") for match in found if match]
        draft.option("disable", [*draft.options.get("disable", []), *paths], node, "nodes are named by their modules")
    else:
        node.refused("the captured graph has other names; keep modules in float: quantize.static.disable: [encoder.layer.0.*]")


def _extra(draft: Draft, node: Node) -> None:
    apply(draft, node, _EXTRA)


def _smallest(draft: Draft, node: Node) -> None:
    node.not_needed("targets that need a least range have it in their tables")


DATA: dict[str, Rule] = {
    "data_config": needless("calibration rows: see data.calibrate"),
    "dataloader_func": refuse("octobert calibrates on rows with texts: data.train: file.py:function"),
    "dataloader_func_kwargs": refuse("octobert calibrates on rows with texts: data.train: file.py:function"),
    "data_dir": refuse("octobert calibrates on training rows of the recipe's data"),
    "batch_size": needless("ranges do not depend on the batch size"),
}
_ONNX: dict[str, Rule] = {
    "quant_mode": needless("the method"),
    "precision": _weights,
    "weight_type": _weights,
    "activation_type": _activations,
    "calibrate_method": _calibrator,
    "calibration_providers": lambda draft, node: _providers(draft, node),
    "per_channel": option("per_channel"),
    "reduce_range": option("reduce_range"),
    "activation_symmetric": option("symmetric"),
    "weight_symmetric": needless("int8 weights are symmetric, and uint8 weights have the zero point that the target takes"),
    "quant_format": file_format,
    "quant_preprocess": needless(_PREPARED),
    "prepare_qdq_config": needless(_TABLE),
    "op_types_to_quantize": _only,
    "op_types_to_exclude": _without,
    "nodes_to_quantize": refuse(
        "the captured graph has other names; quantize modules by quantize.static.enable, or a placement"
    ),
    "nodes_to_exclude": _nodes,
    "min_real_range": _smallest,
    "tensor_quant_overrides": refuse("the captured graph has other names; ranges of modules cannot be set by hand"),
    "extra_options": _extra,
    **DATA,
}
_EXTRA: dict[str, Rule] = {
    "ActivationSymmetric": option("symmetric"),
    "WeightSymmetric": needless("int8 weights are symmetric, and uint8 weights have the zero point that the target takes"),
    "MinimumRealRange": _smallest,
    "SmoothQuant": lambda draft, node: draft.set("transforms", ["smoothquant"] if node.value else [], node),
    "SmoothQuantAlpha": lambda draft, node: draft.set("transforms", [{"smoothquant": {"alpha": node.value}}], node),
    "CalibMovingAverage": lambda draft, node: (
        draft.set("calibrate", "moving-average", node) if node.value else node.not_needed("off, as in octobert")
    ),
    "CalibMovingAverageConstant": lambda draft, node: draft.set(
        "calibrate", {"moving-average": {"constant": node.value}}, node
    ),
    "CalibPercentile": lambda draft, node: draft.set("calibrate", {"percentile": {"keep": node.value}}, node),
    "CalibTensorRangeSymmetric": needless(
        "ranges are kept with both ends, and the plan makes them symmetric where it needs them"
    ),
    "CalibMaxIntermediateOutputs": needless("statistics of each tensor have a bounded size"),
    "AddQDQPairToWeight": lambda draft, node: draft.option("weight_form", "pair" if node.value else "integers", node),
    "DedicatedQDQPair": false_is_default("a value has one pair for all its readers"),
    "QuantizeBias": needless("biases are float, or int32 where a target needs them"),
    "MatMulConstBOnly": false_is_default("take the placement matmul: products with a weight only"),
    "ForceQuantizeNoInputCheck": needless("the plan says what is quantized"),
    "EnableSubgraph": false_is_default("encoders have no subgraphs"),
    "DefaultTensorType": needless("the canonical graph has types"),
    "UseQDQContribOps": needless("each target writes the domains that it needs"),
    "OpTypesToExcludeOutputQuantization": needless("outputs of linear layers are not quantized unless the placement says so"),
    "QDQOpTypePerChannelSupportToAxis": needless(_TABLE),
}
PASSES: dict[str, tuple[Rule | None, dict[str, Rule]]] = {
    "onnxquantization": (by_mode, _ONNX),
    "onnxstaticquantization": (static, _ONNX),
    "onnxdynamicquantization": (dynamic, _ONNX),
}


def _providers(draft: Draft, node: Node) -> None:
    names = [str(element.value) for element in node.elements()]
    if len(names) == 1:
        draft.set("calibration_provider", names[0], node)
    else:
        node.refused("calibration runs on one provider, or on the CPU")
