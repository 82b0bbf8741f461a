"""An import means what Olive would have done: defaults of its tools, and values that are easily taken for others."""

from __future__ import annotations

from typing import Any

import pytest

from octobert import targets
from octobert.config import importers
from octobert.core.plan import WHOLE
from octobert_olive import rules
from tests.octobert_olive.configs import (
    STATIC,
    config,
    converted,
    data_config,
    goal,
    metric,
    outcome,
    quantized,
    sub,
    system,
)


def test_defaults_of_onnx_runtimes_quantizer_are_in_the_recipe() -> None:
    imported = converted(config({"quant": STATIC}))
    assert imported.recipe["quantize"] == {
        "static": {
            "per_channel": False,
            "reduce_range": False,
            "weights": "int8",
            "activations": "int8",
            "symmetric": False,
            "placement": "whole",
            "embeddings": "int8",
        }
    }
    assert imported.recipe["calibrate"] == "minmax"
    assert imported.recipe["transforms"] == imported.recipe["corrections"] == []
    # All rows of MRPC's validation split; others than those that are scored.
    assert imported.recipe["data"]["calibrate"] == {"from": "train", "samples": 408}
    default = outcome(imported, "passes.quant.per_channel")
    assert default.default
    assert (
        default.sentence()
        == "passes.quant.per_channel = false (not named: the default): mapped to quantize.static.per_channel"
    )


def test_embeddings_are_rounded_as_activations_are() -> None:
    wide = quantized(STATIC | {"activation_type": "uint16", "precision": "uint8"})
    assert wide["quantize"]["static"]["embeddings"] == "float"


def test_a_named_field_is_no_default() -> None:
    named = STATIC | {"per_channel": True, "weight_type": "QUInt8", "op_types_to_quantize": None}
    imported = converted(config({"quant": named}))
    static = imported.recipe["quantize"]["static"]
    assert (static["per_channel"], static["weights"]) == (True, "uint8")
    # Null is the default as well.
    assert static["placement"] == "whole"
    defaults = {each.field for each in imported.outcomes if each.default}
    assert "passes.quant.per_channel" not in defaults
    assert "passes.quant.precision" not in defaults
    assert "passes.quant.reduce_range" in defaults


def test_rows_of_the_other_quantizers() -> None:
    for kind, samples in (("IncStaticQuantization", 100), ("OpenVINOQuantization", 300)):
        made = quantized({"type": kind, "data_config": "pairs"})
        assert made["data"]["calibrate"]["samples"] == samples
    few = config({"quant": {"type": "OpenVINOQuantization", "data_config": "pairs"}})
    few["data_configs"][0]["pre_process_data_config"] = {"max_samples": 10}
    assert importers.convert(few).recipe["data"]["calibrate"]["samples"] == 10
    named = {
        "type": "OpenVINOQuantization",
        "data_config": "pairs",
        "extra_configs": [{"subset_size": 40}],
    }
    assert quantized(named)["data"]["calibrate"]["samples"] == 40
    other = config({"quant": STATIC}, data_configs=[data_config()])
    other["data_configs"][0]["load_dataset_config"] = {"data_name": "my/pairs", "split": "test"}
    assert importers.convert(other).recipe["data"]["calibrate"]["samples"] == 10_000


def test_nncf_smooths_transformers_and_corrects_biases() -> None:
    step = {"type": "OpenVINOQuantization", "model_type": "TRANSFORMER"}
    made = quantized(step)
    assert made["transforms"] == [{"smoothquant": {"alpha": 0.95}}]
    assert made["corrections"] == ["bias-correction"]
    assert made["quantize"] == {"static": {"symmetric": True, "placement": "matmul-scores"}}
    mixed = quantized(step | {"preset": "MIXED"})
    assert mixed["quantize"]["static"]["symmetric"] == "auto"
    plain = quantized({"type": "OpenVINOQuantization"})
    assert (plain["transforms"], plain["corrections"]) == ([], ["bias-correction"])
    slow = step | {"extra_configs": [{"fast_bias_correction": False}]}
    field = "passes.quant.extra_configs[0].fast_bias_correction"
    assert outcome(converted(config({"quant": slow})), field).verdict == "refused"


def test_neural_compressor_writes_integer_operators_unless_told_otherwise() -> None:
    inc = {"type": "IncStaticQuantization", "data_config": "pairs"}
    assert quantized(inc)["format"] == "qoperator"
    assert "format" not in quantized(inc | {"quant_format": "QDQ"})


def test_targets_that_do_not_compute_all_operators_repair_the_plan() -> None:
    assert "repair" not in quantized(STATIC)
    assert quantized(STATIC, **system("MIGraphX"))["repair"] is True
    wide = set()
    for name in targets.names():
        table = targets.load(name).capabilities
        takes_all = set(WHOLE) <= {*table.roles, *table.simulated_roles}
        if takes_all and ("int8", False) in table.activations.accepted:
            wide.add(name)
    assert set(rules.names("any_plan")) == wide


@pytest.mark.parametrize(
    ("operators", "kinds"),
    [
        (["MatMul"], {"linear.input", "linear.weight", "scores.query", "scores.key", "context.probs", "context.value", "head.*@decoder"}),
        (["Gemm"], {"head.input", "head.weight"}),
        (["MatMul", "Add"], {"linear.input", "linear.weight", "scores.query", "scores.key", "context.probs", "context.value", "head.*@decoder", "linear.output", "residual.*", "scores.output"}),
        (["Gather"], None),
        (["Conv"], None),
    ],
)  # fmt: skip
def test_operators_are_kinds_of_sites(operators: list[str], kinds: set[str] | None) -> None:
    imported = converted(config({"quant": STATIC | {"op_types_to_quantize": operators}}))
    static = imported.recipe["quantize"]["static"]
    field = outcome(imported, "passes.quant.op_types_to_quantize")
    if kinds is None:
        assert field.verdict == "refused"
    else:
        assert set(static["placement"]) == kinds
        assert static["embeddings"] == "float"


def test_operators_that_are_excluded_are_all_that_is() -> None:
    made = quantized(STATIC | {"op_types_to_exclude": ["Softmax", "LayerNormalization"]})
    placement = set(made["quantize"]["static"]["placement"])
    assert not {"probs.output", "norm.output"} & placement
    assert {"residual.*", "activation.output", "scores.query"} <= placement
    assert made["quantize"]["static"]["embeddings"] == "int8"


@pytest.mark.parametrize(
    ("node", "pattern"),
    [
        ("/bert/encoder/layer.0/attention/self/MatMul", "encoder.layer.0.attention.self:scores.*"),
        ("/bert/encoder/layer.0/attention/self/MatMul_1", "encoder.layer.0.attention.self:context.*"),
        ("/bert/encoder/layer.0/attention/self/query/MatMul", "encoder.layer.0.attention.self.query"),
    ],
)  # fmt: skip
def test_one_node_is_one_product(node: str, pattern: str) -> None:
    made = quantized(STATIC | {"nodes_to_exclude": [node]})
    assert made["quantize"]["static"]["disable"] == [pattern]


def test_products_of_activations_may_stay_float() -> None:
    def placed(value: bool) -> Any:
        step = STATIC | {"extra_options": {"MatMulConstBOnly": value}}
        return quantized(step)["quantize"]["static"]["placement"]

    assert placed(False) == "whole"
    assert not {"scores.query", "scores.key", "context.probs", "context.value"} & set(placed(True))
    dynamic = {"type": "OnnxDynamicQuantization", "extra_options": {"MatMulConstBOnly": False}}
    field = "passes.quant.extra_options.MatMulConstBOnly"
    assert outcome(converted(config({"quant": dynamic})), field).verdict == "refused"


@pytest.mark.parametrize(
    ("method", "calibrator"),
    [
        ("Entropy", "minmax"),
        ("Percentile", {"percentile": {"keep": 99.999, "num_bins": 2048}}),
    ],
)
def test_calibrators_have_onnx_runtimes_settings(method: str, calibrator: Any) -> None:
    assert quantized(STATIC | {"calibrate_method": method})["calibrate"] == calibrator


def calibrated_on(load: dict[str, Any], evaluated: str | None = "validation") -> importers.Imported:
    """An import that calibrates on rows of another data config than it scores."""
    rows = [data_config(), data_config("other", load_dataset_config=load)]
    rows[0]["load_dataset_config"]["split"] = evaluated
    raw = config({"quant": STATIC | {"data_config": "other"}}, data_configs=rows)
    return converted(raw)


def test_calibration_rows_of_another_subset_are_refused() -> None:
    load = {"data_name": "glue", "subset": "sst2", "split": "train"}
    imported = calibrated_on(load)
    for name in ("data_name", "subset", "split"):
        field = outcome(imported, f"data_configs[1].load_dataset_config.{name}")
        assert field.verdict == "refused"
        assert "data.train" in field.note


def test_calibration_rows_are_not_those_that_are_scored() -> None:
    load = {"data_name": "glue", "subset": "mrpc", "split": "validation[:50]"}
    same = calibrated_on(load)
    assert same.recipe["data"]["calibrate"] == {"from": "train[:50]"}
    field = outcome(same, "data_configs[1].load_dataset_config.split")
    assert field.note == "validation has the rows that are scored; train[:50] is taken"
    other = calibrated_on(load, evaluated="test")
    assert other.recipe["data"]["calibrate"] == {"from": "validation[:50]"}


@pytest.mark.parametrize(
    ("split", "expected"),
    [("train[:10]", {"samples": 10}), ("train[5:20]", {"samples": 15}), ("train", {})],
)
def test_refused_calibration_rows_are_as_many_as_the_config_says(
    split: str, expected: dict[str, int]
) -> None:
    imported = calibrated_on({"data_name": "glue", "subset": "sst2", "split": split})
    # Without a number it is octobert's own, and never that of a split that is not read.
    assert imported.recipe["data"].get("calibrate", {"from": "train"}) == {"from": "train"} | expected  # fmt: skip
    assert not [each for each in imported.outcomes if each.default and "samples" in each.field]


@pytest.mark.parametrize(
    ("evaluated", "calibrated", "expected", "note"),
    [
        ("train[100:200]", "train[:100]", {"from": "train[:100]", "drop_evaluated": True}, ""),
        ("train", "train[:50]", {"from": "validation[:50]"}, "train has the rows that are scored; validation[:50] is taken"),
        ("validation[:100]", "validation[100:]", {"from": "train[100:]"}, "validation has the rows that are scored; train[100:] is taken"),
        ("validation", "test[:50]", {"from": "test[:50]"}, ""),
        (None, "validation[:50]", {"from": "train[:50]"}, "validation has the rows that are scored; train[:50] is taken"),
    ],
)  # fmt: skip
def test_the_note_names_the_calibration_rows_of_the_recipe(
    evaluated: str | None, calibrated: str, expected: dict[str, Any], note: str
) -> None:
    load = {"data_name": "glue", "subset": "mrpc", "split": calibrated}
    imported = calibrated_on(load, evaluated)
    assert imported.recipe["data"]["calibrate"] == expected
    field = outcome(imported, "data_configs[1].load_dataset_config.split")
    assert (field.verdict, field.note) == ("mapped", note)


def test_a_sum_of_slices_is_refused() -> None:
    load = {"data_name": "glue", "subset": "mrpc", "split": "train[:50]+train[60:70]"}
    imported = calibrated_on(load)
    assert "calibrate" not in imported.recipe["data"]
    field = outcome(imported, "data_configs[1].load_dataset_config.split")
    assert (field.verdict, "slice" in field.note) == ("refused", True)


def test_providers_without_a_target_are_named_beside_the_others() -> None:
    imported = converted(config({"quant": STATIC}, **system("CoreML", "ROCM")))
    assert imported.recipe["targets"] == ["migraphx"]
    field = outcome(imported, "systems.here.accelerators[0].execution_providers")
    assert (field.verdict, field.note) == (
        "mapped",
        "migraphx; octobert has no target for CoreMLExecutionProvider",
    )


FLOAT16_GPU = {
    "conversion": {
        "type": "OnnxConversion",
        "target_opset": 20,
        "save_as_external_data": True,
    },
    "fusion": {
        "type": "OrtTransformersOptimization",
        "model_type": "bert",
        "opt_level": 0,
        "float16": True,
        "use_gpu": True,
        "keep_io_types": False,
        "optimization_options": {"enable_attention": True, "use_multi_head_attention": True},
    },
}


@pytest.mark.parametrize("task", ["text-classification", "feature-extraction"])
def test_float16_for_directml_is_read_in_whole(task: str) -> None:
    """The shape of olive-recipes' configs for DirectML: the host is a CPU, the target a GPU."""
    is_pairs = task == "text-classification"
    columns = ["sentence1", "sentence2"] if is_pairs else ["premise"]
    rows = {"input_cols": columns, "padding": "max_length", "max_length": 128, "max_samples": 100}
    scores = [metric("accuracy", sub("accuracy_score", 1), sub("f1_score"))] if is_pairs else []
    timing = [metric("latency", sub("avg", 2)), metric("throughput", sub("max"))]
    raw = config(
        FLOAT16_GPU,
        evaluators={"scores": {"metrics": [*scores, *timing]}},
        data_configs=[
            data_config(pre_process_data_config=rows, dataloader_config={"batch_size": 1})
        ],
        evaluate_input_model=False,
        host="host",
        **system("Dml", device="gpu"),
    )
    raw["input_model"]["task"] = task
    raw["systems"]["host"] = system("CPU", device="cpu")["systems"]["here"]
    imported = converted(raw)
    assert imported.recipe["targets"] == ["ort-dml"]
    assert imported.recipe["quantize"] == {"float": {"float_parts": "float16"}}
    assert (imported.recipe["opset"], imported.recipe["benchmark"]["sequence"]) == (20, [128])
    assert [each for each in imported.outcomes if each.verdict == "refused"] == []


@pytest.mark.parametrize(
    ("provider", "fields", "method"),
    [
        ("CUDA", {}, "float16"),
        ("Tensorrt", {}, "float16"),
        ("Dml", {}, "float16"),
        ("CPU", {}, "static"),
        ("QNN", {}, "float"),
        ("MIGraphX", {}, "float"),
        ("CUDA", {"precisions": ["int8"]}, "float"),
        ("CUDA", {"precisions": ["fp32"]}, "float"),
        ("CPU", {"precisions": ["fp32"]}, "float"),
        ("CPU", {"precisions": ["int8"]}, "static"),
        ("CPU", {"disable_auto_optimizer": True}, "float"),
        ("CUDA", {"disable_auto_optimizer": True}, "float"),
    ],
)
def test_without_passes_olive_takes_what_precisions_and_providers_allow(
    provider: str, fields: dict[str, Any], method: str
) -> None:
    raw = config({}, auto_optimizer_config=fields, **system(provider))
    assert chosen(raw) == method
    imported = converted(raw)
    assert outcome(imported, "passes").default
    for name in fields:
        assert (outcome(imported, f"auto_optimizer_config.{name}").key or "").startswith("quantize")


def chosen(raw: Any) -> str:
    """The method of a config without passes, or its float type."""
    method = converted(raw).recipe["quantize"]
    if isinstance(method, str):
        return method
    return next((options.get("float_parts", name) for name, options in method.items()), "")


def test_without_passes_a_goal_for_answers_allows_a_drop() -> None:
    strict = {"scores": {"metrics": [metric("accuracy", sub("accuracy_score", 1))]}}
    assert chosen(config({}, evaluators=strict, **system("CUDA"))) == "float"
    assert chosen(config({}, evaluators=strict)) == "float"
    # Of Olive 0.1 to 0.4, where metrics have functions that load rows.
    old = {"scores": {"metrics": [{"type": "latency", "sub_type": "avg"}]}}
    made = importers.convert(config({}, evaluators=old, data_configs=[])).recipe["quantize"]
    assert list(made) == ["dynamic"]
    new = config(
        {}, evaluators=old, data_configs=[], auto_optimizer_config={"precisions": ["int8"]}
    )
    assert importers.convert(new).recipe["quantize"] == "float"
    named = {"precisions": ["fp16"]}
    assert chosen(config({}, evaluators=strict, auto_optimizer_config=named, **system("CUDA"))) == "float16"  # fmt: skip
    raw = config({}, auto_optimizer_config={"excluded_passes": ["OnnxQuantization"]})
    field = outcome(converted(raw), "auto_optimizer_config.excluded_passes")
    assert field.verdict == "refused"


def test_arguments_of_a_function_that_loads_rows_are_refused(tmp_path: Any) -> None:
    (tmp_path / "rows.py").write_text("def pairs(data_path, split):\n    return read(data_path)\n")
    rows = data_config(
        user_script="rows.py", load_dataset_config={"type": "pairs", "data_path": "wikitext"}
    )
    imported = importers.convert(config({"quant": STATIC}, data_configs=[rows]), folder=tmp_path)
    assert imported.recipe["data"]["source"].endswith("rows.py:pairs")
    assert outcome(imported, "data_configs[0].load_dataset_config.data_path").verdict == "refused"


def test_a_config_with_octoberts_own_method() -> None:
    scored = metric("accuracy", sub("accuracy_score", 1, goal("max-degradation", 0.05)))
    scores = {"scores": {"metrics": [scored]}}
    plain = converted(config({"quant": STATIC}), as_octobert=True)
    keys = {"quantize", "transforms", "calibrate", "corrections"}
    assert not keys & plain.recipe.keys()
    assert not [each for each in plain.outcomes if each.default]
    assert plain.recipe["data"]["calibrate"] == {"from": "train"}
    search = converted(
        config({"quant": STATIC}, evaluators=scores, search_strategy=True), as_octobert=True
    )
    assert search.recipe["choose"] == {"limits": [{"max_drop": 0.05}]}
    assert (
        outcome(search, "evaluators.scores.metrics[0].sub_types[0].goal.value").key
        == "choose.limits"
    )


def test_uint8_weights_have_a_zero_point_of_their_own_as_in_onnxruntime() -> None:
    def weights(**fields: Any) -> tuple[Any, Any]:
        options = quantized(STATIC | fields)["quantize"]["static"]
        return options.get("weights"), options.get("weights_symmetric")

    assert weights() == ("int8", None)
    assert weights(precision="uint8") == ("uint8", False)
    assert weights(precision="uint8", extra_options={"WeightSymmetric": True}) == ("uint8", True)
    raw = config({"quant": STATIC | {"extra_options": {"WeightSymmetric": False}}})
    field = outcome(converted(raw), "passes.quant.extra_options.WeightSymmetric")
    assert (field.verdict, field.note) == ("refused", "int8 weights are symmetric")


def test_4_bit_weights_need_a_newer_opset_than_the_config_names() -> None:
    passes = {
        "conversion": {"type": "OnnxConversion", "target_opset": 17},
        "quant": {"type": "NVModelOptQuantization", "precision": "int4"},
    }
    imported = converted(config(passes))
    assert "opset" not in imported.recipe
    assert "since opset 21" in outcome(imported, "passes.conversion.target_opset").note


def test_a_fixed_shape_is_that_of_the_file_on_the_cpu_too() -> None:
    fixed = {"type": "DynamicToFixedShape", "dim_param": ["batch", "seq"], "dim_value": [1, 128]}
    recipe = converted(config({"fixed": fixed, "quant": STATIC})).recipe
    assert recipe["shape"] == {"batch": 1, "sequence": 128}


def test_zip_files_are_not_needed() -> None:
    imported = converted(
        config({"quant": STATIC}, packaging_config={"type": "Zipfile", "name": "a"})
    )
    field = outcome(imported, "packaging_config.type")
    assert field.verdict == "not needed"
    assert "zip -r" in field.note


@pytest.mark.parametrize("value", [[True, False], "SEARCHABLE_VALUES"])
def test_a_recipe_has_one_float_type(value: Any) -> None:
    imported = converted(config({"fuse": {"type": "OrtTransformersOptimization", "float16": value}}))  # fmt: skip
    assert imported.recipe["quantize"] == "float"
    assert outcome(imported, "passes.fuse.float16").verdict == "refused"
