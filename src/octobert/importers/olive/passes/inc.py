"""Passes of Neural Compressor."""

from __future__ import annotations

from collections.abc import Mapping

from octobert.importers.olive import goals
from octobert.importers.olive.draft import Draft, Rule, apply, false_is_default, needless, refuse
from octobert.importers.olive.passes.quantization import DATA, by_mode, dynamic, file_format, option, static
from octobert.importers.outcomes import Node


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
    if draft.searching:
        # Each trial of the search has the criterion; the evaluator's goals are limits.
        own = Draft(draft.config)
        own.task = draft.task
        goals.read(own, [node])
        if own.has("accuracy"):
            draft.recipe["accuracy"] = {**own.recipe["accuracy"], **draft.recipe.get("accuracy", {})}
        return
    if draft.has("accuracy"):
        node.not_needed("the evaluator has a goal for the same metric, which is the criterion")
        return
    goals.read(draft, [node])


def _samples(draft: Draft, node: Node) -> Mapping[str, object]:
    first = node.value[0] if isinstance(node.value, list) and node.value else node.value
    return {**draft.recipe.get("data", {}).get("calibrate", {"from": "train"}), "samples": int(first)}


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
    "quant_format": file_format,
    "recipes": _smooth,
    "tuning_criterion": _tuned,
    "metric": _metric,
    "reduce_range": option("reduce_range"),
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
    **DATA,
}
PASSES: dict[str, tuple[Rule | None, dict[str, Rule]]] = {
    "incquantization": (by_mode, _INC),
    "incstaticquantization": (static, _INC),
    "incdynamicquantization": (dynamic, _INC),
}
