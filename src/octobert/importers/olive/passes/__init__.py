"""Passes: a table from type to handler. Types are compared in lower case, as Olive does."""

from __future__ import annotations

from octobert.core.errors import RecipeError, did_you_mean
from octobert.importers.olive import searching
from octobert.importers.olive.draft import Draft, Rule, apply, needless, refuse
from octobert.importers.olive.layout import Pass
from octobert.importers.olive.passes import graph, inc, npu, openvino, quantization, runtime, training

_FILES = "large weights are written beside the graph where they have to be"
_COMMON: dict[str, Rule] = {
    "type": needless("octobert has no passes; this one's fields are below"),
    "name": needless("names the pass"),
    "disable_search": needless("fields of the pass that the config does not name have their defaults"),
    "host": needless("octobert runs where it is called"),
    "evaluator": refuse("a recipe has one evaluation, of the finished models"),
    "output_name": needless("a package has the name of its target"),
    "clean_run_cache": needless("a stored result is used only where all that it depends on is the same"),
    "run_on_target": needless("octobert runs where it is called"),
    "user_script": needless("nothing of the script is used for this pass"),
    "script_dir": needless("scripts are found beside the config"),
    "save_as_external_data": needless(_FILES),
    "all_tensors_to_one_file": needless(_FILES),
    "external_data_name": needless(_FILES),
    "size_threshold": needless(_FILES),
    "convert_attribute": needless(_FILES),
    "reuse_cache": needless("stored results are reused always"),
}
# Type in lower case → (rules of its fields, what the pass itself means).
PASSES = {
    **graph.PASSES,
    **quantization.PASSES,
    **inc.PASSES,
    **training.PASSES,
    **runtime.PASSES,
    **npu.PASSES,
    **openvino.PASSES,
}
# Passes for models that generate text or images, and for other methods.
_GENERATIVE = (
    "modelbuilder", "gptqquantizer", "autoawqquantizer", "gptq", "rtn", "lora", "qlora", "loftq", "dora", "loha", "lokr",
    "splitmodel", "capturesplitinfo", "extractadapters", "insertbeamsearch", "matmulnbitstoqdq", "onnxblockwisertnquantization",
    "onnxhqqquantization", "onnxkquantquantization", "spinquant", "quarot", "slicegpt", "torchtrtconversion", "computeloss",
    "nvmodeloptquantization", "mergeadapterweights", "staticllm", "quarkquantization", "inc4bits", "onnxmatmul4quantizer",
)  # fmt: skip


def read(draft: Draft, steps: list[Pass]) -> None:
    """Set what the passes mean.

    Raises:
        RecipeError: a pass is unknown, or for models that octobert does not quantize.
    """
    for step in steps:
        where = f"{draft.config.where}: {step.node.path}.type"
        if step.kind in _GENERATIVE:
            what = "the pass is for generative models or 4-bit weights; octobert quantizes encoders to 8 bits"
            raise RecipeError(what, where=where, got=_written(step), fix="remove the pass")
        if step.kind not in PASSES:
            raise RecipeError("the importer does not know this pass", where=where, got=_written(step), fix=_nearest(step.kind))
        if draft.searching:
            searching.open_(draft, step)
        before, table = PASSES[step.kind]
        if before is not None:
            before(draft, step.node)
        apply(draft, step.node, table, _COMMON)
        _alternatives(draft, step)


def _alternatives(draft: Draft, step: Pass) -> None:
    """Add what may take the place of a pass to the search; without a search, the pass itself is taken."""
    for other in step.others:
        own = Draft(draft.config)
        if draft.searching and draft.method is not None and other.kind in PASSES and "quantization" in other.kind:
            read(own, [other])
        if own.method is None:
            other.node.refused("an alternative for Olive's search; a recipe has one, and the first is taken")
            continue
        values = draft.space.setdefault("quantize", [draft.method])
        # The name of the recipe's own method means that method with its options.
        values.append({own.method: own.options} if own.options or own.method == draft.method else own.method)
        for key in ("calibrate", "transforms", "corrections"):
            matters = key != "calibrate" or own.method == "static"
            if matters and (own.has(key) or draft.has(key) or key in draft.space):
                default = "minmax" if key == "calibrate" else []
                both = [draft.recipe.get(key, default), own.recipe.get(key, default)]
                listed = draft.space.setdefault(key, [])
                listed.extend(value for value in both if value not in listed)


def _written(step: Pass) -> str:
    """The type as the config spells it."""
    named = step.node.get("type")
    return str(named.value) if named is not None else step.kind


def _nearest(kind: str) -> str:
    hint = did_you_mean(kind, PASSES)
    return hint if hint.startswith("did") else "remove it, if the result does not depend on it"
