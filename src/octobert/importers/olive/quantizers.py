"""Passes of ONNX Runtime's quantizer and of Neural Compressor, and what passes that quantize share."""

from __future__ import annotations

import re

from octobert.core.errors import RecipeError
from octobert.importers.olive import goals
from octobert.importers.olive.rules import Draft, apply, computed, names
from octobert.importers.olive.searching import SEARCHABLE
from octobert.importers.outcomes import ABSENT, Node

# `/bert/encoder/layer.0/attention/self/query/MatMul`, as torch's first exporter names nodes.
_NODE = re.compile(
    r"/?(?:bert|roberta|distilbert|albert|electra|mpnet|deberta|mobilebert)?/?(?P<path>.*layer[./].*)/(?:MatMul|Gemm)(?:_\d+)?"
)
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
    operators = _words(node)
    if operators and operators <= {
        "matmul",
        "gemm",
        "attention",
        "gather",
        "embedlayernormalization",
    }:
        draft.options["embeddings"] = "int8" if "gather" in operators else "float"
        draft.option(
            "placement",
            "matmul-attention",
            node,
            "matrix products, and embeddings if Gather is listed",
        )
    elif {"matmul", "add", "softmax"} <= operators:
        draft.option("placement", "whole", node)
    else:
        node.refused(_NO_PLACEMENT)


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
    elif operators <= set(names("other_operators")):
        if "gather" in operators:
            draft.options["embeddings"] = "float"
        draft.option("placement", "matmul-attention", node, "matrix products only")
    else:
        node.refused(_NO_PLACEMENT)


def _words(node: Node) -> set[str]:
    return {str(name).lower() for name in node.value} if isinstance(node.value, list) else set()


@computed
def without_nodes(draft: Draft, node: Node) -> None:
    """Names of nodes to keep in float, as patterns of modules."""
    paths = (
        [_NODE.fullmatch(str(name)) for name in node.value] if isinstance(node.value, list) else []
    )
    modules = [match["path"].strip("/").replace("/", ".") for match in paths if match]
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


@computed
def calibration_provider(draft: Draft, node: Node) -> None:
    """Where calibration runs."""
    providers = [str(element.value) for element in node.elements()]
    if len(providers) == 1:
        draft.set("calibration_provider", providers[0], node)
    else:
        node.refused("calibration runs on one provider, or on the CPU")


@computed
def inc_recipes(draft: Draft, node: Node) -> None:
    """Recipes of Neural Compressor: SmoothQuant and bias correction."""
    smooth, arguments, bias = (
        node.get("smooth_quant"),
        node.get("smooth_quant_args"),
        node.get("fast_bias_correction"),
    )
    if smooth.value is True:
        alpha = arguments.get("alpha")
        is_searched = alpha.value == "auto"
        options = {"alpha": "per-layer" if is_searched else alpha.value}
        alpha.mapped("transforms", "searched for each group of layers" if is_searched else "")
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
        own = Draft(draft.config, task=draft.task)
        goals.read(own, [node])
        if own.get("accuracy") is not None:
            draft.recipe["accuracy"] = {
                **own.recipe["accuracy"],
                **draft.recipe.get("accuracy", {}),
            }
    elif draft.get("accuracy") is not None:
        node.not_needed("the evaluator has a goal for the same metric, which is the criterion")
    else:
        goals.read(draft, [node])


@computed
def calibration_samples(draft: Draft, node: Node) -> None:
    """How many rows calibrate; of several numbers, the first."""
    try:
        samples = int(node.value[0] if isinstance(node.value, list) else node.value)
    except (TypeError, ValueError, IndexError, OverflowError):
        node.refused("it is not a number of rows")
        return
    draft.set(
        "data.calibrate",
        {**(draft.get("data.calibrate") or {"from": "train"}), "samples": samples},
        node,
    )
