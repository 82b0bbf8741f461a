"""A head is data: one entry of `HEADS` is all that capture, sessions and distillation need of it."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from octobert import targets
from octobert.config.training import Distill
from octobert.core.errors import ModelError
from octobert.core.families import family_of, model_types
from octobert.core.heads import HEADS, Head
from octobert.core.session import SessionOptions
from octobert.evaluation.torch_session import TorchSession
from octobert.graph import operators, parity
from octobert.graph.capture import capture
from octobert.models import heads
from octobert.models.source import ModelSource, resolve
from tests.support.checkpoints import batch, make_checkpoint, parity_feeds
from tests.support.pooling import write_modules

MASKED = Head("masked-language-model", "AutoModelForMaskedLM", ("logits",), "token-classes")


def test_a_new_head_is_one_entry(tmp_path: Path, monkeypatch) -> None:
    """Captured, equal to PyTorch, run by a target and by transformers, and followed by a student."""
    import torch

    from octobert.training.distillation import checkpoint_teacher

    monkeypatch.setitem(HEADS, MASKED.name, MASKED)
    source = resolve(make_checkpoint(tmp_path / "model", "bert", MASKED.name))
    assert heads.has_head(source, MASKED.name)
    captured = capture.capture(source, MASKED.name, parity_feeds())
    assert captured.parity.largest_difference <= parity.TOLERANCE
    assert tuple(str(value.name) for value in captured.model.graph.outputs) == MASKED.outputs
    operators.save(captured.model, tmp_path / "model.onnx")
    feeds = batch([9, 4])
    theirs = TorchSession(source.path, SessionOptions(), MASKED.name).run(feeds)["logits"]
    ours = (
        targets.load("ort-cpu")
        .open_session(tmp_path / "model.onnx", SessionOptions(threads=1))
        .run(feeds)["logits"]
    )
    real = feeds["attention_mask"].astype(bool)
    np.testing.assert_allclose(
        ours[real], theirs[real], rtol=0, atol=parity.TOLERANCE * np.abs(theirs).max()
    )
    teacher = checkpoint_teacher(source.path, MASKED.name, Distill())
    inputs = {name: torch.from_numpy(array) for name, array in feeds.items()}
    assert abs(float(teacher.loss(teacher.model(**inputs), inputs))) < 1e-6


def test_a_checkpoint_of_another_head(golden, checkpoint, tmp_path: Path) -> None:
    source = resolve(checkpoint("bert", "question-answering"))
    heads.check_head(source, "question-answering")
    with golden.raises(ModelError):
        heads.check_head(source, "embedding")
    assert not heads.has_head(source, "token-classification")
    with golden.raises(ModelError):
        heads.check_head(source, "token-classification")
    with golden.raises(ModelError):
        heads.head_of("question-answring")


@pytest.mark.parametrize(
    ("stated", "head", "fits"),
    [
        ("BertForPreTraining", "masked-lm", True),
        ("BertForMaskedLM", "next-sentence", True),
        ("BertForMaskedLM", "embedding", True),
        ("XLMRobertaModel", "embedding", True),
        ("HF_ColBERT", "embedding", False),
        ("BertForMultipleChoice", "embedding", False),
        ("BertForSequenceClassification", "feature-extraction", True),
        ("BertForSequenceClassification", "next-sentence", False),
        ("BertForMaskedLM", "sequence-classification", False),
        ("BertModel", "masked-lm", False),
    ],
)
def test_heads_of_pre_training_are_not_told_by_the_config(
    golden, checkpoint, stated: str, head: str, fits: bool
) -> None:
    """Its weights are: a checkpoint without those of a head is refused when it is opened."""
    source = resolve(checkpoint("bert"))
    source = source.model_copy(update={"config": {**source.config, "architectures": [stated]}})
    if fits:
        heads.check_head(source, head)
    else:
        with golden.raises(ModelError):
            heads.check_head(source, head)


def test_the_families_of_a_head_are_those_of_transformers() -> None:
    from transformers.models.auto import modeling_auto

    # transformers calls checkpoints of the type `new` gte.
    types = {*model_types()} - {"new"}
    for head, names in (
        ("sequence-classification", "SEQUENCE_CLASSIFICATION"),
        ("token-classification", "TOKEN_CLASSIFICATION"),
        ("question-answering", "QUESTION_ANSWERING"),
        ("masked-lm", "MASKED_LM"),
        ("next-sentence", "NEXT_SENTENCE_PREDICTION"),
    ):
        known = getattr(modeling_auto, f"MODEL_FOR_{names}_MAPPING_NAMES")
        ours = {
            name
            for name in types
            if (not HEADS[head].families or name in HEADS[head].families)
            and head not in family_of(name).without_heads
        }
        assert ours == types & {*known}, head


def test_modules_after_a_head_are_not_dropped(checkpoint, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(checkpoint("bert", "sequence-classification"), folder)
    write_modules(folder, [])
    heads.check_head(resolve(folder), "sequence-classification")
    write_modules(folder, [("Pooling", {"pooling_mode": "mean"})])
    message = "a sentence encoder, which has one vector for each text .* choose the task embedding"
    with pytest.raises(ModelError, match=message):
        heads.check_head(resolve(folder), "sequence-classification")
    # The encoder of a sentence-transformers model may have had a head before.
    heads.check_head(resolve(folder), "embedding")


def test_a_source_goes_to_another_process_and_comes_back(checkpoint) -> None:
    source = resolve(checkpoint("roberta"))
    assert ModelSource.model_validate_json(source.model_dump_json()) == source
    assert (source.kind, source.longest_input, source.tokenizer_folder) == (
        "checkpoint",
        64,
        source.path,
    )
    assert source.labels == ("different", "same")
    assert source.family.model_types[0] == "roberta"


def test_an_onnx_file_has_its_config_and_tokenizer_beside_it_or_above(
    captured, checkpoint, tmp_path: Path
) -> None:
    (tmp_path / "onnx").mkdir()
    operators.save(captured("bert").model, tmp_path / "onnx" / "model.onnx")
    bare = resolve(tmp_path / "onnx" / "model.onnx")
    assert (bare.kind, bare.config, bare.tokenizer_folder, bare.longest_input) == (
        "onnx",
        {"vocab_size": 120, "type_vocab_size": 2},
        tmp_path / "onnx",
        512,
    )
    (tmp_path / "config.json").write_bytes((checkpoint("bert") / "config.json").read_bytes())
    source = resolve(str(tmp_path / "onnx" / "model.onnx"))
    assert (source.tokenizer_folder, source.longest_input) == (tmp_path, 64)
    assert source.digest != bare.digest


def test_a_file_that_is_no_onnx_model(golden, tmp_path: Path) -> None:
    (tmp_path / "model.pt").write_text("x")
    with golden.raises(ModelError):
        resolve(tmp_path / "model.pt")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelError, match=r"not a checkpoint folder \(got no config\.json\)"):
        resolve(tmp_path / "empty")
