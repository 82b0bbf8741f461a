"""Passes that quantize: ONNX Runtime's quantizer, Neural Compressor, and quantization-aware training."""

from __future__ import annotations

import re
from collections.abc import Mapping

from octobert.core.errors import RecipeError
from octobert.importers.olive import goals, systems
from octobert.importers.olive.draft import Draft, Rule, apply, false_is_default, key, needless, refuse
from octobert.importers.olive.model import path_of_script
from octobert.importers.outcomes import Node

SEARCHABLE = "SEARCHABLE_VALUES"
# The first opsets with 16-bit Quantize/DequantizeLinear, and with LayerNormalization.
_WIDE_SINCE, _NORM_SINCE = 21, 17
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
    "reducemean",
}
# `/bert/encoder/layer.0/attention/self/query/MatMul`, as torch's first exporter names nodes.
_NODE = re.compile(
    r"/?(?:bert|roberta|distilbert|albert|electra|mpnet|deberta|mobilebert)?/?(?P<path>.*layer[./].*)/(?:MatMul|Gemm)(?:_\d+)?"
)
_PREPARED = "the canonical graph has its shapes and is folded before it is quantized"
_SEARCHED = (
    "a recipe has one method; static is taken, and --set quantize=dynamic or --set quantize=weight-only makes the others"
)
_TABLE = "the target's table says what it computes in integers"


def _method(draft: Draft, name: str, field: Node | None, note: str = "") -> None:
    if draft.method not in (None, name):
        if field is not None:
            field.refused(f"a recipe has one method, and an earlier pass quantizes: {draft.method}")
        return
    draft.method = name
    if field is not None:
        field.mapped("quantize", f"{name}{'; ' if note else ''}{note}")


def _static(draft: Draft, step: Node) -> None:
    _method(draft, "static", step.get("type"))


def _dynamic(draft: Draft, step: Node) -> None:
    _method(draft, "dynamic", step.get("type"))


def _by_mode(draft: Draft, step: Node) -> None:
    """The method of a pass that has several."""
    mode = step.get("quant_mode") or step.get("approach")
    name = mode.text if mode is not None else "static"
    if name == SEARCHABLE:
        assert mode is not None
        draft.method = "static"
        mode.refused(_SEARCHED)
    elif name in ("static", "dynamic"):
        _method(draft, name, mode or step.get("type"))
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


def _option(name: str) -> Rule:
    def rule(draft: Draft, node: Node) -> None:
        if node.value == SEARCHABLE:
            node.refused("a recipe has one value; the default is taken")
        elif draft.method == "dynamic" and name == "symmetric":
            node.not_needed("dynamic activations have the form that the runtime computes")
        else:
            draft.option(name, node.value, node)

    return rule


def _format(draft: Draft, node: Node) -> None:
    formats = {"qdq": "qdq", "qoperator": "qoperator"}
    if draft.method != "static":
        node.not_needed("dynamic quantization has operators of its own")
    elif node.text.lower() in formats:
        draft.set("format", formats[node.text.lower()], node)
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


def _smooth(draft: Draft, node: Node) -> None:
    """Recipes of Neural Compressor."""
    on, arguments = node.get("smooth_quant"), node.get("smooth_quant_args")
    alpha = arguments.get("alpha") if arguments is not None else None
    if on is not None and on.value is True:
        options = {}
        if alpha is not None:
            automatic = alpha.value == "auto"
            options["alpha"] = "per-layer" if automatic else alpha.value
            alpha.mapped("transforms", "searched for each group of layers" if automatic else "")
        draft.set("transforms", [{"smoothquant": options}] if options else ["smoothquant"], on)
    elif on is not None:
        on.not_needed("off, and the recipe has no transforms")
    if arguments is not None:
        apply(draft, arguments, _SMOOTH)
    bias = node.get("fast_bias_correction")
    if bias is not None and bias.value is True:
        draft.set("corrections", ["bias-correction"], bias)
    apply(draft, node, _RECIPES)


def _tuned(draft: Draft, node: Node) -> None:
    timeout = node.get("timeout")
    if timeout is not None and isinstance(timeout.value, int | float) and timeout.value > 0:
        draft.set("accuracy.minutes", timeout.value / 60, timeout, "from seconds")
        if not draft.has("accuracy.max_drop"):
            draft.set("accuracy.max_drop", 0.01)
    apply(draft, node, _TUNING)


def _metric(draft: Draft, node: Node) -> None:
    """The metric of an accuracy-aware quantization: its goal is the criterion, unless the evaluator has one."""
    if draft.has("accuracy"):
        node.not_needed("the evaluator has a goal for the same metric, which is the criterion")
        return
    goals.read(draft, [node])


def _training(draft: Draft, step: Node) -> None:
    draft.set("qat", {})
    _method(draft, "static", None)
    if (kind := step.get("type")) is not None:
        kind.mapped("qat")
    loop, script = step.get("training_loop_func"), step.get("user_script")
    if loop is not None and script is not None:
        code = f"{path_of_script(draft, step, script)}:{loop.text}"
        draft.set("qat.code", code, loop, "needs --allow-code; the model that it gets rounds as octobert's plan does")
        script.mapped("qat.code")
    elif loop is not None:
        loop.refused("a function needs its user_script")


def finish(draft: Draft, *, any_pass: bool) -> None:
    """Set the method with its options, once all passes are read."""
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
    """Leave out an opset and a type of weights that a target cannot have."""
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


_DATA: dict[str, Rule] = {
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
    "per_channel": _option("per_channel"),
    "reduce_range": _option("reduce_range"),
    "activation_symmetric": _option("symmetric"),
    "weight_symmetric": needless("int8 weights are symmetric, and uint8 weights have the zero point that the target takes"),
    "quant_format": _format,
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
    **_DATA,
}
_EXTRA: dict[str, Rule] = {
    "ActivationSymmetric": _option("symmetric"),
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
_SMOOTH: dict[str, Rule] = {
    "folding": needless("factors are folded where that is possible, and otherwise cost one Mul"),
    "scales_per_op": needless("factors are chosen for each group of layers that read one value"),
    "op_types": needless("all places are smoothed where the function stays the same"),
    "calib_iter": needless("512 tokens are sampled"),
    "auto_alpha_args": needless("alpha: per-layer searches between 0 and 1"),
}
_RECIPES: dict[str, Rule] = {
    "fast_bias_correction": needless("off, and the recipe has no corrections"),
    "weight_correction": false_is_default("take corrections: [weight-rounding]"),
    "gemm_to_matmul": needless("the canonical graph has MatMul and Add"),
    "graph_optimization_level": needless("ONNX Runtime optimizes the file when it opens it"),
    "first_conv_or_matmul_quantization": needless(
        "the first product is that of layer 0; quantize.static.disable keeps it in float"
    ),
    "last_conv_or_matmul_quantization": needless("the head is float unless quantize.static.enable names it"),
    "pre_post_process_quantization": needless("a captured encoder has no such operators"),
    "add_qdq_pair_to_weight": lambda draft, node: draft.option("weight_form", "pair" if node.value else "integers", node),
    "optypes_to_exclude_output_quant": needless("outputs of linear layers are not quantized unless the placement says so"),
    "dedicated_qdq_pair": false_is_default("a value has one pair for all its readers"),
}
_TUNING: dict[str, Rule] = {
    "timeout": needless("0 ends at the first plan that meets the criterion, as octobert's search does"),
    "max_trials": refuse("the search ends when the accuracy is met, or after accuracy.minutes"),
    "strategy": needless("the search orders layers by their measured error per saved time"),
    "strategy_kwargs": needless("the search orders layers by their measured error per saved time"),
    "objective": needless("among plans that meet the accuracy the fastest is taken"),
}
_INC: dict[str, Rule] = {
    "approach": needless("the method"),
    "quant_format": _format,
    "recipes": _smooth,
    "tuning_criterion": _tuned,
    "metric": _metric,
    "reduce_range": _option("reduce_range"),
    "device": needless("the targets say the device"),
    "backend": needless("the targets say the runtime"),
    "domain": needless("octobert quantizes encoders"),
    "workspace": needless("octobert keeps its results in OUT/.octobert"),
    "quant_level": needless("all linear layers are quantized first, and the search returns some of them to float"),
    "excluded_precisions": needless("float parts have one type"),
    "calibration_sampling_size": lambda draft, node: draft.set("data.calibrate", _samples(draft, node), node),
    "weight_only_config": refuse("octobert's weights have 8 bits"),
    "op_type_dict": refuse("write a placement: a name of octobert placements, or a list of kinds of sites"),
    "diagnosis": false_is_default("octobert inspect OUT/TARGET shows what was quantized"),
    **_DATA,
}
_QAT: dict[str, Rule] = {
    "num_epochs": key("qat.epochs"),
    "seed": key("seed"),
    "train_data_config": needless("training rows: see data.finetune"),
    "val_data_config": needless("evaluation rows: see data.evaluate"),
    "do_validate": needless("finished models are evaluated always"),
    "num_steps": refuse("give epochs: a fraction ends earlier"),
    "gpus": refuse("training.processes says how many processes train"),
    "ptl_module": refuse("octobert trains with transformers, or with qat.code"),
    "ptl_data_module": refuse("octobert trains with transformers, or with qat.code"),
    "modules_to_fuse": needless("the graph is captured with its modules fused where the runtime fuses them"),
    "qconfig_func": refuse("quantize.static says types, ranges and placement"),
    "logger": refuse("training.tensorboard writes event files"),
    "checkpoint_path": needless("an interrupted training resumes"),
    "input_shapes": needless("rows have their own lengths"),
    **_DATA,
}
PASSES: dict[str, tuple[Rule | None, dict[str, Rule]]] = {
    "onnxquantization": (_by_mode, _ONNX),
    "onnxstaticquantization": (_static, _ONNX),
    "onnxdynamicquantization": (_dynamic, _ONNX),
    "incquantization": (_by_mode, _INC),
    "incstaticquantization": (_static, _INC),
    "incdynamicquantization": (_dynamic, _INC),
    "quantizationawaretraining": (_training, _QAT),
}


def _providers(draft: Draft, node: Node) -> None:
    names = [str(element.value) for element in node.elements()]
    if len(names) == 1:
        draft.set("calibration_provider", names[0], node)
    else:
        node.refused("calibration runs on one provider, or on the CPU")


def _samples(draft: Draft, node: Node) -> Mapping[str, object]:
    first = node.value[0] if isinstance(node.value, list) and node.value else node.value
    return {**draft.recipe.get("data", {}).get("calibrate", {"from": "train"}), "samples": int(first)}
