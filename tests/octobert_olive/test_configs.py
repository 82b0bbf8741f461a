"""Configs of Olive become recipes, and every field of a config has an outcome."""

from __future__ import annotations

import copy
import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

import octobert
from octobert.config import importers, loading
from octobert.core.errors import RecipeError
from octobert_olive import rules
from octobert_olive.nodes import UNKNOWN, leaves
from tests.octobert_olive.configs import (
    config,
    data_config,
    everything,
    goal,
    layouts,
    metric,
    sub,
    system,
)
from tests.support.cli import octobert as program

SCRIPT = """
from transformers import AutoModelForNextSentencePrediction as NSP
import torch
raise RuntimeError("the script was run")

class Rows:
    def __init__(self):
        self.name = "mrpc"
    def all(self):
        return load_dataset("glue", self.name, split="train[:30]")

@Registry.register_dataset()
def rows():
    return Rows().all()

@Registry.register_dataset()
def unclear(name):
    return load_dataset(name)

@Registry.register_post_process()
def best(outputs):
    return torch.max(outputs, dim=1)[1]

@Registry.register_post_process()
def shifted(outputs):
    return my_own(outputs).argmax(-1)

def score(model, device, execution_providers):
    return torchmetrics.Accuracy(task="binary")(predict(model), labels())

def other(model, device, execution_providers):
    return my_own(model)

def load(name):
    return NSP.from_pretrained(name)

def made(name):
    return something(name)
"""


def recipe_of(raw: Any, **more: Any) -> dict[str, Any]:
    return importers.convert(raw, **more).recipe


# Goals are judged where Olive searches; here nothing can be varied.
JUDGED: dict[str, Any] = {
    "passes": {"convert": {"type": "OnnxConversion"}},
    "search_strategy": True,
}


def with_passes(**passes: dict[str, Any]) -> dict[str, Any]:
    return config(passes)


def outcome(imported: importers.Imported, field: str) -> Any:
    found = [each for each in imported.outcomes if each.field == field]
    assert len(found) == 1, [each.field for each in imported.outcomes]
    return found[0]


@pytest.mark.parametrize("raw", [everything(), *layouts().values(), config()])
def test_every_leaf_of_a_config_has_one_known_outcome(raw: Any) -> None:
    imported = importers.convert(copy.deepcopy(raw))
    named = [each.field for each in imported.outcomes if not each.default]
    assert named == [place for place, _ in leaves(raw, "")]
    assert [each.field for each in imported.outcomes if each.note == UNKNOWN] == []
    for each in imported.outcomes:
        assert each.key if each.verdict == "mapped" else each.note, each
        assert not each.note.endswith("."), each


@pytest.mark.parametrize("name", list(layouts()))
def test_layouts_mean_the_same(name: str) -> None:
    assert recipe_of(layouts()[name]) == recipe_of(layouts()["flat"])


def test_a_config_becomes_a_recipe_that_loads(tmp_path: Path) -> None:
    made = recipe_of(layouts()["flat"])
    assert made["model"] == "some/model"
    assert made["task"] == "mrpc"
    assert made["data"] == {
        "source": "glue",
        "config": "mrpc",
        "evaluate": {"from": "validation"},
        "calibrate": {"from": "train", "samples": 408},
    }
    assert made["targets"] == ["ort-cpu"]
    assert made["transforms"] == made["corrections"] == []
    static = made["quantize"]["static"]
    assert (static["activations"], static["per_channel"]) == ("uint16", False)
    assert loading.parse(made).quantize.options["activations"] == "uint16"


@pytest.mark.parametrize(
    ("passes", "expected"),
    [
        ({"type": "OnnxDynamicQuantization", "precision": "uint8", "activation_type": "uint8"}, {"quantize": {"dynamic": {"per_channel": False}}}),
        ({"type": "OnnxQuantization", "quant_mode": "dynamic"}, {"quantize": {"dynamic": {"reduce_range": False}}}),
        ({"type": "OnnxQuantization", "reduce_range": True}, {"quantize": {"static": {"reduce_range": True}}}),
        ({"type": "onnxstaticquantization", "calibrate_method": "Entropy"}, {"calibrate": "minmax"}),
        ({"type": "OnnxStaticQuantization", "op_types_to_exclude": ["Gather", "Add"]}, {"quantize": {"static": {"embeddings": "float"}}}),
        ({"type": "OnnxStaticQuantization", "nodes_to_exclude": ["/bert/encoder/layer.1/attention/self/query/MatMul"]}, {"quantize": {"static": {"disable": ["encoder.layer.1.attention.self.query"]}}}),
        ({"type": "OnnxStaticQuantization", "extra_options": {"SmoothQuant": True, "CalibPercentile": 99.9}, "calibrate_method": "Percentile"}, {"transforms": [{"smoothquant": {"alpha": 0.5}}], "calibrate": {"percentile": {"keep": 99.9}}}),
        ({"type": "IncDynamicQuantization"}, {"quantize": "dynamic"}),
        ({"type": "IncQuantization", "approach": "SEARCHABLE_VALUES"}, {"quantize": "static"}),
        ({"type": "IncStaticQuantization", "recipes": {"smooth_quant": True, "smooth_quant_args": {"alpha": 0.7}}}, {"transforms": [{"smoothquant": {"alpha": 0.7}}]}),
        ({"type": "IncStaticQuantization", "recipes": {"smooth_quant": True, "smooth_quant_args": {"alpha": "auto"}}}, {"transforms": [{"smoothquant": {"alpha": "learned"}}]}),
        ({"type": "IncStaticQuantization", "tuning_criterion": {"timeout": 300}}, {"accuracy": {"max_drop": 0.01, "minutes": 5.0}}),
        ({"type": "OrtTransformersOptimization", "float16": True}, {"quantize": {"float": {"float_parts": "float16"}}}),
        ({"type": "OnnxFloatToFloat16"}, {"quantize": {"float": {"float_parts": "float16"}}}),
        ({"type": "OnnxConversion"}, {"quantize": "float", "transforms": []}),
        ({"type": "QuantizationAwareTraining", "num_epochs": 3}, {"qat": {"epochs": 3}, "quantize": "static"}),
        ({"type": "VitisAIAddMetaData"}, {"targets": ["vitisai"]}),
        ({"type": "EPContextBinaryGenerator"}, {"targets": ["qnn"]}),
        ({"type": "OpenVINOQuantization", "target_device": "npu"}, {"targets": ["openvino-npu"], "quantize": {"static": {"symmetric": True}}}),
        ({"type": "OpenVINOEncapsulation", "target_device": "cpu"}, {"targets": ["openvino-cpu"]}),
        ({"type": "DynamicToFixedShape", "dim_param": ["batch", "seq"], "dim_value": [2, 64]}, {"benchmark": {"batch": [2], "sequence": [64]}, "task": {"mrpc": {"max_length": 64}}}),
    ],
)  # fmt: skip
def test_passes(passes: dict[str, Any], expected: dict[str, Any]) -> None:
    made = recipe_of(with_passes(it=passes))
    assert _covers(made, expected), made
    loading.parse(made)


def _covers(made: Any, expected: Any) -> bool:
    """Return whether what is expected is there, among defaults of Olive."""
    if isinstance(made, dict) and isinstance(expected, dict):
        return all(key in made and _covers(made[key], value) for key, value in expected.items())
    return bool(made == expected)


@pytest.mark.parametrize(
    ("provider", "activations", "opset", "expected"),
    [
        ("CPU", "uint16", 17, 17),
        ("QNN", "uint16", 20, None),
        ("QNN", "uint16", 21, 21),
        ("QNN", "uint8", 14, None),
        ("CUDA", "int8", 14, 14),
    ],
)
def test_an_opset_that_cannot_hold_the_model_is_left_out(
    provider: str, activations: str, opset: int, expected: int | None
) -> None:
    steps = {
        "convert": {"type": "OnnxConversion", "target_opset": opset},
        "quant": {
            "type": "OnnxStaticQuantization",
            "activation_type": activations,
            "precision": "uint8",
        },
    }
    imported = importers.convert(config(steps, **system(provider)))
    assert imported.recipe.get("opset") == expected
    assert outcome(imported, "passes.convert.target_opset").verdict == (
        "refused" if expected is None else "mapped"
    )
    weights = imported.recipe["quantize"]["static"].get("weights")
    assert weights in (None, "uint8")
    assert (weights is None) == (outcome(imported, "passes.quant.precision").verdict == "refused")


def test_a_training_loop_is_code_of_the_recipe() -> None:
    step = {
        "type": "QuantizationAwareTraining",
        "user_script": "script.py",
        "training_loop_func": "loop",
    }
    made = recipe_of(with_passes(train=step))
    assert made["qat"] == {"code": "script.py:loop"}
    with pytest.raises(RecipeError, match="--allow-code"):
        loading.parse(made)
    assert loading.parse({**made, "allow_code": True}).qat is not None


def test_timing_has_keys() -> None:
    timing = {"warmup_num": 5, "repeat_test_num": 40, "sleep_num": 1}
    made = recipe_of(
        config(
            evaluators={
                "scores": {"metrics": [metric("latency", sub("avg", metric_config=timing))]}
            }
        )
    )
    assert made["benchmark"] == {"warmup": 5, "repeats": 40, "pause_ms": 1000}


@pytest.mark.parametrize(
    ("provider", "device", "target"),
    [
        ("NvTensorRTRTX", "gpu", "tensorrt-rtx"),
        ("OpenVINO", None, "openvino-ep"),
        ("OpenVINO", "npu", "openvino-npu"),
        ("MIGraphX", "gpu", "migraphx"),
        ("Dml", "gpu", "ort-dml"),
    ],
)
def test_providers_are_targets(provider: str, device: str | None, target: str) -> None:
    made = recipe_of(config({}, **system(provider, device=device)))
    assert made["targets"] == [target]
    loading.parse(made)


def test_fixed_shapes_of_an_npu() -> None:
    fixed = {"type": "DynamicToFixedShape", "input_name": ["input_ids"], "input_shape": [[1, 128]]}
    made = recipe_of(config({"fix": fixed}, **system("QNN", device="npu")))
    assert (made["targets"], made["shape"]) == (["qnn"], {"batch": 1, "sequence": 128})


def test_sessions_have_their_options_and_no_libraries() -> None:
    settings = {
        "execution_provider": "QNNExecutionProvider",
        "provider_options": [
            {"backend_path": "QnnHtp.dll", "htp_arch": "73", "op_package": "/lib/x.so"}
        ],
    }
    raw = config({}, **system("QNN", device="npu"))
    raw["evaluators"]["scores"]["metrics"] = [
        metric("latency", sub("avg"), user_config={"inference_settings": settings})
    ]
    imported = importers.convert(raw)
    assert imported.recipe["session"] == {"qnn": {"provider": {"htp_arch": "73"}}}
    place = "evaluators.scores.metrics[0].user_config.inference_settings.provider_options[0]"
    assert outcome(imported, f"{place}.backend_path").verdict == "not needed"
    assert "--allow-code" in outcome(imported, f"{place}.op_package").note


@pytest.mark.parametrize(
    ("kind", "part", "expected"),
    [
        (
            "accuracy",
            sub("accuracy_score", 1, goal("percent-max-degradation", 2)),
            {"max_drop": 0.02, "relative": True},
        ),
        ("accuracy", sub("f1_score", 1, goal("max-degradation", 0.05)), {"max_drop": 0.05}),
        ("accuracy", sub("accuracy", 1, goal("threshold", 0.8)), {"at_least": 0.8}),
        ("accuracy", sub("accuracy", 1, goal("min-improvement", 0.8)), None),
        ("accuracy", sub("accuracy", 1), None),
    ],
)
def test_goals_of_answers(kind: str, part: Any, expected: Any) -> None:
    assert (
        recipe_of(config(evaluators={"scores": {"metrics": [metric(kind, part)]}}) | JUDGED).get(
            "accuracy"
        )
        == expected
    )


def test_of_several_goals_the_first_by_priority_is_the_criterion() -> None:
    parts = (
        sub("f1_score", 2, goal("max-degradation", 0.1)),
        sub("accuracy_score", 1, goal("max-degradation", 0.2)),
    )
    imported = importers.convert(
        config(evaluators={"scores": {"metrics": [metric("accuracy", *parts)]}}) | JUDGED
    )
    assert imported.recipe["accuracy"]["max_drop"] == 0.2
    assert (
        outcome(imported, "evaluators.scores.metrics[0].sub_types[0].goal.value").verdict
        == "refused"
    )


def searched(passes: dict[str, Any] | None = None, strategy: Any = True, **fields: Any) -> Any:
    made = importers.convert(config(passes, search_strategy=strategy, **fields))
    loading.parse(made.recipe)
    return made


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        (True, {"sampler": "exhaustive"}),
        ({"execution_order": "joint", "sampler": "tpe", "max_samples": 3, "seed": 0}, {"sampler": "tpe", "order": "joint", "trials": 3, "seed": 0}),
        ({"execution_order": "pass-by-pass", "search_algorithm": "random", "search_algorithm_config": {"num_samples": 9, "seed": 4}}, {"sampler": "random", "order": "one-pass-at-a-time", "trials": 9, "seed": 4}),
        ({"sampler": "sequential", "max_time": 90}, {"sampler": "exhaustive", "minutes": 1.5}),
        ({"sampler": "tpe", "sampler_config": {"max_samples": 0}}, {"sampler": "tpe", "trials": 4}),
        ({"sampler": "tpe", "max_samples": 8, "max_iter": 5}, {"sampler": "tpe", "trials": 5}),
    ],
)  # fmt: skip
def test_strategies(strategy: Any, expected: dict[str, Any]) -> None:
    step = {
        "type": "OnnxStaticQuantization",
        "disable_search": True,
        "calibrate_method": "SEARCHABLE_VALUES",
        "per_channel": [True, False],
    }
    imported = searched({"q": step}, strategy)
    search = imported.recipe["search"]
    assert search.pop("space") == {
        "calibrate": ["minmax", {"percentile": {"keep": 99.999, "num_bins": 2048}}],
        "quantize.static.per_channel": [True, False],
    }
    assert {
        key: value for key, value in search.items() if key not in ("goals", "limits")
    } == expected
    refused = [
        each.field
        for each in imported.outcomes
        if each.field.startswith("search_strategy") and each.verdict == "refused"
    ]
    assert refused == []


@pytest.mark.parametrize(
    ("step", "space"),
    [
        ({"type": "IncQuantization", "approach": "SEARCHABLE_VALUES", "reduce_range": False, "quant_format": "QDQ"}, {"quantize": [{"static": {"reduce_range": False}}, {"dynamic": {"reduce_range": False}}]}),
        ({"type": "OnnxQuantization", "per_channel": False, "reduce_range": False, "calibrate_method": "MinMax", "quant_format": "QDQ", "precision": "int8", "op_types_to_quantize": ["MatMul"]}, {"quantize": [{"static": {"per_channel": False, "reduce_range": False, "weights": "int8", "activations": "int8", "symmetric": False, "embeddings": "float", "placement": ["linear.input", "linear.weight", "scores.query", "scores.key", "context.probs", "context.value", "head.*@decoder"]}}, {"dynamic": {"per_channel": False, "reduce_range": False, "embeddings": "float"}}]}),
        ({"type": "OnnxDynamicQuantization"}, {"quantize.dynamic.per_channel": [True, False], "quantize.dynamic.reduce_range": [True, False]}),
        ({"type": "OnnxStaticQuantization", "disable_search": True, "activation_type": ["QUInt8", "QUInt16"]}, {"quantize.static.activations": ["uint8", "uint16"]}),
        ({"type": "OnnxStaticQuantization", "disable_search": True, "activation_type": {"type": "Categorical", "values": ["QInt8", "QUInt8"]}}, {"quantize.static.activations": ["int8", "uint8"]}),
        ({"type": "OnnxStaticQuantization", "disable_search": True, "reduce_range": {"type": "Boolean"}}, {"quantize.static.reduce_range": [True, False]}),
        ({"type": "OnnxStaticQuantization", "disable_search": True, "quant_format": "SEARCHABLE_VALUES"}, {"format": ["qdq", "qoperator"]}),
    ],
)  # fmt: skip
def test_open_fields_of_passes_are_the_space(step: dict[str, Any], space: dict[str, Any]) -> None:
    imported = searched({"q": step})
    assert imported.recipe["search"]["space"] == space
    assert not {"accuracy", "speed"} & imported.recipe.keys()
    assert [each for each in imported.outcomes if each.note == UNKNOWN] == []


def test_alternative_passes_are_values_of_the_method() -> None:
    static = {
        "type": "OnnxStaticQuantization",
        "disable_search": True,
        "activation_type": "QUInt8",
        "calibrate_method": "Percentile",
    }
    dynamic = {"type": "OnnxDynamicQuantization", "disable_search": True}
    for raw, flows in (
        ({"q": [static, dynamic]}, None),
        ({"s": static, "d": dynamic}, [["s"], ["d"]]),
    ):
        space = searched(raw, pass_flows=flows).recipe["search"]["space"]
        assert [list(method) for method in space["quantize"]] == [["static"], ["dynamic"]]
    other = {"type": "OnnxStaticQuantization", "disable_search": True}
    two = searched({"q": [static, other]}).recipe["search"]["space"]
    assert [method["static"]["activations"] for method in two["quantize"]] == ["uint8", "int8"]
    assert two["calibrate"] == [{"percentile": {"keep": 99.999, "num_bins": 2048}}, "minmax"]
    # Without a search the first one is taken.
    alone = importers.convert(config({"q": [static, dynamic]}))
    assert alone.recipe["quantize"]["static"]["activations"] == "uint8"
    assert outcome(alone, "passes.q[1].type").verdict == "refused"


@pytest.mark.parametrize("task", ["text-classification", "fill-mask"])
def test_empty_lists_of_columns_name_none(task: str) -> None:
    rows = data_config(pre_process_data_config={"label_cols": [], "input_cols": []})
    model = {"type": "HfModel", "model_path": "some/model", "task": task}
    imported = importers.convert(config(data_configs=[rows], input_model=model))
    for field in ("label_cols", "input_cols"):
        assert (
            outcome(imported, f"data_configs[0].pre_process_data_config.{field}").verdict
            == "not needed"
        )
    assert "text" not in str(imported.recipe["task"]).replace("text-classification", "")


@pytest.mark.parametrize("value", ["many", [], ["many"], {"a": 1}, float("inf")])
def test_a_sampling_size_that_is_no_number_is_refused(value: Any) -> None:
    step = {
        "type": "IncStaticQuantization",
        "data_config": "pairs",
        "calibration_sampling_size": value,
    }
    imported = importers.convert(with_passes(quant=step))
    assert {
        each.verdict for each in imported.outcomes if "calibration_sampling_size" in each.field
    } == {"refused"}
    # All rows of the split, which the config reads without a limit.
    assert imported.recipe["data"]["calibrate"]["samples"] == 408


def test_texts_in_place_of_numbers_are_refused() -> None:
    timed = metric("latency", sub("avg", metric_config={"repeat_test_num": "many"}))
    scored = metric("accuracy", sub("accuracy_score", 1, goal("max-degradation", 0.03)))
    strategy = {"max_time": "an hour", "seed": 1}
    passes = {"convert": {"type": "OnnxConversion"}}
    imported = importers.convert(
        config(
            passes, evaluators={"scores": {"metrics": [scored, timed]}}, search_strategy=strategy
        )
    )
    for field in (
        "evaluators.scores.metrics[1].sub_types[0].metric_config.repeat_test_num",
        "search_strategy.max_time",
    ):
        assert outcome(imported, field).verdict == "refused"


def test_goals_of_a_search_are_limits_and_priorities_its_goals() -> None:
    metrics = [
        metric(
            "latency",
            sub("avg", 2, goal("percent-min-improvement", 20)),
            sub("p90", 3, goal("threshold", 30)),
        ),
        metric(
            "accuracy",
            sub("accuracy_score", 1, goal("percent-max-degradation", 2)),
            sub("f1_score", 4, goal("threshold", 0.8)),
        ),
        metric("throughput", sub("avg", goal=goal("min-improvement", 3))),
    ]
    imported = searched(
        {"q": {"type": "IncQuantization", "approach": "SEARCHABLE_VALUES"}},
        evaluators={"scores": {"metrics": metrics}},
    )
    search = imported.recipe["search"]
    assert search["goals"] == ["metric", "latency", "latency@p90", "f1"]
    assert search["limits"] == [
        {"of": "latency", "min_gain": 20.0},
        {"of": "latency@p90", "at_most": 30.0},
        {"max_drop": 0.02, "relative": True},
        {"of": "f1", "at_least": 0.8},
    ]
    assert (
        outcome(imported, "evaluators.scores.metrics[2].sub_types[0].goal.value").verdict
        == "refused"
    )
    assert (
        outcome(imported, "evaluators.scores.metrics[0].sub_types[0].priority").key
        == "search.goals"
    )


def test_accuracy_aware_passes_keep_their_criterion_in_each_trial() -> None:
    step = {
        "type": "IncQuantization",
        "approach": "SEARCHABLE_VALUES",
        "metric": metric("accuracy", sub("accuracy_score", 1, goal("max-degradation", 0.01))),
        "tuning_criterion": {"timeout": 120},
    }
    made = searched({"q": step}).recipe
    assert made["search"]["space"]["accuracy"] == [{"max_drop": 0.01, "minutes": 2.0}]
    assert made["search"]["limits"] == [{"max_drop": 0.03}]


def test_a_strategy_without_anything_to_vary_is_no_search() -> None:
    step = {"type": "OnnxStaticQuantization", "disable_search": True}
    made = importers.convert(
        config({"q": step}, search_strategy={"sampler": "tpe", "max_samples": 3})
    ).recipe
    assert "search" not in made
    assert made["accuracy"] == {"max_drop": 0.03}
    trained = {"t": {"type": "QuantizationAwareTraining"}, "q": {"type": "OnnxQuantization"}}
    assert "search" not in importers.convert(config(trained, search_strategy=True)).recipe


@pytest.fixture
def script(tmp_path: Path) -> Path:
    (tmp_path / "script.py").write_text(SCRIPT)
    return tmp_path


def test_scripts_are_read_and_not_run(script: Path) -> None:
    rows = {
        "name": "pairs",
        "user_script": "script.py",
        "load_dataset_config": {"type": "rows"},
        "post_process_data_config": {"type": "best"},
    }
    own = {"user_script": "script.py", "evaluate_func": "score"}
    scores = metric("custom", sub("mine", 1, goal("max-degradation", 0.02)), user_config=own)
    raw = config(data_configs=[rows], evaluators={"scores": {"metrics": [scores]}})
    made = recipe_of(raw, folder=script)
    assert made["data"]["source"] == "glue"
    assert made["data"]["config"] == "mrpc"
    assert made["data"]["evaluate"] == {"from": "train[:30]"}
    assert made["data"]["calibrate"] == {"from": "train", "drop_evaluated": True}
    judged = recipe_of(raw | JUDGED, folder=script)
    assert judged["accuracy"] == {"max_drop": 0.02}
    assert made["task"] == "mrpc"


def test_rows_that_only_calibrate_leave_others_to_evaluate(script: Path) -> None:
    rows = {"name": "pairs", "user_script": "script.py", "load_dataset_config": {"type": "rows"}}
    raw = config(
        {"q": {"type": "OnnxStaticQuantization", "data_config": "pairs"}}, data_configs=[rows]
    )
    del raw["evaluator"], raw["evaluators"]
    data = recipe_of(raw, folder=script)["data"]
    assert data["calibrate"] == {"from": "train[:30]", "drop_evaluated": True}
    assert data["evaluate"] == {"from": "train", "samples": 500}


def test_training_rows_that_are_scored_are_not_read_otherwise() -> None:
    rows = data_config(load_dataset_config={"data_name": "x", "split": "train"})
    data = recipe_of(config({"c": {"type": "OnnxConversion"}}, data_configs=[rows]))["data"]
    assert (data["evaluate"], data["calibrate"]) == ({"from": "train"}, {"from": "validation"})


def test_functions_that_octobert_cannot_express_are_named_or_refused(script: Path) -> None:
    rows = {"name": "pairs", "user_script": "script.py", "load_dataset_config": {"type": "unclear"}}
    own = {"user_script": "script.py", "evaluate_func": "other"}
    scores = metric("custom", sub("mine", 1, goal("max-degradation", 0.02)), user_config=own)
    imported = importers.convert(
        config(data_configs=[rows], evaluators={"scores": {"metrics": [scores]}}), folder=script
    )
    assert imported.recipe["data"]["source"] == "script.py:unclear"
    assert (
        "metric: script.py:NAME"
        in outcome(imported, "evaluators.scores.metrics[0].user_config.evaluate_func").note
    )


def test_a_script_that_is_no_regular_file_is_not_read(script: Path) -> None:
    os.mkfifo(script / "pipe")

    def made(name: str) -> str:
        rows = {"name": "pairs", "user_script": name, "load_dataset_config": {"type": "rows"}}
        return json.dumps(recipe_of(config(data_configs=[rows]), folder=script)).replace(
            name, "NAME"
        )

    assert made("/dev/zero") == made("/dev/urandom") == made("pipe") == made("missing.py")


@pytest.mark.parametrize(
    ("loader", "task", "model"),
    [("load", "next-sentence", "some/model"), ("made", "text-classification", "script.py:made")],
)
def test_the_head_of_a_loaded_model_is_read(
    script: Path, loader: str, task: str, model: str
) -> None:
    loaded = {
        "type": "PyTorchModel",
        "model_path": "some/model",
        "model_loader": loader,
        "model_script": "script.py",
    }
    made = recipe_of(
        config(
            {},
            input_model=loaded,
            data_configs=[data_config(load_dataset_config={"data_name": "x"})],
        ),
        folder=script,
    )
    assert made["model"] == model
    assert task in (made["task"], *made["task"])


@pytest.mark.parametrize("raw", [[1, 2], {}, {"passes": {}}, config({"q": {"type": "OnnxQuantisation"}}), config({"q": {"type": "GptqQuantizer"}}), config({"q": {"type": "OnnxStaticQuantization", "precision": "int4"}}), config({"q": {}}), config(builds={"a": {}}), config(evaluator="score"), config(pass_flows=[["convert"]]), config(input_model={"type": "HfModel", "model_path": "m", "task": "text-generation"}), config(input_model={"type": "CompositeModel"}), config(**system("CoreML", device="gpu"))])  # fmt: skip
def test_what_would_change_the_result_is_one_sentence(golden, raw: Any) -> None:
    with golden.raises(RecipeError):
        importers.convert(raw)


def test_tables_name_what_there_is() -> None:
    tables = yaml.safe_load((Path(rules.__file__).parent / "fields.yaml").read_text())
    passes = rules.names("passes").values()
    cases = [
        case
        for table in tables.values()
        for rows in table.get("cases", {}).values()
        for case in rows
    ]
    used = {what for table in tables.values() for what in table.get("computed", {}).values()}
    used |= {what for _, outcome, what in cases if outcome == "computed"}
    used |= {entry["type"][1] for entry in passes if entry.get("type", [""])[0] == "computed"}
    used |= {entry[when] for entry in passes for when in ("first", "last") if when in entry}
    assert used == set(rules.COMPUTED)
    nested = {name for table in tables.values() for name in table.get("fields", {}).values()}
    assert nested | {name for entry in passes for name in entry["fields"]} <= set(tables)
    named = "not needed/refused/refused if on/mapped/text/value/named/option/option value/later/session/fields/cases/computed"
    outcomes = set(named.split("/"))
    assert {outcome for _, outcome, _ in cases} <= outcomes
    for name, table in tables.items():
        assert set(table) <= outcomes, name
        fields = [field for rows in table.values() for row in rows for field in row.split(", ")]
        assert len(fields) == len(set(fields)), name


def test_unknown_fields_are_refused_as_unknown() -> None:
    imported = importers.convert(
        config({"q": {"type": "OnnxStaticQuantization", "bits_of_luck": 3}}, colour="blue")
    )
    assert (
        outcome(imported, "passes.q.bits_of_luck").note
        == outcome(imported, "colour").note
        == UNKNOWN
    )


def test_azureml_models_have_a_name_with_their_workspace() -> None:
    model = {
        "type": "HfModel",
        "model_path": {"type": "azureml_model", "name": "bert", "version": "3"},
        "task": "text-classification",
    }
    client = {"subscription_id": "S", "resource_group": "R", "workspace_name": "W"}
    imported = importers.convert(config(input_model=model, azureml_client=client))
    assert (
        imported.recipe["model"]
        == "azureml://subscriptions/S/resourcegroups/R/workspaces/W/models/bert/versions/3"
    )
    assert all(
        o.verdict == "mapped" for o in imported.outcomes if o.field.startswith("azureml_client")
    )


def test_a_config_is_imported_from_the_command_line(tmp_path: Path) -> None:
    source, recipe = tmp_path / "mrpc.json", tmp_path / "recipes" / "mrpc.yaml"
    source.write_text(json.dumps(everything()))
    done = program("import", source, "--out", recipe)
    assert done.returncode == 0
    assert "passes.tune.type" in done.stdout
    text = recipe.read_text()
    comments = [line for line in text.splitlines() if line.startswith("#   ")]
    outcomes = octobert.import_config(source).outcomes
    assert len(comments) == len([each for each in outcomes if each.verdict != "not needed"])
    every = program("import", source, "--all").stdout
    assert every.count("#   ") == len(outcomes)
    assert yaml.safe_load(text) == octobert.import_config(source).recipe
    fields = json.loads(program("import", source, "--json").stdout)["fields"]
    order = [["refused", "mapped", "not needed"].index(each["verdict"]) for each in fields]
    assert order == sorted(order)


def test_comments_stay_comments(tmp_path: Path) -> None:
    raw = config(output_dir="a\nmodel: evil\u2028task: evil\x85x", **{"odd\nkey: 1": "x"})
    text = importers.convert(raw).text()
    assert yaml.safe_load(text) == recipe_of(raw)


def test_a_config_runs_as_a_recipe_does(tmp_path: Path, pairs: Path, checkpoint: Any) -> None:
    source = tmp_path / "config.json"
    source.write_text(json.dumps(config()))
    rows = f"{{source: {pairs}, calibrate: {{from: train, samples: 20}}}}"
    changes = ("--set", f"model={checkpoint('bert')}", "--set", f"data={rows}")
    done = program("run", source, "--out", tmp_path / "out", "--dry-run", *changes)
    assert done.returncode == 0, done.stderr
    assert "quantize/ort-cpu" in done.stdout


@pytest.mark.parametrize(
    "text",
    [
        '{"input_model": ',
        '{"passes": {}, "passes": {}}',
        '{"passes": ' + "[" * 9_999 + "]" * 9_999 + "}",
        '{"epochs": 3}',
    ],
)
def test_files_that_are_no_configs_are_one_sentence(
    golden, tmp_path: Path, text: str | None
) -> None:
    source = tmp_path / "c.json"
    if text is not None:
        source.write_text(text)
    done = program("import", source)
    assert (done.returncode, done.stdout) == (2, "")
    golden(done.stderr)
