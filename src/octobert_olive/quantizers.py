"""Passes that quantize, with ONNX Runtime, Neural Compressor or NNCF: types, operators, nodes and calibration."""

from __future__ import annotations

import re
from collections.abc import Collection

from octobert.core.errors import RecipeError
from octobert_olive import goals
from octobert_olive.nodes import ABSENT, Node
from octobert_olive.rules import SEARCHABLE, Draft, apply, computed, names

# `/bert/encoder/layer.0/attention/self/query/MatMul`, as torch's first exporter names nodes.
_NODE = re.compile(
    r"/?(?:bert|roberta|distilbert|albert|electra|mpnet|deberta|mobilebert)?/?(?P<path>.*layer[./].*)/(?:MatMul|Gemm)(?P<number>_\d+)?"
)
# The two products of attention, by the number of the node.
_PRODUCTS = {None: ":scores.*", "_1": ":context.*"}
# Kinds of the products without a weight.
_PRODUCTS_OF_TWO = ("scores.q", "scores.k", "context.")
_NO_PLACEMENT = "write a placement: a name of octobert placements, or a list of kinds of sites"


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
            "weight_only means 4-bit weights in Neural Compressor",
            where=f"{draft.config.where}: {step.path}",
            fix="take static or dynamic; or write a recipe with quantize: {dynamic: {bits: 4}}",
        )
    else:
        mode.refused("octobert has static and dynamic")
    if mode:
        step.get("type").not_needed("the mode says the method")


_EVERYTHING = "every operator with a site; ONNX Runtime also rounds sums before biases, parts of GELU, weights of norms, masks"


@computed
def weights(draft: Draft, node: Node) -> None:
    """The type of weights: targets may not take it."""
    name = node.lower.removeprefix("q")
    if name in ("int4", "uint4", "nf4", "int16", "uint16", "int32"):
        raise RecipeError(
            f"{draft.method} quantization has 8-bit weights",
            where=f"{draft.config.where}: {node.path}",
            got=node.text,
            expected="int8 or uint8",
            fix="for 4 bits write a recipe with quantize: {dynamic: {bits: 4}}",
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
    if name in types:
        draft.option("activations", name, node)
    else:
        node.refused(f"activations are {', '.join(types)}; the target's default is taken")


def _operators(draft: Draft, step: Node) -> None:
    """Operators to quantize, without those to keep in float, as a placement; and whether word embeddings are among them."""
    include, exclude = step.get("op_types_to_quantize"), step.get("op_types_to_exclude")
    only_constant = step.get("extra_options").get("MatMulConstBOnly")
    fields = [node for node in (include, exclude) if _words(node)]
    wanted, unwanted = _words(include) or set(names("operators")), _words(exclude)
    lookups, wide = set(names("lookups")), str(draft.options.get("activations")).endswith("16")
    # ONNX Runtime rounds them to the type of activations; 16 bits are nearer to float than to 8-bit rows.
    rounds = wanted & lookups and not unwanted & lookups and not wide
    embeddings = "int8" if rounds else "float"
    if draft.method == "dynamic":
        for node in fields:
            if "matmul" in wanted - unwanted:
                draft.option("embeddings", embeddings, node, "linear layers are quantized always")
            else:
                node.refused("dynamic quantization takes linear layers, and embeddings beside them")
        return
    known = wanted | unwanted <= names("operators").keys()
    kinds = [kind for kind in _kinds(wanted) if kind not in _kinds(unwanted)]
    if only_constant.value is True:
        fields.append(only_constant)
        kinds = [kind for kind in kinds if not kind.startswith(_PRODUCTS_OF_TWO)]
    if not fields:
        draft.options.setdefault("embeddings", embeddings)
        draft.option("placement", "whole", include, _EVERYTHING)
    elif known and kinds and not ("attention" in unwanted and "matmul" not in unwanted):
        draft.options["embeddings"] = embeddings
        for node in fields:
            draft.option("placement", kinds, node, "the sites of all operators that are left")
    for node in fields:
        node.refused(_NO_PLACEMENT)


def _kinds(operators: Collection[str]) -> dict[str, None]:
    """The kinds of sites of operators."""
    known = names("operators")
    return {kind: None for name in known if name in operators for kind in known[name]}


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
        raise RecipeError(
            "Olive's pass makes 4-bit weights only",
            where=f"{draft.config.where}: {precision.path}",
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


def _smooth(draft: Draft, alpha: Node, default: float, *because: Node) -> None:
    """Set SmoothQuant, with the alpha of a field if it is one."""
    if alpha.lower != "auto" and not (alpha.is_number and 0 <= alpha.value <= 1):
        alpha.refused(f"one alpha from 0 to 1, or auto; {default} is taken")
        alpha = ABSENT
    value = "learned" if alpha.lower == "auto" else alpha.value if alpha else default
    for field in (alpha, *because):
        field.mapped("transforms")
    draft.set("transforms", [{"smoothquant": {"alpha": value}}])


@computed
def read_with_others(draft: Draft, step: Node) -> None:
    """Operators, and options that ONNX Runtime reads beside certain others."""
    _operators(draft, step)
    options = step.get("extra_options")
    smooth, moving = options.get("SmoothQuant"), options.get("CalibMovingAverage")
    constant, keep = options.get("CalibMovingAverageConstant"), options.get("CalibPercentile")
    calibrator = step.get("calibrate_method")
    method = calibrator.lower if draft.method == "static" else ""
    if calibrator.path in draft.opened:
        for node in (moving, constant, keep):
            node.refused("the search varies calibrate_method, with the defaults of each")
    if draft.method == "static" and smooth.value:
        _smooth(draft, options.get("SmoothQuantAlpha"), 0.5, smooth)
    if method == "minmax" and moving.value:
        settings = {"constant": constant.value} if constant else {}
        draft.set("calibrate", {"moving-average": settings}, moving)
        constant.mapped("calibrate")
    if method == "percentile" and keep:
        settings = names("calibrators")[method][method]
        draft.set("calibrate", {method: {**settings, "keep": keep.value}}, keep)
    apply(draft, step, "unread")


@computed
def inc_recipes(draft: Draft, node: Node) -> None:
    """Recipes of Neural Compressor: SmoothQuant and bias correction."""
    smooth, arguments = node.get("smooth_quant"), node.get("smooth_quant_args")
    if smooth.value is True:
        _smooth(draft, arguments.get("alpha"), 0.5, smooth)
    apply(draft, arguments, "inc_smoothing")
    apply(draft, node, "inc_recipes")


@computed
def tuning_minutes(draft: Draft, node: Node) -> None:
    """A time limit of the search for the accuracy."""
    draft.set("accuracy.minutes", node.value / 60, node, "from seconds")
    if draft.get("accuracy.max_drop") is None:
        draft.set("accuracy.max_drop", 0.01)


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
    samples = next((each.count for each in node.elements()), 0)
    if not samples:
        node.refused("it is not a number of rows")
        return
    # The calibration data may have fewer rows.
    known = draft.get("data.calibrate") or {"from": "train"}
    draft.set("data.calibrate", {**known, "samples": min(samples, known.get("samples", samples))})
    node.mapped("data.calibrate.samples")


@computed
def nncf(draft: Draft, step: Node) -> None:
    """NNCF smooths transformers, and corrects biases unless the config says otherwise."""
    model, advanced = step.get("model_type"), ABSENT
    draft.method = draft.method or "static"
    step.get("type").mapped("quantize", "static")
    draft.set("corrections", ["bias-correction"])
    for extra in step.get("extra_configs").elements():
        advanced = extra.get("advanced_quantization_parameters") or advanced
    alpha = advanced.get("smooth_quant_alpha") or advanced.get("smooth_quant_alphas").get("matmul")
    if model.lower != "transformer":
        draft.set("transforms", [], model, "NNCF smooths transformers only")
        alpha.not_needed("NNCF smooths transformers only")
        return
    note = "as NNCF does for transformers, with smoothquant (0.95 unless named) and bias correction"
    draft.option("placement", "matmul-scores", model, note)
    if alpha.is_number and alpha.value < 0:
        draft.set("transforms", [], alpha)
    else:
        _smooth(draft, alpha, 0.95)
