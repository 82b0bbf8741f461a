"""Damaged checkpoints are refused with a sentence, before PyTorch opens them."""

from __future__ import annotations

import json
import os
import random
import shutil
import struct
from pathlib import Path

import pytest
import torch

from octobert.core.errors import ModelError
from octobert.models.checkpoint import load_base, load_torch
from octobert.models.sentence_transformers import modules_of
from octobert.models.source import resolve
from octobert.models.weights import weight_files

HEAD = "sequence-classification"


@pytest.fixture
def folder(checkpoint, tmp_path) -> Path:
    return shutil.copytree(checkpoint("bert", HEAD), tmp_path / "bert")


@pytest.mark.parametrize("kept", [0, 4, 8, 100, 0.5, 0.999])
def test_a_truncated_download(golden, folder, kept: float) -> None:
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[: int(kept * len(whole)) if isinstance(kept, float) else kept])
    with golden.raises(ModelError):
        weight_files(folder, allow_pickle=False)


def test_every_flip_in_a_header_is_a_sentence_or_a_model(folder) -> None:
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    end, generator = 8 + struct.unpack("<Q", whole[:8])[0], random.Random(0)
    refused = 0
    for _ in range(60):
        damaged = bytearray(whole)
        damaged[generator.randrange(end)] ^= 1 << generator.randrange(8)
        path.write_bytes(damaged)
        try:
            weight_files(folder, allow_pickle=False)
        except ModelError:
            refused += 1
    assert refused > 30


def test_a_checkpoint_with_a_part_missing(folder) -> None:
    (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
    index = folder / "model.safetensors.index.json"
    names = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    for content, message in (
        (
            json.dumps({"weight_map": names}),
            r"weights are missing \(got no model-00002-of-00002.safetensors",
        ),
        (json.dumps({"weight_map": [1]}), r"index.json cannot be read"),
        ("{", r"index.json is not JSON"),
    ):
        index.write_text(content)
        with pytest.raises(ModelError, match=message):
            weight_files(folder, allow_pickle=False)


def test_settings_that_transformers_refuses_are_a_sentence(golden, folder) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "layer_norm_eps": "x"}))
    for load in (
        lambda: load_torch(folder, HEAD),
        lambda: load_base(folder, HEAD, ("a", "b"), dropout=False),
    ):
        with golden.raises(ModelError):
            load()


def add_to_config(folder: Path, **more: object) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **more}))


@pytest.mark.parametrize(
    "key", ["attn_implementation", "_attn_implementation", "_experts_implementation"]
)
def test_a_config_does_not_choose_code_of_the_hub(folder, key: str) -> None:
    """transformers would download the repository and import it, whatever the caller asks for."""
    add_to_config(folder, **{key: "kernels-community/flash-attn2"})
    for model in (
        load_torch(folder, HEAD),
        load_torch(folder, HEAD, attention=None),
        load_base(folder, HEAD, ("a", "b")),
    ):
        assert model.config._attn_implementation in ("eager", "sdpa")
    assert load_torch(folder, HEAD).config._attn_implementation == "eager"


def test_a_config_with_code_of_its_own_is_refused(folder) -> None:
    (folder / "modeling_mine.py").write_text("raise SystemExit('the code ran')")
    add_to_config(folder, auto_map={"AutoModelForSequenceClassification": "modeling_mine.Mine"})
    for load in (lambda: load_torch(folder, HEAD), lambda: resolve(folder)):
        with pytest.raises(ModelError, match=r"needs its own Python code .*octobert never runs"):
            load()


@pytest.mark.parametrize(
    "method", ["gptq", "awq", "bitsandbytes", "compressed-tensors", "fp8", "torchao"]
)
def test_a_checkpoint_that_is_quantized_already_is_refused_at_once(
    golden, folder, method: str
) -> None:
    add_to_config(folder, quantization_config={"quant_method": method, "bits": 4})
    with golden.raises(ModelError):
        resolve(folder)


def test_an_adapter_is_refused(golden, folder) -> None:
    (folder / "adapter_config.json").write_text(
        json.dumps({"base_model_name_or_path": "somebody/else"})
    )
    with golden.raises(ModelError):
        load_torch(folder, HEAD)


class Enemy:
    """Pickled, it is a call."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (os.mkdir, ("the-pickle-ran",))


def test_pickles_are_opened_only_when_allowed_and_run_nothing_then(
    golden, folder, monkeypatch
) -> None:
    monkeypatch.chdir(folder)
    (folder / "model.safetensors").unlink()
    torch.save({"weight": Enemy()}, folder / "pytorch_model.bin")
    with golden.raises(ModelError):
        load_torch(folder, HEAD)
    # torch opens only tensors, and refuses this file.
    with pytest.raises(ModelError, match="or a whole Python object"):
        load_torch(folder, HEAD, allow_pickle=True)
    assert not (folder / "the-pickle-ran").exists()


@pytest.mark.parametrize(
    "stated", ["../other", "/etc", "a" * 300, "\ud800", ["1_Pooling"], "a\x00b"]
)
def test_modules_lie_in_the_folder(golden, folder, stated: object) -> None:
    (folder / "modules.json").write_text(
        json.dumps([{"type": "sentence_transformers.models.Pooling", "path": stated}])
    )
    with golden.raises(ModelError):
        modules_of(folder)
