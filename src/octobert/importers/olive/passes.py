"""Passes: what each sets. Types are compared in lower case, as Olive does."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import replace

from octobert.core.errors import RecipeError, did_you_mean
from octobert.importers import ABSENT, Node
from octobert.importers.olive import goals, scripts
from octobert.importers.olive.model import fix_shape
from octobert.importers.olive.rules import (
    COMPUTED,
    SEARCHABLE,
    Draft,
    Pass,
    apply,
    apply_rule,
    computed,
    names,
)

# `/bert/encoder/layer.0/attention/self/query/MatMul`, as torch's first exporter names nodes.
_NODE = re.compile(
    r"/?(?:bert|roberta|distilbert|albert|electra|mpnet|deberta|mobilebert)?/?(?P<path>.*layer[./].*)/(?:MatMul|Gemm)(?P<number>_\d+)?"
)
# The two products of attention, by the number of the node.
_PRODUCTS = {None: ":scores.*", "_1": ":context.*"}
_NO_PLACEMENT = "write a placement: a name of octobert placements, or a list of kinds of sites"


def read(draft: Draft, steps: list[Pass]) -> None:
    """Set what the passes mean.

    Raises:
        RecipeError: a pass is unknown, or for models that octobert does not quantize.
    """
    passes = names("passes")
    if not steps:
        _chosen_by_olive(draft)
    for step in steps:
        where = f"{draft.config.where}: {step.node.path}.type"
        got = str(step.node.get("type").value)
        if step.kind in names("generative"):
            what = "the pass is for generative models or 4-bit weights; octobert quantizes encoders to 8 bits"
            raise RecipeError(what, where=where, got=got, fix="remove the pass")
        if step.kind not in passes:
            hint = did_you_mean(step.kind, passes)
            fix = (
                hint if hint.startswith("did") else "remove it, if the result does not depend on it"
            )
            raise RecipeError("the importer does not know this pass", where=where, got=got, fix=fix)
        varied = goals.open_fields(draft, step) if draft.search is not None else set()
        if "precision" in varied:
            # In Olive's search the type of activations follows that of weights.
            varied.add("activation_type")
        defaults = {
            field: value
            for field, value in names("defaults").get(step.kind, {}).items()
            if varied.isdisjoint(field.split(", "))
        }
        node, entry = replace(step.node, defaults=defaults), passes[step.kind]
        if "method" in entry:
            set_method(draft, entry["method"], node.get("type"))
        if "first" in entry:
            COMPUTED[entry["first"]](draft, node)
        if "type" in entry:
            apply_rule(draft, node.get("type"), *entry["type"])
        apply(draft, node, *entry["fields"], "common")
        for other in step.others:
            _alternative(draft, other)


def _chosen_by_olive(draft: Draft) -> None:
    """Without passes Olive takes some by itself: float16 on GPUs, static quantization on CPUs."""
    node = replace(draft.config.root.get("passes"), value="none", is_default=True)
    if any(
        provider in ("CUDA", "Tensorrt", "NvTensorRTRTX", "Dml") for provider, _ in draft.providers
    ):
        draft.method = "float"
        draft.options["float_parts"] = "float16"
        node.mapped("quantize.float", "without passes Olive's auto-optimizer takes float16 on GPUs")
    else:
        node.mapped("quantize", "without passes Olive's auto-optimizer quantizes on CPUs")
        step = replace(node, value={"type": "OnnxQuantization"}, path="passes.OnnxQuantization")
        read(draft, [Pass("OnnxQuantization", "onnxquantization", step)])


def _alternative(draft: Draft, other: Pass) -> None:
    """Add what may take the place of a pass to the search; without a search, the pass itself is taken."""
    alternative = Draft(draft.config)
    if draft.search and draft.method and other.kind in names("passes") and other.quantizes:
        read(alternative, [other])
    if draft.search is None or alternative.method is None:
        other.node.refused(
            "an alternative for Olive's search; a recipe has one, and the first is taken"
        )
        return
    space = draft.search.space
    # The name of the recipe's own method means that method with its options.
    method = (
        {alternative.method: alternative.options}
        if alternative.options or alternative.method == draft.method
        else alternative.method
    )
    space.setdefault("quantize", [draft.method]).append(method)
    for key in ("calibrate", "transforms", "corrections"):
        values = draft.get(key), alternative.get(key)
        if (key != "calibrate" or alternative.method == "static") and (
            values != (None, None) or key in space
        ):
            default = "minmax" if key == "calibrate" else []
            goals.add(
                space.setdefault(key, []), [default if value is None else value for value in values]
            )


@computed
def fixed_shape(draft: Draft, step: Node) -> None:
    """[batch, sequence] by the names of dimensions, or by the shapes of inputs."""
    dimensions, values = step.get("dim_param"), step.get("dim_value")
    shapes = step.get("input_shape")
    if isinstance(dimensions.value, list) and isinstance(values.value, list):
        sizes = {
            str(name).lower(): value
            for name, value in zip(dimensions.value, values.value, strict=False)
        }
        batch = next((size for name, size in sizes.items() if "batch" in name), None)
        sequence = next(
            (size for name, size in sizes.items() if "seq" in name or "length" in name), None
        )
        if (
            type(batch) is int
            and type(sequence) is int
            and min(batch, sequence) > 0
            and len(sizes) == 2
        ):
            draft.shape = (batch, sequence)
            draft.later["shape"] += [dimensions, values]
        else:
            for field in (dimensions, values):
                field.refused(
                    "octobert fixes batch and sequence, and an encoder has no other dimensions"
                )
    if shapes:
        fix_shape(draft, shapes)


@computed
def model_type(draft: Draft, node: Node) -> None:
    """The family that ONNX Runtime's optimizer takes the model for."""
    if node.lower not in ("bert", "bert_tf", "bert_keras", "none"):
        where = f"{draft.config.where}: {node.path}"
        raise RecipeError(
            "octobert quantizes encoders", where=where, got=node.text, expected="model_type bert"
        )
    node.not_needed(
        "octobert finds attention by its structure, and names parts by the model's family"
    )


@computed
def surgeries(draft: Draft, node: Node) -> None:
    """Changes of the graph that the canonical graph needs not."""
    for element in node.elements():
        why = names("surgeries").get(element.get("surgeon").lower)
        if why:
            element.not_needed(why)
        else:
            element.refused(
                "octobert edits no graphs on request; it makes its canonical graph, which parity with the model checks"
            )


@computed
def training(draft: Draft, step: Node) -> None:
    """Quantization-aware training, with a loop of one's own or without."""
    draft.set("qat", {})
    set_method(draft, "static")
    step.get("type").mapped("qat")
    loop, script = step.get("training_loop_func"), step.get("user_script")
    if loop and script:
        code = f"{scripts.script_of(draft, step, script).path}:{loop.text}"
        draft.set(
            "qat.code",
            code,
            loop,
            "needs --allow-code; the model that it gets rounds as octobert's plan does",
        )
        script.mapped("qat.code")
    else:
        loop.refused("a function needs its user_script")


@computed
def context_binary(draft: Draft, kind: Node) -> None:
    """Qualcomm's binary of a graph, which a session writes on the device."""
    if not draft.providers:
        draft.implied["qnn"] = kind
    kind.mapped(
        "targets",
        "session.json of the package has the options with which a session writes the context binary, on the device",
    )


@computed
def openvino_quantized(draft: Draft, kind: Node) -> None:
    """NNCF's quantization."""
    draft.method = draft.method or "static"
    kind.mapped("quantize", "static")


@computed
def nncf_model(draft: Draft, node: Node) -> None:
    """The kind of model that NNCF quantizes. Biases are corrected unless the config says otherwise."""
    if draft.get("corrections") is None:
        draft.set("corrections", ["bias-correction"])
    if node.lower == "transformer":
        draft.set("transforms", [{"smoothquant": {"alpha": 0.95}}])
        draft.option(
            "placement",
            "matmul-scores",
            node,
            "as NNCF does for transformers, with smoothquant 0.95 and bias correction",
        )
    else:
        draft.set("transforms", [], node, "NNCF smooths transformers only")


@computed
def nncf_preset(draft: Draft, node: Node) -> None:
    """Whether activations are symmetric."""
    if node.lower in ("performance", "mixed"):
        symmetric = node.lower == "performance"
        draft.option("symmetric", symmetric or "auto", node)
    else:
        node.refused("presets are PERFORMANCE and MIXED; the target's default is taken")


@computed
def nncf_corrections(draft: Draft, node: Node) -> None:
    """Fast bias correction is on or off; the slow one corrects biases of one layer after another."""
    if node.value is True:
        draft.set("corrections", ["bias-correction"], node)
    else:
        node.refused("false means a slower correction, layer after layer; bias-correction is taken")


@computed
def openvino_device(draft: Draft, node: Node) -> None:
    """A pass names the device: the target is OpenVINO on it."""
    device, targets = node.lower, names("openvino_targets")
    if device not in targets:
        node.refused(f"OpenVINO's targets are for {', '.join(targets)}")
        return
    draft.openvino_device = draft.openvino_device or device
    if all(provider != "OpenVINO" for provider, _ in draft.providers):
        draft.implied.setdefault("openvino-cpu" if device == "cpu" else targets[device], node)
    node.mapped("targets", f"OpenVINO on the {device.upper()}")


@computed
def exported_task(draft: Draft, node: Node) -> None:
    """The head that is exported comes before that of the model."""
    if node.text in names("tasks"):
        draft.task = names("tasks")[node.text]
        node.mapped("task", "the exported head; it comes before the model's task")


def set_method(draft: Draft, name: str, field: Node = ABSENT) -> None:
    """Set the method, unless an earlier pass has set another one."""
    if draft.method not in (None, name):
        field.refused(f"a recipe has one method, and an earlier pass quantizes: {draft.method}")
    else:
        draft.method = name
        field.mapped("quantize", name)


@computed
def by_mode(draft: Draft, step: Node) -> None:
    """The method of a pass that has several."""
    mode = step.get("quant_mode", "approach")
    name = mode.text if mode else "static"
    if mode.path in draft.opened:
        draft.method = draft.method or "static"
    elif name == SEARCHABLE:
        draft.method = "static"
        mode.refused(
            "a recipe has one method; static is taken, and --set quantize=dynamic makes the other"
        )
    elif name in ("static", "dynamic"):
        set_method(draft, name, mode or step.get("type"))
    elif name == "weight_only":
        raise RecipeError(
            "weight_only means 4-bit weights in Neural Compressor; octobert's have 8",
            where=f"{draft.config.where}: {step.path}",
            fix="take static or dynamic; or write a recipe with quantize: weight-only",
        )
    else:
        mode.refused("octobert has static and dynamic")
    if mode:
        step.get("type").not_needed("the mode says the method")


@computed
def weights(draft: Draft, node: Node) -> None:
    """The type of weights: targets may not take it."""
    name = node.lower.removeprefix("q")
    if name in ("int4", "uint4", "nf4", "int16", "uint16", "int32"):
        where = f"{draft.config.where}: {node.path}"
        raise RecipeError(
            "octobert's weights have 8 bits", where=where, got=node.text, expected="int8 or uint8"
        )
    if node.value == SEARCHABLE:
        node.refused("a recipe has one type of weights; the target's default is taken")
    elif draft.method == "static" and name in ("int8", "uint8"):
        draft.options["weights"] = name
        draft.later["weights"].append(node)
    else:
        node.not_needed(f"{draft.method} quantization has the target's weight type")


@computed
def activations(draft: Draft, node: Node) -> None:
    """The type of activations."""
    name, types = node.lower.removeprefix("q"), names("activations")
    if draft.method == "static" and name in types:
        draft.option("activations", name, node)
    elif draft.method == "dynamic":
        node.not_needed("dynamic activations have the type that the runtime computes")
    else:
        node.refused(f"activations are {', '.join(types)}; the target's default is taken")


@computed
def only_operators(draft: Draft, node: Node) -> None:
    """Operators to quantize, as a placement."""
    if node.is_default:
        if "placement" not in draft.options:
            draft.option("placement", "whole", node, "every operator that can be quantized")
            # ONNX Runtime rounds them to the type of activations; 16 bits are nearer to float than to 8-bit rows.
            is_wide = str(draft.options.get("activations")).endswith("16")
            draft.options.setdefault("embeddings", "float" if is_wide else "int8")
        return
    _place(draft, node, _words(node))


@computed
def without_operators(draft: Draft, node: Node) -> None:
    """Operators to keep in float, as a placement."""
    operators = _words(node)
    if not operators:
        node.not_needed("nothing is excluded")
    elif draft.method != "static":
        node.not_needed(
            "dynamic quantization takes the inputs and weights of linear layers, and embeddings: see quantize.dynamic"
        )
    elif operators <= names("operators").keys():
        lookups = names("lookups") if "gather" in operators else []
        _place(draft, node, names("operators").keys() - operators - set(lookups))
    else:
        node.refused(_NO_PLACEMENT)


@computed
def without_attention(draft: Draft, node: Node) -> None:
    """Products with a weight only: those of attention stay float."""
    kinds = {kind: None for of_one in names("operators").values() for kind in of_one}
    draft.options.setdefault("embeddings", "int8")
    draft.option(
        "placement",
        [kind for kind in kinds if not kind.startswith(("scores.q", "scores.k", "context."))],
        node,
        "all sites but the inputs of the attention products",
    )


@computed
def weights_only(draft: Draft, node: Node) -> None:
    """Dynamic quantization: products with a weight only."""
    if node.value is True:
        node.not_needed("only products with a weight can be quantized dynamically")
    else:
        node.refused("octobert quantizes dynamically products with a weight only")


def _place(draft: Draft, node: Node, operators: Collection[str]) -> None:
    """Set the placement that quantizes these operators."""
    known = names("operators")
    if not operators or not set(operators) <= known.keys():
        node.refused(_NO_PLACEMENT)
        return
    kinds = {kind: None for name in known if name in operators for kind in known[name]}
    draft.options["embeddings"] = "int8" if set(operators) & set(names("lookups")) else "float"
    if not kinds:
        node.refused("of these operators octobert quantizes word embeddings only; " + _NO_PLACEMENT)
        return
    draft.option("placement", list(kinds), node, "the sites of these operators")


def _words(node: Node) -> set[str]:
    return {str(name).lower() for name in node.value} if isinstance(node.value, list) else set()


@computed
def without_nodes(draft: Draft, node: Node) -> None:
    """Names of nodes to keep in float, as patterns of modules."""
    paths = (
        [_NODE.fullmatch(str(name)) for name in node.value] if isinstance(node.value, list) else []
    )
    modules = [_module(match) for match in paths if match]
    if not paths:
        node.not_needed("nothing is excluded")
    elif len(modules) == len(paths):
        draft.option(
            "disable",
            [*draft.options.get("disable", []), *modules],
            node,
            "nodes are named by their modules",
        )
    else:
        node.refused(
            "the captured graph has other names; keep modules in float: quantize.static.disable: [encoder.layer.0.*]"
        )


def _module(node: re.Match[str]) -> str:
    """The pattern of a node's module, or of one product of attention."""
    module = node["path"].strip("/").replace("/", ".")
    is_attention = module.endswith((".self", ".attention"))
    return module + (_PRODUCTS.get(node["number"], "") if is_attention else "")


@computed
def calibration_provider(draft: Draft, node: Node) -> None:
    """Where calibration runs."""
    providers = [str(element.value) for element in node.elements()]
    if len(providers) == 1:
        draft.set("calibration_provider", providers[0], node)
    else:
        node.refused("calibration runs on one provider, or on the CPU")


@computed
def four_bits(draft: Draft, step: Node) -> None:
    """NVIDIA's quantization of ONNX files: 4-bit weights."""
    precision, algorithm = step.get("precision"), step.get("algorithm")
    if precision and precision.lower != "int4":
        where = f"{draft.config.where}: {precision.path}"
        raise RecipeError(
            "Olive's pass makes 4-bit weights only",
            where=where,
            got=precision.text,
            expected="int4",
        )
    set_method(draft, "dynamic", step.get("type"))
    draft.option(
        "bits", 4, precision, "before them activations have 8 bits, one range per token and group"
    )
    draft.set(
        "corrections", ["weight-rounding"], algorithm, "weights are rounded with data, by GPTQ"
    )


@computed
def inc_recipes(draft: Draft, node: Node) -> None:
    """Recipes of Neural Compressor: SmoothQuant and bias correction."""
    smooth, arguments = node.get("smooth_quant"), node.get("smooth_quant_args")
    bias = node.get("fast_bias_correction")
    if smooth.value is True:
        alpha = arguments.get("alpha")
        is_searched = alpha.value == "auto"
        options = {"alpha": "learned" if is_searched else alpha.value}
        alpha.mapped("transforms", "learned for each channel" if is_searched else "")
        draft.set("transforms", [{"smoothquant": options}] if alpha else ["smoothquant"], smooth)
    else:
        smooth.not_needed("off, and the recipe has no transforms")
    apply(draft, arguments, "inc_smoothing")
    if bias.value is True:
        draft.set("corrections", ["bias-correction"], bias)
    apply(draft, node, "inc_recipes")


@computed
def tuning_minutes(draft: Draft, node: Node) -> None:
    """A time limit of the search for the accuracy."""
    if node.is_number and node.value > 0:
        draft.set("accuracy.minutes", node.value / 60, node, "from seconds")
        if draft.get("accuracy.max_drop") is None:
            draft.set("accuracy.max_drop", 0.01)
    else:
        node.not_needed(
            "0 ends at the first plan that meets the criterion, as octobert's search does"
        )


@computed
def inc_metric(draft: Draft, node: Node) -> None:
    """The metric of an accuracy-aware quantization: its goal is the criterion, unless the evaluator has one."""
    if draft.search is not None:
        # Each trial of the search has the criterion; the evaluator's goals are limits.
        metric_draft = Draft(draft.config, task=draft.task)
        goals.read(metric_draft, [node], judged=True)
        if metric_draft.get("accuracy") is not None:
            draft.recipe["accuracy"] = {
                **metric_draft.recipe["accuracy"],
                **draft.recipe.get("accuracy", {}),
            }
    elif draft.get("accuracy") is not None:
        node.not_needed("the evaluator has a goal for the same metric, which is the criterion")
    else:
        goals.read(draft, [node], judged=True)


@computed
def calibration_samples(draft: Draft, node: Node) -> None:
    """How many rows calibrate; of several numbers, the first."""
    try:
        samples = int(node.value[0] if isinstance(node.value, list) else node.value)
    except (TypeError, ValueError, IndexError, OverflowError):
        node.refused("it is not a number of rows")
        return
    # The calibration data may have fewer rows.
    known = draft.get("data.calibrate") or {"from": "train"}
    draft.set("data.calibrate", {**known, "samples": min(samples, known.get("samples", samples))})
    node.mapped("data.calibrate.samples")
