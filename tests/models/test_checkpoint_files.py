"""Damaged checkpoints are refused with a sentence, before PyTorch opens them."""

from __future__ import annotations

import json
import random
import shutil
import struct
from pathlib import Path

import pytest

from octobert.core.errors import ModelError
from octobert.models.checkpoint import load_base, load_torch, weight_files

HEAD = "sequence-classification"


@pytest.fixture
def folder(checkpoint, tmp_path) -> Path:
    return shutil.copytree(checkpoint("bert", HEAD), tmp_path / "bert")


@pytest.mark.parametrize("kept", [0, 4, 8, 100, 0.5, 0.999])
def test_a_truncated_download(folder, kept: float) -> None:
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[: int(kept * len(whole)) if isinstance(kept, float) else kept])
    with pytest.raises(ModelError, match=r"model.safetensors: the weights are cut off or damaged .*download or copy it again"):
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
        (json.dumps({"weight_map": names}), r"weights are missing \(got no model-00002-of-00002.safetensors"),
        (json.dumps({"weight_map": [1]}), r"index.json cannot be read"),
        ("{", r"index.json is not JSON"),
    ):
        index.write_text(content)
        with pytest.raises(ModelError, match=message):
            weight_files(folder, allow_pickle=False)


def test_settings_that_transformers_refuses_are_a_sentence(folder) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "layer_norm_eps": "x"}))
    for load in (lambda: load_torch(folder, HEAD), lambda: load_base(folder, HEAD, ("a", "b"), dropout=False)):
        with pytest.raises(ModelError, match=r"transformers cannot load the checkpoint \(got .*layer_norm_eps"):
            load()
