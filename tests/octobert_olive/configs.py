"""Olive configs, made by code: every kind of pass and of field, in every layout."""

from __future__ import annotations

import copy
from typing import Any

from octobert.config import importers, loading

Config = dict[str, Any]
STATIC = {"type": "OnnxStaticQuantization", "data_config": "pairs"}


def converted(raw: Any, **more: Any) -> importers.Imported:
    imported = importers.convert(raw, **more)
    loading.parse(imported.recipe)
    return imported


def quantized(step: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """The recipe of a config with one pass."""
    return converted(config({"quant": step}, **fields)).recipe


def outcome(imported: importers.Imported, field: str) -> Any:
    return next(each for each in imported.outcomes if each.field == field)


def config(passes: dict[str, Any] | None = None, **fields: Any) -> Config:
    """A config that quantizes a classifier of pairs of sentences."""
    return {
        "input_model": {
            "type": "HfModel",
            "model_path": "some/model",
            "task": "text-classification",
        },
        "data_configs": [data_config()],
        "evaluators": {
            "scores": {
                "metrics": [
                    metric("accuracy", sub("accuracy_score", 1, goal("max-degradation", 0.03)))
                ]
            }
        },
        "evaluator": "scores",
        "passes": passes
        if passes is not None
        else {"quant": {"type": "OnnxStaticQuantization", "data_config": "pairs"}},
        **fields,
    }


def data_config(name: str = "pairs", **more: Any) -> Config:
    load = {"data_name": "glue", "subset": "mrpc", "split": "validation"}
    return {"name": name, "type": "HuggingfaceContainer", "load_dataset_config": load, **more}


def goal(kind: str, value: float) -> Config:
    return {"type": kind, "value": value}


def sub(name: str, priority: int | None = None, goal: Config | None = None, **more: Any) -> Config:
    given = {"name": name, "priority": priority, "goal": goal}
    return {key: value for key, value in given.items() if value is not None} | more


def metric(kind: str, *subs: Config, **more: Any) -> Config:
    return {
        "name": f"the {kind}",
        "type": kind,
        "data_config": "pairs",
        "sub_types": list(subs),
        **more,
    }


def system(*providers: str, device: str | None = None) -> Config:
    accelerator: Config = {
        "execution_providers": [f"{provider}ExecutionProvider" for provider in providers]
    }
    if device is not None:
        accelerator["device"] = device
    return {
        "systems": {"here": {"type": "LocalSystem", "accelerators": [accelerator]}},
        "target": "here",
    }


def layouts() -> dict[str, Config]:
    """One config in every layout."""
    step = {
        "type": "OnnxStaticQuantization",
        "data_config": "pairs",
        "activation_type": "uint16",
        "per_channel": False,
    }
    flat = config(
        {"convert": {"type": "OnnxConversion", "target_opset": 21}, "quant": step},
        cache_dir="cached",
        **system("CPU", device="cpu"),
    )
    found = {"flat": flat}

    nested = copy.deepcopy(flat)
    for node in (nested["input_model"], *nested["passes"].values(), nested["systems"]["here"]):
        fields = {key: node.pop(key) for key in list(node) if key != "type"}
        node["config"] = fields
    for part in ("load_dataset_config",):
        nested["data_configs"][0][part] = {
            "type": "huggingface_dataset",
            "params": nested["data_configs"][0][part],
        }
    found["config objects"] = nested

    engine = copy.deepcopy(flat)
    engine["engine"] = {key: engine.pop(key) for key in ("evaluator", "target", "cache_dir")}
    found["engine"] = engine

    named_lists = copy.deepcopy(flat)
    named_lists["passes"] = {name: [step] for name, step in flat["passes"].items()}
    found["passes with lists"] = named_lists

    listed = copy.deepcopy(flat)
    listed["passes"] = list(flat["passes"].values())
    found["list of passes"] = listed

    flows = copy.deepcopy(flat)
    flows["pass_flows"] = [["convert", "quant"]]
    found["pass flows"] = flows

    inline = copy.deepcopy(flat)
    inline["evaluator"] = inline.pop("evaluators")["scores"]
    inline["target"] = inline.pop("systems")["here"]
    rows = inline.pop("data_configs")[0]
    inline["evaluator"]["metrics"][0]["data_config"] = rows
    inline["passes"]["quant"]["data_config"] = rows
    found["written in place"] = inline

    mapping = copy.deepcopy(flat)
    mapping["data_configs"] = {"pairs": mapping["data_configs"][0]}
    found["data configs by name"] = mapping

    old = copy.deepcopy(flat)
    old["input_model"] = {
        "type": "PyTorchModel",
        "config": {
            "hf_config": {
                "model_name": "some/model",
                "task": "text-classification",
                "dataset": {"data_name": "glue", "subset": "mrpc", "split": "validation"},
            }
        },
    }
    del old["data_configs"]
    old["evaluators"]["scores"]["metrics"][0]["data_config"] = "__input_model_data_config__"
    old["passes"]["quant"]["data_config"] = "__input_model_data_config__"
    found["hf_config"] = old
    return found


def everything() -> Config:
    """A config with a field of every family; as a run it would make no sense."""
    timing = {"warmup_num": 5, "repeat_test_num": 40, "sleep_num": 1}
    session = {
        "onnx": {
            "execution_provider": "CPUExecutionProvider",
            "provider_options": [{"arena": "1"}],
            "session_options": {
                "intra_op_num_threads": 2,
                "extra_session_config": {"session.x": "1"},
            },
        }
    }
    metrics = [
        metric("accuracy", sub("accuracy_score", 1, goal("max-degradation", 0.01)), sub("f1_score"), sub("auroc"), backend="torch_metrics"),
        metric("latency", sub("avg", 2, goal("percent-min-improvement", 20), metric_config=timing), sub("p75"), user_config={"inference_settings": session, "io_bind": True}),
        metric("throughput", sub("max"), inference_settings={"pytorch": {"threads": 1}}),
        metric("size_on_disk", sub("bytes")),
        metric("custom", sub("mine", higher_is_better=True), user_config={"user_script": "nothing.py", "evaluate_func": "score", "evaluate_func_kwargs": {"a": 1}}),
    ]  # fmt: skip
    onnx = {
        "data_config": "pairs", "activation_type": "uint8", "precision": "int8", "calibrate_method": "Percentile", "per_channel": True,
        "reduce_range": False, "quant_format": "QDQ", "quant_preprocess": True, "op_types_to_quantize": ["MatMul", "Gemm"],
        "nodes_to_exclude": ["/bert/encoder/layer.0/output/dense/MatMul"], "calibration_providers": ["CPUExecutionProvider"],
        "activation_symmetric": False, "weight_symmetric": True, "min_real_range": 0.0001, "prepare_qdq_config": True,
        "tensor_quant_overrides": {"x": [{"quant_type": "QInt8"}]}, "extra_options": {"MinimumRealRange": 0.0001, "SmoothQuant": True},
    }  # fmt: skip
    inc = {
        "approach": "static", "quant_format": "QDQ", "data_config": "pairs", "metric": metrics[0],
        "recipes": {"smooth_quant": True, "smooth_quant_args": {"alpha": 0.5, "folding": True}, "fast_bias_correction": True},
        "tuning_criterion": {"timeout": 120, "max_trials": 9, "strategy": "basic"}, "workspace": "w", "calibration_sampling_size": [64],
    }  # fmt: skip
    passes = {
        "train": {
            "type": "QuantizationAwareTraining",
            "user_script": "nothing.py",
            "training_loop_func": "loop",
            "num_epochs": 2,
        },
        "convert": {
            "type": "OnnxConversion",
            "target_opset": 20,
            "use_dynamo_exporter": True,
            "torch_dtype": "float32",
        },
        "fuse": {
            "type": "orttransformersoptimization",
            "model_type": "bert",
            "opt_level": 2,
            "optimization_options": {"enable_gelu": True},
            "float16": False,
        },
        "clean": {"type": "OnnxPeepholeOptimizer"},
        "fix": {
            "type": "DynamicToFixedShape",
            "dim_param": ["batch_size", "sequence_length"],
            "dim_value": [1, 64],
        },
        "cut": {
            "type": "GraphSurgeries",
            "surgeries": [{"surgeon": "ReplaceAttentionMaskValue"}, {"surgeon": "Other", "x": 1}],
        },
        "quant": {"type": "OnnxStaticQuantization", **onnx},
        "inc": {"type": "IncQuantization", **inc},
        "half": {"type": "OnnxFloatToFloat16", "keep_io_types": True, "op_block_list": ["Softmax"]},
        "tune": {
            "type": "OrtSessionParamsTuning",
            "io_bind": True,
            "opt_level_list": [1],
            "extra_session_config": {"a.b": "1"},
        },
        "binary": {
            "type": "EPContextBinaryGenerator",
            "provider_options": {"htp_arch": "73"},
            "embed_context": True,
        },
        "amd": {
            "type": "VitisAIAddMetaData",
            "config_meta_data_keys": ["architectures"],
            "weight_type": "uint8",
        },
        "ov": {
            "type": "OpenVINOConversion",
            "input_shapes": [[1, 64], [1, 64]],
            "compress_to_fp16": True,
            "extra_configs": {"a": 1},
        },
        "optimum": {
            "type": "OpenVINOOptimumConversion",
            "extra_args": {"device": "npu", "task": "text-classification"},
        },
        "io": {
            "type": "OpenVINOIoUpdate",
            "input_shapes": [[1, 64]],
            "static": True,
            "reuse_cache": True,
        },
        "nncf": {
            "type": "OpenVINOQuantization",
            "target_device": "npu",
            "preset": "MIXED",
            "transform_fn": "f",
            "max_drop": 0.02,
        },
        "wrap": {"type": "OpenVINOEncapsulation", "target_device": "npu", "ov_version": "2025.1"},
        "dlc": {
            "type": "SNPEConversion",
            "input_names": ["input_ids"],
            "input_shapes": [[1, 64]],
            "output_names": ["logits"],
        },
    }
    processing = {
        "input_cols": ["sentence1", "sentence2"],
        "max_length": 64,
        "padding": "max_length",
        "max_samples": 50,
    }
    rows = data_config(
        pre_process_data_config=processing,
        post_process_data_config={"type": "best"},
        dataloader_config={"batch_size": 4, "drop_last": True},
        user_script="nothing.py",
    )
    model = {
        "type": "HfModel",
        "model_path": "some/model",
        "task": "text-classification",
        "load_kwargs": {
            "attn_implementation": "eager",
            "revision": "main",
            "torch_dtype": "float32",
        },
        "io_config": {
            "input_names": ["input_ids"],
            "input_shapes": [[1, 64]],
            "input_types": ["int32"],
        },
    }
    return config(
        passes,
        input_model=model,
        data_configs=[rows, data_config("other")],
        evaluators={"scores": {"metrics": metrics}, "unused": {"metrics": []}},
        search_strategy={
            "execution_order": "joint",
            "sampler": "tpe",
            "seed": 7,
            "max_samples": 5,
            "max_time": 600,
        },
        packaging_config={"type": "Zipfile", "name": "packed"},
        azureml_client={"subscription_id": "s", "resource_group": "r", "workspace_name": "w"},
        cache_dir="cached",
        clean_cache=True,
        output_dir="models",
        log_severity_level=2,
        evaluate_input_model=False,
        host="here",
        **system("CPU", "QNN"),
    )
