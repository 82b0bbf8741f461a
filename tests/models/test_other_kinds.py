"""Checkpoints that are something else than they are taken for: refused with what they are, and no weight is left out unsaid."""

from __future__ import annotations

import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from octobert.core import families, plugins
from octobert.core.errors import ModelError
from octobert.core.heads import HEADS
from octobert.graph import parity
from octobert.graph.capture import capture
from octobert.models import checkpoint, heads
from octobert.models.pooling import pooling_of
from octobert.models.source import resolve
from tests.support.checkpoints import make_checkpoint, parity_feeds, tiny_settings
from tests.support.pooling import write_modules

MEAN: tuple[str, dict[str, Any]] = ("Pooling", {"pooling_mode": "mean"})
PRETRAINED = ("PreTraining", "MaskedLM", "NextSentencePrediction")
TRAINED = ("SequenceClassification", "TokenClassification", "QuestionAnswering")
# Modules of libraries as their folders name them.
ST = "sentence_transformers"

EMBEDDING = HEADS["embedding"]


def modules(*kinds: str, path: str = "0_Module") -> dict[str, Any]:
    """`modules.json` of a folder in which no module is the folder itself."""
    return {
        "modules.json": [
            {"idx": i, "name": str(i), "path": path if i == 0 else f"{i}_Module", "type": kind}
            for i, kind in enumerate(kinds)
        ]
    }


@pytest.mark.parametrize(
    "files",
    [
        modules(f"{ST}.models.StaticEmbedding"),
        modules(f"{ST}.models.WordEmbeddings", f"{ST}.models.Pooling"),
        modules(f"{ST}.models.BoW"),
        modules(f"{ST}.base.modules.router.Router"),
        modules(f"{ST}.models.CLIPModel", path="0_CLIPModel"),
        modules(f"{ST}.models.Transformer", f"{ST}.models.Pooling", path="0_Transformer"),
        {"gliner_config.json": {"model_name": "microsoft/deberta-v3-small"}},
        {},
    ],
    ids=["static", "words", "bow", "router", "clip", "own-folder", "gliner", "nothing"],
)
def test_a_folder_without_a_config_is_named_by_what_it_has(
    golden, tmp_path: Path, files: dict[str, Any]
) -> None:
    for name, content in files.items():
        (tmp_path / name).write_text(json.dumps(content))
    with golden.raises(ModelError):
        resolve(tmp_path)


@pytest.mark.parametrize(
    ("config", "files"),
    [
        ({"architectures": ["HF_ColBERT"]}, {}),
        ({"model_type": "model2vec", "architectures": ["StaticModel"]}, {}),
        ({"model_type": "clip"}, {}),
        ({}, modules(f"{ST}.models.Transformer", "pylate.models.Dense.Dense", path="")),
        (
            {"architectures": ["BertForMaskedLM"]},
            modules(
                f"{ST}.sparse_encoder.models.MLMTransformer",
                f"{ST}.sparse_encoder.models.SpladePooling",
                path="",
            ),
        ),
        (
            {},
            modules(f"{ST}.models.Transformer", path="")
            | {"config_sentence_transformers.json": {"model_type": "MultiVectorEncoder"}},
        ),
        ({}, modules(f"{ST}.models.Transformer", f"{ST}.models.Asym", path="")),
    ],
    ids=["colbert", "model2vec", "clip", "pylate", "splade", "multi-vector", "asym"],
)
def test_other_kinds_make_no_embeddings(
    golden, tmp_path: Path, config: dict[str, Any], files: dict[str, Any]
) -> None:
    for name, content in ({"config.json": {"model_type": "bert"} | config} | files).items():
        (tmp_path / name).write_text(json.dumps(content))
    with golden.raises(ModelError):
        pooling_of(resolve(tmp_path).tokenizer_folder, EMBEDDING)


def test_late_interaction_is_captured_from_onnx_as_states(tmp_path: Path) -> None:
    """Token states behind a projection, from ONNX."""
    import torch
    import transformers

    folder = make_checkpoint(tmp_path / "model", "bert", "embedding")
    encoder = transformers.AutoModel.from_pretrained(folder, attn_implementation="eager").eval()

    class Projected(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.linear = encoder, torch.nn.Linear(32, 8, bias=False)

        def forward(self, input_ids, attention_mask, token_type_ids):
            return self.linear(self.encoder(input_ids, attention_mask, token_type_ids)[0])

    exported = tmp_path / "exported"
    exported.mkdir()
    for name in ("config.json", "tokenizer.json"):
        shutil.copy(folder / name, exported)
    names, ones = ["input_ids", "attention_mask", "token_type_ids"], torch.ones(2, 7).long()
    axes = {name: {0: "batch", 1: "sequence"} for name in (*names, "last_hidden_state")}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            Projected(),
            (ones, ones, ones),
            str(exported / "model.onnx"),
            input_names=names,
            output_names=["last_hidden_state"],
            dynamic_axes=axes,
            dynamo=False,
        )
    source = resolve(exported / "model.onnx")
    captured = capture.capture(source, "feature-extraction", parity_feeds())
    assert captured.parity.largest_difference <= parity.TOLERANCE
    assert captured.model.graph.outputs[0].shape[-1] == 8


@pytest.mark.parametrize("family", plugins.names("families"))
def test_names_of_heads_are_those_of_transformers(tmp_path: Path, family: str) -> None:
    """Of pre-training, left out; of a task, named unless modules.json says that the encoder is used without it."""
    import torch
    import transformers

    described = families.load(family)
    config = transformers.AutoConfig.for_model(described.model_types[0], **tiny_settings(family))
    stated = tmp_path / "stated"
    stated.mkdir()
    (stated / "modules.json").write_text("[]")
    embedding, tokens = HEADS["embedding"], HEADS["feature-extraction"]
    for kind in (*PRETRAINED, *TRAINED):
        try:
            with torch.device("meta"):
                model = getattr(transformers, f"AutoModelFor{kind}").from_config(config)
        except ValueError:
            assert kind in PRETRAINED or described.without_heads
            continue
        own = [n for n in model.state_dict() if not n.startswith(f"{model.base_model_prefix}.")]
        unused = heads.unused_weights(embedding, tmp_path, own)
        if kind in PRETRAINED:
            # An alias: the encoder alone, without a head.
            assert own or model.base_model_prefix == ""
            assert unused == []
        else:
            assert unused
        assert heads.unused_weights(embedding, stated, own) == []
        assert heads.unused_weights(tokens, tmp_path, own) == []


def changed(folder: Path, config: dict[str, Any], **weights: np.ndarray) -> Path:
    """A checkpoint with another config and more weights."""
    stated = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(stated | config))
    path = folder / "model.safetensors"
    arrays = load_file(path) | {name.replace("__", "."): array for name, array in weights.items()}
    save_file(arrays, path, metadata={"format": "pt"})
    return folder


def test_layers_that_the_config_leaves_out_are_no_smaller_model(golden, tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "model", "bert", "sequence-classification")
    changed(folder, {"num_hidden_layers": 1})
    with golden.raises(ModelError):
        checkpoint.load_torch(folder, "sequence-classification")
    with golden.raises(ModelError):
        checkpoint.load_base(folder, "token-classification", ("a", "b"))


def test_weights_of_no_layer_are_named(golden, tmp_path: Path) -> None:
    """As the projection of a late-interaction model whose config says nothing of it, with and without modules.json."""
    folder = make_checkpoint(tmp_path / "model", "bert", "embedding")
    changed(folder, {}, linear__weight=np.zeros((8, 32), np.float32))
    for head in ("embedding", "feature-extraction"):
        with golden.raises(ModelError):
            checkpoint.load_torch(folder, head)
    write_modules(folder, [MEAN])
    with golden.raises(ModelError):
        checkpoint.load_torch(folder, "embedding")
    # A new head takes the place of whatever followed the encoder.
    checkpoint.load_base(folder, "sequence-classification", ("a", "b"))


def test_what_is_left_out_of_an_encoder_on_purpose(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "model", "bert", "sequence-classification")
    buffers = {"bert__embeddings__position_ids": np.arange(64)[None]}
    changed(folder, {}, **buffers, cls__predictions__bias=np.zeros(120, np.float32))
    checkpoint.load_torch(folder, "sequence-classification")
    checkpoint.load_torch(folder, "feature-extraction")
    with pytest.raises(ModelError, match=r"weights that the model does not use \(got classifier"):
        checkpoint.load_torch(folder, "embedding")
    write_modules(folder, [MEAN])
    checkpoint.load_torch(folder, "embedding")


def test_a_language_model_that_is_read_as_an_encoder_is_noted(checkpoint, tmp_path: Path) -> None:
    source = resolve(checkpoint("bert", "masked-lm"))
    assert heads.masked_lm(source, HEADS["embedding"]) == "BertForMaskedLM"
    assert heads.masked_lm(source, HEADS["masked-lm"]) == ""
    assert heads.masked_lm(resolve(checkpoint("bert", "embedding")), HEADS["embedding"]) == ""
    stated = source.model_copy(update={"tokenizer_folder": write_modules(tmp_path, [MEAN])})
    assert heads.masked_lm(stated, HEADS["embedding"]) == ""
