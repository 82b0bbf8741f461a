"""Folders for text-embeddings-inference, as its source reads them (`tests/support/tei.py`): the answers are those of octobert."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import octobert
from octobert.api import exports
from octobert.config.loading import parse
from octobert.core.files import file_digest
from octobert.core.model_config import Dense, Normalize, Pooling
from octobert.core.results import PACKAGE_FILE
from octobert.engine.executors import inline
from octobert.pipeline import runner
from tests.support.checkpoints import WORDS, make_checkpoint
from tests.support.pooling import write_modules
from tests.support.runs import brief, made_once, write_pairs
from tests.support.tei import Server

# More than a batch of the server, of different lengths; the last one is cut.
TEXTS = [
    "the",
    "THE of And",
    *(" ".join(WORDS[i : i + 3 * i]) for i in range(1, 9)),
    " ".join(WORDS),
]
PAIRS = [[first, second] for first, second in zip(TEXTS, reversed(TEXTS), strict=True)]
PROMPTS = {"query": "he had: ", "passage": "it was: "}
# Float32 in another order; rows of a batch have the codes of single rows.
TOLERANCE = 1e-5
POOLING = {"word_embedding_dimension": 32}


def _package(folder: Path, model: Path, task: dict[str, Any], **recipe: object) -> None:
    made = {
        "model": str(model),
        "task": task,
        "data": str(write_pairs(folder / "data")),
        "targets": ["ort-cpu"],
        "transforms": [],
        "corrections": [],
    }
    runner.run(brief(parse(made | recipe)), folder / "out", executor=inline.run)


def _pooled(folder: Path) -> None:
    """RoBERTa, whose positions depend on the padding id; mean, normalized; lower case, a prompt, padding on the left."""
    model = make_checkpoint(folder / "model", "roberta", "embedding")
    modules: list[Any] = [("Pooling", POOLING | {"pooling_mode": "mean"}), ("Normalize", None)]
    write_modules(model, modules, prompts=PROMPTS)
    (model / "sentence_bert_config.json").write_text(
        '{"max_seq_length": 24, "do_lower_case": true}'
    )
    tokenizer = json.loads((model / "tokenizer.json").read_text())
    tokenizer["normalizer"]["lowercase"] = False
    (model / "tokenizer.json").write_text(json.dumps(tokenizer))
    (model / "tokenizer_config.json").write_text('{"padding_side": "left"}')
    _package(folder, model, {"embedding": {"text": "sentence1"}})


def _vector(folder: Path) -> None:
    """DistilBERT, whose sizes have other names; a pooling and a module that the server does not know, and no token states."""
    model = make_checkpoint(folder / "model", "distilbert", "embedding")
    layer = {
        "in_features": 32,
        "out_features": 12,
        "bias": True,
        "activation_function": "torch.nn.modules.activation.Tanh",
    }
    modules: list[Any] = [("Pooling", POOLING | {"pooling_mode": "max"}), ("Dense", layer)]
    write_modules(model, modules, prompts=PROMPTS)
    _package(folder, model, {"embedding": {"text": "sentence1"}}, token_states=False)


def _pairs(folder: Path) -> None:
    """Two classes without names, which `config.json` does not state."""
    labels = ("LABEL_0", "LABEL_1")
    model = make_checkpoint(folder / "model", "bert", "sequence-classification", labels=labels)
    assert "id2label" not in json.loads((model / "config.json").read_text())
    task = {"text-classification": {"text": ["sentence1", "sentence2"], "max_length": 20}}
    _package(folder, model, task)


def _reranker(folder: Path) -> None:
    model = make_checkpoint(
        folder / "model", "roberta", "sequence-classification", labels=("LABEL_0",)
    )
    _package(folder, model, {"text-classification": {"text": ["sentence1", "sentence2"]}})


MADE = {"pooled": _pooled, "vector": _vector, "pairs": _pairs, "reranker": _reranker}


@pytest.fixture
def package(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """`package(kind)`, a key of `MADE`. Not to be written into."""
    return lambda kind: made_once(tmp_path_factory, f"tei-{kind}", MADE[kind]) / "out" / "ort-cpu"


def answers(package: Path, key: str, inputs: Any, **options: Any) -> np.ndarray:
    with octobert.load(package) as model:
        return np.array([answer[key] for answer in model(inputs, **options)])


@pytest.mark.parametrize("kind", ["pooled", "vector"])
def test_its_vectors_are_those_of_the_package(kind: str, package: Any, tmp_path: Path) -> None:
    source = package(kind)
    exported = octobert.export(source, "tei", tmp_path / "model")
    server = Server(exported.folder)
    normalized = kind == "pooled"
    for prompt, before in (None, ""), *PROMPTS.items():
        given = [before + text for text in TEXTS]
        right = answers(source, "embedding", given)
        assert right.shape == (len(TEXTS), 32 if normalized else 12)
        ours = server.embed(TEXTS, normalize=normalized, prompt_name=prompt)
        np.testing.assert_allclose(ours, right, atol=TOLERANCE)
    assert ("normalize=False" in exported.snippet) is not normalized
    assert all(f'prompt_name="{name}"' in exported.snippet for name in PROMPTS)
    outputs = [value.name for value in server.session.get_outputs()]
    assert outputs == ["last_hidden_state" if normalized else "sentence_embedding"]
    if normalized:
        assert (server.pool, server.length, server.pad) == ("mean", 24, 1)
        assert server.embed_all("the of").shape == (4, 32)


def test_its_vectors_are_those_of_a_model_without_modules(
    embedding_package: Path, tmp_path: Path
) -> None:
    server = Server(octobert.export(embedding_package, "tei", tmp_path / "model").folder)
    right = answers(embedding_package, "embedding", TEXTS)
    np.testing.assert_allclose(server.embed(TEXTS, normalize=False), right, atol=TOLERANCE)


def test_its_scores_are_those_of_the_package(package: Any, tmp_path: Path) -> None:
    source = package("pairs")
    server = Server(octobert.export(source, "tei", tmp_path / "pairs").folder)
    assert (server.kind, server.length) == ("classifier", 20)
    best = [max(found.values()) for found in server.predict(PAIRS)]
    np.testing.assert_allclose(best, answers(source, "score", PAIRS), atol=TOLERANCE)
    labels = [max(found, key=found.__getitem__) for found in server.predict(PAIRS)]
    own = answers(source, "label", PAIRS)
    assert [label.removeprefix("LABEL_") for label in labels] == [
        str(label).removeprefix("LABEL_") for label in own
    ]


def test_its_ranks_are_those_of_the_package(package: Any, tmp_path: Path) -> None:
    source = package("reranker")
    exported = octobert.export(source, "tei", tmp_path / "model")
    server = Server(exported.folder)
    right = answers(source, "score", [(TEXTS[-1], text) for text in TEXTS])
    raw = "raw_scores=True" in exported.snippet
    ours = server.rerank(TEXTS[-1], TEXTS, raw_scores=raw)
    np.testing.assert_allclose(ours, right, atol=TOLERANCE)


@pytest.mark.parametrize(
    ("pooling", "pools"),
    [
        (Pooling(), True),
        (Pooling(modes=("cls",), steps=(Normalize(),)), True),
        (Pooling(modes=("lasttoken",)), True),
        (Pooling(modes=("max",)), False),
        (Pooling(modes=("mean", "cls")), False),
        (Pooling(truncate_dim=8), False),
        (Pooling(steps=(Dense(folder="2_Dense", in_features=32, out_features=8),)), False),
        (None, False),
    ],
)
def test_it_pools_only_what_it_pools_as_the_model_does(
    pooling: Pooling | None, pools: bool
) -> None:
    assert exports._pools(pooling) is pools


def test_what_it_cannot_serve_is_said(golden, package: Any, finished: Any, tmp_path: Path) -> None:
    source = shutil.copytree(package("pairs"), tmp_path / "package")
    for name, more in (
        ("tokenizer_config.json", {"truncation_side": "left"}),
        ("tokenizer_config.json", {"model_input_names": ["input_ids", "attention_mask"]}),
        (PACKAGE_FILE, {"target": "ort-cuda"}),
    ):
        before, manifest = (source / name).read_text(), (source / PACKAGE_FILE).read_text()
        (source / name).write_text(json.dumps(json.loads(before) | more))
        if name != PACKAGE_FILE:
            stated = json.loads(manifest)
            stated["files"][name] = file_digest(source / name)
            (source / PACKAGE_FILE).write_text(json.dumps(stated))
        with golden.raises(octobert.ModelError):
            octobert.export(source, "tei", tmp_path / "model")
        (source / PACKAGE_FILE).write_text(manifest)
        (source / name).write_text(before)
    assert not (tmp_path / "model").exists()
