"""Weights as people have them: in wrappers, beside adapters, not finite, of another model, or something else altogether."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
import torch
from safetensors.torch import load_file, save_file

from octobert.core.errors import ModelError
from octobert.graph import operators
from octobert.graph.capture import capture
from octobert.models import weights
from octobert.models.checkpoint import load_base, load_torch
from octobert.models.source import resolve
from tests.support.checkpoints import make_checkpoint, parity_feeds

HEAD = "sequence-classification"
FAMILIES = ("bert", "roberta", "distilbert", "albert", "modernbert", "mpnet", "deberta-v2")
# Attention in another implementation.
CLOSE = 1e-5
Weights = dict[str, torch.Tensor]


@pytest.fixture
def folder(checkpoint, tmp_path) -> Path:
    return shutil.copytree(checkpoint("bert", HEAD), tmp_path / "bert")


def rewrite(folder: Path, change: Callable[[Weights], Weights]) -> None:
    path = folder / "model.safetensors"
    changed = change(load_file(path))
    save_file({name: array.contiguous() for name, array in changed.items()}, path)


def renamed(folder: Path, name: Callable[[str], str]) -> None:
    rewrite(folder, lambda whole: {name(key): array for key, array in whole.items()})


def logits(model: torch.nn.Module) -> np.ndarray:
    ids = torch.arange(5, 17).reshape(2, 6)
    with torch.no_grad():
        return model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits.numpy()


WRAPPED: dict[str, tuple[Callable[[str], str], tuple[str, ...]]] = {
    "torch.compile": (lambda key: f"_orig_mod.{key}", ("_orig_mod.",)),
    "a distributed training": (lambda key: f"module.{key}", ("module.",)),
    "both": (lambda key: f"module._orig_mod.{key}", ("_orig_mod.", "module.")),
    "both, the other way round": (lambda key: f"_orig_mod.module.{key}", ("_orig_mod.", "module.")),
    "somebody's module": (lambda key: f"net.text.model.{key}", ("net.text.model.",)),
    "a part compiled": (
        lambda key: key.replace(".layer.0.", ".layer.0._orig_mod."),
        ("_orig_mod.",),
    ),
    "FSDP with checkpointed layers": (
        lambda key: (
            "_fsdp_wrapped_module."
            + key.replace(".layer.", "._fsdp_wrapped_module.layer.").replace(
                ".output.", "._checkpoint_wrapped_module.output."
            )
        ),
        ("_fsdp_wrapped_module.", "_checkpoint_wrapped_module."),
    ),
}


@pytest.mark.parametrize("kind", WRAPPED)
def test_wrapped_names_are_read_and_said(folder, kind) -> None:
    name, parts = WRAPPED[kind]
    before = logits(load_torch(folder, HEAD))
    renamed(folder, name)
    assert (
        weights.wrappers(load_file(folder / "model.safetensors"), resolve(folder).family) == parts
    )
    for model in (load_torch(folder, HEAD), load_base(folder, HEAD, ("a", "b")).eval()):
        np.testing.assert_allclose(logits(model), before, rtol=0, atol=CLOSE)


@pytest.mark.parametrize("family", FAMILIES)
def test_wrapped_names_of_families(tmp_path, family) -> None:
    folder = make_checkpoint(tmp_path / "model", family, HEAD)
    before = logits(load_torch(folder, HEAD))
    renamed(folder, lambda key: f"module.{key}")
    np.testing.assert_array_equal(logits(load_torch(folder, HEAD)), before)


def test_a_wrapped_encoder_without_a_head(checkpoint, tmp_path) -> None:
    """All names then share the base model's prefix, too."""
    folder = shutil.copytree(checkpoint("bert", "embedding"), tmp_path / "bert")
    before = load_torch(folder, "embedding").state_dict()
    renamed(folder, lambda key: f"encoder.0.auto_model.{key.removeprefix('bert.')}")
    after = load_torch(folder, "embedding").state_dict()
    assert all(torch.equal(after[name], before[name]) for name in before)


def test_a_wrapped_pickle(folder) -> None:
    before = logits(load_torch(folder, HEAD))
    whole = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(
        {f"module.{key}": array for key, array in whole.items()}, folder / "pytorch_model.bin"
    )
    np.testing.assert_array_equal(logits(load_torch(folder, HEAD, allow_pickle=True)), before)


def adapted(whole: Weights) -> Weights:
    names = {key: key.replace("query.weight", "query.base_layer.weight") for key in whole}
    lora = {"bert.encoder.layer.0.attention.self.query.lora_A.default.weight": torch.ones(2, 32)}
    return {names[key]: array for key, array in whole.items()} | lora


def not_finite(whole: Weights) -> Weights:
    name = "bert.encoder.layer.1.output.dense.weight"
    whole[name][0, :2] = torch.tensor([float("nan"), float("inf")])
    return whole


CHANGES: dict[str, Callable[[Weights], Weights]] = {
    "an adapter": adapted,
    "not finite": not_finite,
    "other names": lambda whole: {key.replace("bert.", "trunk."): a for key, a in whole.items()},
    "another head": lambda whole: {
        key.replace("classifier", "score"): a for key, a in whole.items()
    },
    "no head": lambda whole: {key: a for key, a in whole.items() if "classifier" not in key},
    "fewer layers": lambda whole: {key: a for key, a in whole.items() if "layer.1" not in key},
    "nothing": lambda whole: {},
}


@pytest.mark.parametrize("kind", CHANGES)
def test_what_the_weights_are_is_named(golden, folder, kind) -> None:
    rewrite(folder, CHANGES[kind])
    with golden.raises(ModelError):
        load_torch(folder, HEAD)


@pytest.mark.parametrize("kind", ["an adapter", "not finite", "other names", "nothing"])
def test_nothing_is_trained_on_them(folder, kind) -> None:
    rewrite(folder, CHANGES[kind])
    with pytest.raises(
        ModelError, match=r"adapter|not finite|under the names|not those of the model"
    ):
        load_base(folder, HEAD, ("a", "b"))


STATED: dict[str, Mapping[str, object]] = {
    "labels": {"id2label": {"0": "a", "1": "b", "2": "c"}, "label2id": {"a": 0, "b": 1, "c": 2}},
    "vocabulary": {"vocab_size": 2**26},
    "positions": {"max_position_embeddings": 2**24},
    "width": {"intermediate_size": 2**20},
}


@pytest.mark.parametrize("kind", STATED)
def test_a_config_of_another_model(golden, folder, kind) -> None:
    """Before memory is taken for what it states: here up to 2,048 GiB."""
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **STATED[kind]}))
    with golden.raises(ModelError):
        load_torch(folder, HEAD)
    if kind != "labels":
        with pytest.raises(ModelError, match="not those of the model that config"):
            load_base(folder, HEAD, ("a", "b"))


OTHERS: dict[str, dict[str, str]] = {
    "peft": {"adapter_config.json": '{"task_type": "SEQ_CLS"}', "adapter_model.safetensors": ""},
    "deepspeed": {"zero_to_fp32.py": "", "global_step5/mp_rank_00_model_states.pt": ""},
    "fsdp": {"pytorch_model_fsdp_0/__0_0.distcp": ""},
    "trainer": {"checkpoint-500/config.json": "{}", "trainer_state.json": "{}"},
    "tensorflow 1": {"bert_model.ckpt.index": "", "bert_config.json": "{}"},
    "tensorflow": {"tf_model.h5": ""},
    "flax": {"flax_model.msgpack": ""},
    "lightning": {"epoch=3.ckpt": ""},
    "llama.cpp": {"model-q8_0.gguf": ""},
    "torch": {"best.pt": ""},
    "safetensors": {"model.fp16.safetensors": ""},
    "onnx": {"onnx/model.onnx": ""},
    "several": {"bert/config.json": "{}"},
    "nothing": {"notes.txt": ""},
}


@pytest.mark.parametrize("with_config", [False, True], ids=["no config", "config"])
@pytest.mark.parametrize("kind", OTHERS)
def test_another_kind_of_folder(golden, folder, kind, with_config) -> None:
    (folder / "model.safetensors").unlink()
    if not with_config:
        (folder / "config.json").unlink()
    for name, text in OTHERS[kind].items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    with golden.raises(ModelError):
        load_torch(resolve(folder).path, HEAD)


def whole_object(folder: Path) -> None:
    torch.save(load_torch(folder, HEAD), folder / "pytorch_model.bin")


def training_state(folder: Path) -> None:
    state = load_file(folder / "model.safetensors")
    torch.save({"epoch": 3, "state_dict": state}, folder / "pytorch_model.bin")


@pytest.mark.parametrize("write", [whole_object, training_state])
def test_a_pickle_of_more_than_weights(golden, folder, write) -> None:
    write(folder)
    (folder / "model.safetensors").unlink()
    with golden.raises(ModelError):
        load_torch(folder, HEAD, allow_pickle=True)


@pytest.mark.parametrize(
    "name", ["model.safetensors", "config.json", "tokenizer.json", "model.onnx"]
)
def test_a_pointer_of_git_lfs(golden, folder, name) -> None:
    """`git clone` without Git LFS leaves them in place of large files."""
    path = folder / name
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 9\n")
    with golden.raises(ModelError):
        source = resolve(path if name == "model.onnx" else folder)
        capture.capture(source, HEAD, parity_feeds())
        weights.weight_files(folder, allow_pickle=False)


@pytest.mark.parametrize(("value", "count"), [(np.nan, 1), (np.inf, 3)])
def test_an_onnx_file_with_such_weights_is_no_bug_of_octobert(
    golden, checkpoint, tmp_path, value, count
) -> None:
    captured = capture.capture(resolve(checkpoint("bert", HEAD)), HEAD, parity_feeds()).model
    name = max(
        (v for v in captured.graph.initializers.values() if len(v.shape or ()) == 2),
        key=lambda v: (v.const_value is not None, str(v.name)),
    )
    array = np.array(operators.const_array(name))
    array.reshape(-1)[:count] = value
    name.const_value = ir.tensor(array, name=name.name)
    operators.save(captured, tmp_path / "model.onnx")
    shutil.copy(checkpoint("bert", HEAD) / "config.json", tmp_path)
    with golden.raises(ModelError):
        capture.capture(resolve(tmp_path / "model.onnx"), HEAD, parity_feeds())
