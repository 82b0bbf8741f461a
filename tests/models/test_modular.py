"""Cross-encoders whose scores are made by modules of sentence-transformers behind the encoder."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import octobert
from octobert.core.errors import ModelError, RecipeError
from octobert.graph import parity
from octobert.graph.capture import capture
from octobert.models import heads
from octobert.models.checkpoint import inputs_of, load_torch
from octobert.models.source import resolve
from tests.support.checkpoints import make_checkpoint, pad_of, parity_feeds
from tests.support.pooling import reference, write_modules
from tests.support.runs import FAST

HEAD = "sequence-classification"
LINEAR = "torch.nn.modules.linear.Identity"
# Relative to the largest score: float32 beside float64, as in capture.
CLOSE = 5e-5


def modular(
    folder: Path, family: str = "bert", classes: int = 1, last: dict[str, Any] | None = None
) -> Path:
    """As `CrossEncoder(modules=[Transformer, Pooling, Dense, LayerNorm, Dense])` of sentence-transformers 6.2 saves it."""
    make_checkpoint(folder, family, "embedding")
    scores = {
        "in_features": 32,
        "out_features": classes,
        "activation_function": LINEAR,
        "module_output_name": "scores",
    }
    gelu = "torch.nn.modules.activation.GELU"
    modules = [
        ("Pooling", {"pooling_mode": "cls", "embedding_dimension": 32}),
        ("Dense", {"in_features": 32, "out_features": 32, "activation_function": gelu}),
        ("LayerNorm", {"dimension": 32}),
        ("Dense", {**scores, **(last or {})}),
    ]
    return write_modules(folder, modules, model_type="CrossEncoder")


@pytest.mark.parametrize("family", ["bert", "modernbert", "deberta-v2"])
@pytest.mark.parametrize("classes", [1, 3])
def test_scores_are_those_of_the_modules(tmp_path: Path, family: str, classes: int) -> None:
    source = resolve(modular(tmp_path / "model", family, classes))
    heads.check_class(source, HEAD)
    heads.check_head(source, HEAD)
    assert source.labels == tuple(f"LABEL_{i}" for i in range(classes))
    feeds = parity_feeds(pad_of(source.path))
    captured = capture.capture(source, HEAD, feeds)
    assert [value.name for value in captured.model.graph.outputs] == ["logits"]
    assert (captured.pooling, captured.sizes.layers) == (None, 2)
    encoder = load_torch(source.path, "feature-extraction")
    feeds = [parity.only(batch, captured.model) for batch in feeds]
    for batch, (logits,) in zip(feeds, parity.onnx_outputs(captured.model, feeds), strict=True):
        with torch.no_grad():
            tensors = {name: torch.from_numpy(batch[name]) for name in inputs_of(encoder)}
            states = encoder(**tensors).last_hidden_state.numpy()
        expected = reference(source.path, states, batch["attention_mask"])
        np.testing.assert_allclose(
            logits, expected, rtol=0, atol=CLOSE * max(1, np.abs(expected).max())
        )


@pytest.mark.parametrize(
    ("last", "removed"),
    [
        ({"module_output_name": None}, ""),
        ({"module_input_name": "token_embeddings"}, ""),
        ({"in_features": 16}, ""),
        ({}, "4_Dense/model.safetensors"),
        ({}, "4_Dense/config.json"),
    ],
)
def test_modules_that_make_no_scores(
    golden, tmp_path: Path, last: dict[str, Any], removed: str
) -> None:
    folder = modular(tmp_path / "model", last=last)
    if removed:
        (folder / removed).unlink()
    with golden.raises(ModelError):
        source = resolve(folder)
        heads.check_head(source, HEAD)
        load_torch(source.path, HEAD)


@pytest.mark.parametrize("kept", [2, 3, 4])
def test_modules_that_end_before_the_scores(golden, tmp_path: Path, kept: int) -> None:
    """After the pooling, after a Dense whose output is a vector, and after the norm."""
    folder = modular(tmp_path / "model")
    path = folder / "modules.json"
    path.write_text(json.dumps(json.loads(path.read_text())[:kept]))
    with golden.raises(ModelError):
        resolve(folder)


@pytest.mark.parametrize("classes", [2**16 + 1, 10**9, 2**63, 10**30])
def test_a_number_of_classes_is_no_size(golden, tmp_path: Path, classes: int) -> None:
    folder = modular(tmp_path / "model")
    path = folder / "4_Dense" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "out_features": classes}))
    with golden.raises(ModelError):
        resolve(folder)


@pytest.mark.parametrize("file", ["2_Dense/model.safetensors", "4_Dense/model.safetensors"])
def test_missing_weights_are_named_before_a_run(
    golden, pairs: Path, tmp_path: Path, file: str
) -> None:
    folder = modular(tmp_path / "model", classes=2)
    (folder / file).unlink()
    plain = {"model": str(folder), "task": "text-classification", "data": str(pairs)}
    with golden.raises(ModelError):
        octobert.dry_run(plain, tmp_path / "out")


def test_weights_of_modules_are_part_of_the_model(tmp_path: Path) -> None:
    folder = modular(tmp_path / "model")
    before = resolve(folder).digest
    shutil.copy(folder / "2_Dense" / "model.safetensors", folder / "4_Dense" / "model.safetensors")
    assert resolve(folder).digest != before


def test_scores_are_not_cut(tmp_path: Path) -> None:
    """As sentence-transformers, which reads `truncate_dim` for vectors alone."""
    folder = modular(tmp_path / "model", classes=3)
    path = folder / "config_sentence_transformers.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "truncate_dim": 2}))
    captured = capture.capture(resolve(folder), HEAD, parity_feeds(pad_of(folder)))
    (logits,) = parity.onnx_outputs(
        captured.model, [parity.only(parity_feeds(pad_of(folder))[0], captured.model)]
    )[0]
    assert logits.shape[-1] == 3


@pytest.mark.parametrize("kind", ["torch.nn.Linear", "os.system", "my_code.Score"])
def test_code_of_others_is_never_run(golden, tmp_path: Path, kind: str) -> None:
    folder = modular(tmp_path / "model")
    path = folder / "modules.json"
    entries = json.loads(path.read_text())
    entries[2]["type"] = kind
    path.write_text(json.dumps(entries))
    with golden.raises(ModelError):
        resolve(folder)


@pytest.mark.parametrize("key", ["finetune", "qat"])
def test_it_is_not_trained(golden, pairs: Path, tmp_path: Path, key: str) -> None:
    plain = {
        "model": str(modular(tmp_path / "model", classes=2)),
        "task": "text-classification",
        "data": str(pairs),
        key: {},
    }
    with golden.raises(RecipeError):
        octobert.dry_run(plain, tmp_path / "out")


def test_a_package_answers_as_the_model(pairs: Path, tmp_path: Path) -> None:
    """A package is that of any classifier: no module is beside its file."""
    folder = modular(tmp_path / "model", classes=2)
    report = octobert.quantize(
        model=folder,
        task="text-classification",
        data={"source": str(pairs), "calibrate": {"from": "train", "samples": 24}},
        out=tmp_path / "out",
        targets=["ort-cpu"],
        baselines=["torch-f32", "ort-f32"],
        benchmark=FAST,
    )
    # Classes are the argument of the largest score, in PyTorch and in the file.
    by_name = {figures.model: figures for figures in report.models}
    assert by_name["torch-f32"].scores == by_name["ort-f32"].scores
    package = tmp_path / "out" / "ort-cpu"
    assert not (package / "modules.json").exists()
    config = json.loads((package / "config.json").read_text())
    assert config["architectures"] == ["BertForSequenceClassification"]
    texts = [("he was in it", "the time"), ("not", "the same")]
    answers = octobert.load(package)(texts)
    assert [set(answer) for answer in answers] == [{"label", "score"}] * 2
