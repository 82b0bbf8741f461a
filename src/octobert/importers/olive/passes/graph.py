"""Passes that capture and rewrite the float graph."""

from __future__ import annotations

from octobert.core.errors import RecipeError
from octobert.importers.olive.draft import Draft, Rule, false_is_default, needless, refuse
from octobert.importers.olive.model import fix_shape
from octobert.importers.outcomes import Node

_FUSED = "ONNX Runtime fuses when it opens the file, and octobert's canonical graph is one that it fuses"
_ENCODERS = "a setting for models that generate"
# Surgery in lower case → why octobert needs none.
SURGERIES = {
    "replaceattentionmaskvalue": "the canonical graph has one mask with values that float16 and 8 bits can represent",
    "matmuladdtogemm": "targets that run Gemm faster write linear layers as Gemm",
    "removeshapes": "the canonical graph has no shape arithmetic beyond what dynamic shapes need",
    "infershapes": "the canonical graph has its shapes",
    "removeinitializerfrominputs": "weights are no inputs in the canonical graph",
    "reorderinputs": "inputs are found by name",
    "renameinputs": "inputs are named as transformers names them",
    "renameoutputs": "outputs are named by the task",
}


def opset(draft: Draft, node: Node) -> None:
    """Note the opset of the written file."""
    if type(node.value) is int:
        draft.opset = node
    else:
        node.refused("an opset is a number")


def _half(draft: Draft, node: Node) -> None:
    if node.value is True:
        draft.half = draft.half or node
    else:
        node.not_needed("float parts have the target's type")


def _surgeries(draft: Draft, node: Node) -> None:
    for element in node.elements():
        kind = element.get("surgeon")
        name = kind.text.lower() if kind is not None else ""
        if SURGERIES.get(name):
            element.not_needed(SURGERIES[name])
        else:
            element.refused(
                "octobert edits no graphs on request; it makes its canonical graph, which parity with the model checks"
            )


def _fixed(draft: Draft, step: Node) -> None:
    """[batch, sequence] by the names of dimensions, or by the shapes of inputs."""
    names, values = step.get("dim_param"), step.get("dim_value")
    if names is not None and values is not None and isinstance(names.value, list) and isinstance(values.value, list):
        sizes = {str(name).lower(): value for name, value in zip(names.value, values.value, strict=False)}
        batch = next((v for k, v in sizes.items() if "batch" in k), None)
        sequence = next((v for k, v in sizes.items() if "seq" in k or "length" in k), None)
        if type(batch) is int and type(sequence) is int and batch > 0 and sequence > 0 and len(sizes) == 2:
            draft.shape = (batch, sequence)
            draft.shape_fields += [names, values]
        else:
            for field in (names, values):
                field.refused("octobert fixes batch and sequence, and an encoder has no other dimensions")
    shapes = step.get("input_shape")
    if shapes is not None:
        fix_shape(draft, shapes)


def _float16(draft: Draft, step: Node) -> None:
    kind = step.get("type")
    draft.half = draft.half or kind


def _transformer(draft: Draft, node: Node) -> None:
    if node.text.lower() in ("bert", "bert_tf", "bert_keras", "none"):
        node.not_needed("octobert finds attention by its structure, and names parts by the model's family")
    else:
        raise RecipeError(
            "octobert quantizes encoders", where=f"{draft.config.where}: {node.path}", got=node.text, expected="model_type bert"
        )


_CONVERSION: dict[str, Rule] = {
    "target_opset": opset,
    "use_dynamo_exporter": needless("octobert always captures with torch.export"),
    "dynamic": needless("batch and sequence are dynamic, unless the target needs a fixed shape"),
    "device": needless("octobert captures on the CPU"),
    "torch_dtype": needless("octobert captures float32; the target's float type is chosen later"),
    "optimize": needless("the canonical graph is made in every run"),
    "parallel_jobs": needless("encoders are one graph"),
    "merge_components": needless("encoders are one graph"),
    "merge_adapter_weights": refuse("merge the adapter into the checkpoint first"),
    "past_key_value_name": needless(_ENCODERS),
    "save_metadata_for_token_generation": needless(_ENCODERS),
}
_ORT_TRANSFORMERS: dict[str, Rule] = {
    "float16": _half,
    "model_type": _transformer,
    "num_heads": needless("read from the model"),
    "num_key_value_heads": needless("read from the model"),
    "hidden_size": needless("read from the model"),
    "opt_level": needless(_FUSED),
    "only_onnxruntime": needless(_FUSED),
    "optimization_options": needless(f"{_FUSED}; which fusions a target gets is part of its table"),
    "use_gpu": needless("the target says the device"),
    "keep_io_types": needless("inputs and outputs keep their types always"),
    "force_fp32_ops": refuse("norms and what follows the last one stay float32; others cannot be chosen"),
    "force_fp32_nodes": refuse("norms and what follows the last one stay float32; others cannot be chosen"),
    "force_fp16_inputs": refuse("norms and what follows the last one stay float32; others cannot be chosen"),
    "use_gqa": false_is_default(_ENCODERS),
    "input_int32": false_is_default("inputs of octobert's models are int64"),
    "replace_attn_mask_input_with_seq_len": false_is_default(_ENCODERS),
}
_FLOAT16: dict[str, Rule] = {
    "keep_io_types": needless("inputs and outputs keep their types always"),
    "min_positive_val": needless("scales below float16's smallest normal number stay float32"),
    "max_finite_val": needless("the mask is the only large constant, and it is bounded"),
    "use_symbolic_shape_infer": needless("the canonical graph has its shapes"),
    "op_block_list": refuse("norms and what follows the last one stay float32; others cannot be chosen"),
    "op_include_list": refuse("norms and what follows the last one stay float32; others cannot be chosen"),
    "node_block_list": refuse("norms and what follows the last one stay float32; others cannot be chosen"),
    "node_include_list": refuse("norms and what follows the last one stay float32; others cannot be chosen"),
}
_PEEPHOLE: dict[str, Rule] = {
    "onnxscript_optimize": needless("the canonical graph is folded"),
    "onnxoptimizer_optimize": needless("the canonical graph is folded"),
    "fuse_reshape_operations": needless("attention is rebuilt in its canonical form"),
    "fix_com_microsoft_opset": needless("each target writes the domains that it needs"),
    "cast_chain_elimination": needless("the canonical graph has no chains of casts"),
}
_SHAPE: dict[str, Rule] = {"input_name": needless("all inputs have the same shape")}
PASSES: dict[str, tuple[Rule | None, dict[str, Rule]]] = {
    "onnxconversion": (None, _CONVERSION),
    "onnxopversionconversion": (None, _CONVERSION),
    "orttransformersoptimization": (None, _ORT_TRANSFORMERS),
    "orttransformeroptimization": (None, _ORT_TRANSFORMERS),
    "dynamictofixedshape": (_fixed, _SHAPE),
    "graphsurgeries": (None, {"surgeries": _surgeries, "remove_duplicate_initializers": needless("weights are stored once")}),
    "onnxpeepholeoptimizer": (None, _PEEPHOLE),
    "onnxmodeloptimizer": (None, _PEEPHOLE),
    "onnxfloattofloat16": (_float16, _FLOAT16),
    "ortmixedprecision": (_float16, _FLOAT16),
}
