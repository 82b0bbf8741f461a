"""Finished packages of every head, each beside that of OpenVINO, from tiny checkpoints and foreign ONNX files."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx_ir as ir

from octobert.config.loading import parse
from octobert.core.session import VECTOR
from octobert.engine.executors import inline
from octobert.graph.capture.capture import capture
from octobert.models.source import resolve
from octobert.pipeline import runner
from tests.support.checkpoints import WORDS, make_checkpoint, parity_feeds
from tests.support.pooling import write_modules
from tests.support.runs import brief, squad_file, write_pairs

WIDTH, OWN_WIDTH = 32, 24


def quantized(
    folder: Path, model: Path, task: Any, data: Path | None = None, **recipe: object
) -> Path:
    """The package of ort-cpu of a model, under `folder/out`, beside that of openvino-cpu."""
    made = {
        "model": str(model),
        "task": task,
        "data": str(data or write_pairs(folder / "data")),
        "targets": ["ort-cpu", "openvino-cpu"],
        "transforms": [],
        "corrections": [],
    }
    runner.run(brief(parse(made | recipe)), folder / "out", executor=inline.run)
    return folder / "out" / "ort-cpu"


def own_vector(folder: Path, modules: list[Any]) -> Path:
    """A foreign ONNX file with token states, a pooler and its own vector, and nothing beside it that says how it is made."""
    checkpoint = make_checkpoint(folder / "checkpoint", "bert", "embedding")
    write_modules(checkpoint, modules)
    graph = capture(resolve(checkpoint), "embedding", parity_feeds()).model
    (vector,) = [value for value in graph.graph.outputs if value.name == VECTOR]
    pooler = ir.node("Tanh", [vector], name="pooler")
    pooler.outputs[0].name, pooler.outputs[0].type = "pooler_output", vector.type
    graph.graph.append(pooler)
    states, vector = graph.graph.outputs
    graph.graph.outputs[:] = [states, pooler.outputs[0], vector]
    place = folder / "model"
    place.mkdir()
    ir.save(graph, place / "model.onnx")
    for name in ("config.json", "tokenizer.json"):
        shutil.copyfile(checkpoint / name, place / name)
    return place / "model.onnx"


def dense(width: int, out: int) -> tuple[str, dict[str, Any]]:
    function = "torch.nn.modules.activation.Tanh"
    return "Dense", {"in_features": width, "out_features": out, "activation_function": function}


def pooling(mode: str | list[str], **more: object) -> tuple[str, dict[str, Any]]:
    return "Pooling", {"word_embedding_dimension": WIDTH, "pooling_mode": mode, **more}


OWN = {
    "own vector": [pooling("mean"), dense(WIDTH, 48), dense(48, OWN_WIDTH), ("Normalize", None)],
    "own vector, first token": [pooling("cls"), ("Normalize", None)],
}
# Modules behind the encoder, and what else stands beside them.
POOLED: dict[str, tuple[list[Any], dict[str, Any]]] = {
    "mean": ([pooling("mean"), ("Normalize", None)], {}),
    "not normalized": ([pooling("mean")], {}),
    "poolings": ([pooling(["max", "mean", "cls"]), ("Normalize", None)], {}),
    "weighted": ([pooling("weightedmean")], {}),
    "last token": ([pooling("lasttoken"), ("Normalize", None)], {}),
    "truncated": ([pooling("mean"), ("Normalize", None)], {"truncate_dim": 12}),
    "modules": (
        [pooling("mean"), dense(WIDTH, 16), ("LayerNorm", {"dimension": 16}), ("Normalize", None)],
        {"prompts": {"query": "ask: ", "passage": "tell: "}, "default_prompt_name": "passage"},
    ),
    "no token states": ([pooling("cls"), ("Normalize", None)], {"prompts": {"query": "ask: "}}),
    "prompt left out": ([pooling("mean", include_prompt=False), ("Normalize", None)], {}),
}
PAIR = ["sentence1", "sentence2"]
# Head, labels, what config.json states, task.
HEADED: dict[str, tuple[str, tuple[str, ...], dict[str, Any], Any]] = {
    "single": (
        "sequence-classification",
        ("bad", "good"),
        {},
        {"text-classification": {"text": "sentence1"}},
    ),
    "pairs": (
        "sequence-classification",
        ("bad", "good"),
        {},
        {"text-classification": {"text": PAIR}},
    ),
    "several labels": (
        "sequence-classification",
        ("0", "1"),
        {},
        {
            "text-classification": {
                "text": "sentence1",
                "problem": "multi-label",
                "labels": ["0", "1"],
            }
        },
    ),
    "regression": (
        "sequence-classification",
        ("score",),
        {"problem_type": "regression"},
        {"text-classification": {"text": "sentence1"}},
    ),
    "reranker": (
        "sequence-classification",
        ("LABEL_0",),
        {},
        {"text-classification": {"text": PAIR}},
    ),
    "tags": (
        "token-classification",
        (),
        {},
        {"token-classification": {"labels": ["O", "B-X"]}},
    ),
    "answers": ("question-answering", ("a", "b"), {}, "squad"),
    "masks": ("masked-lm", (), {}, {"fill-mask": {"text": "sentence1"}}),
    "states": ("feature-extraction", (), {}, {"feature-extraction": {"text": "sentence1"}}),
    "next": ("next-sentence", (), {}, {"next-sentence": {"text": PAIR}}),
}


def _embedding(folder: Path, kind: str) -> None:
    model = make_checkpoint(folder / "model", "bert", "embedding")
    modules, about = POOLED[kind]
    write_modules(model, modules, **about)
    states = kind != "no token states"
    quantized(folder, model, {"embedding": {"text": "sentence1"}}, token_states=states)


def _headed(folder: Path, kind: str) -> None:
    head, labels, stated, task = HEADED[kind]
    model = make_checkpoint(
        folder / "model", "bert", head, **({"labels": labels} if labels else {})
    )
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | stated))
    data = None
    if kind == "answers":
        data = folder / "data"
        data.mkdir()
        squad_file(data / "train-v1.1.json", 20, 0)
        squad_file(data / "dev-v1.1.json", 10, 100)
    elif kind == "tags":
        data = folder / "data"
        data.mkdir()
        for split, words in (("train", WORDS), ("validation", WORDS[::-1])):
            rows = [
                {"tokens": list(words[i : i + 4]), "tags": ["O", "B-X", "B-X", "O"]}
                for i in range(len(words) - 4)
            ]
            (data / f"{split}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    quantized(folder, model, task, data)


def _sparse(folder: Path, mode: str) -> None:
    model = make_checkpoint(folder / "model", "bert", "masked-lm")
    library = "sentence_transformers.sparse_encoder.models"
    entries = {"": "MLMTransformer", "1_SpladePooling": "SpladePooling"}
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"{library}.{name}"}
        for i, (path, name) in enumerate(entries.items())
    ]
    for name, content in (
        ("modules.json", modules),
        ("1_SpladePooling/config.json", {"pooling_strategy": mode}),
        ("config_sentence_transformers.json", {"model_type": "SparseEncoder"}),
    ):
        (model / name).parent.mkdir(exist_ok=True)
        (model / name).write_text(json.dumps(content))
    quantized(folder, model, {"sparse-embedding": {"text": "sentence1"}})


def _late(folder: Path) -> None:
    model = make_checkpoint(folder / "model", "bert", "late-interaction")
    quantized(folder, model, {"late-interaction": {"text": "sentence1"}})


MAKERS: dict[str, Callable[[Path], object]] = {
    **{
        kind: lambda folder, kind=kind: quantized(
            folder, own_vector(folder, OWN[kind]), {"embedding": {"text": "sentence1"}}
        )
        for kind in OWN
    },
    **{kind: lambda folder, kind=kind: _embedding(folder, kind) for kind in POOLED},
    **{kind: lambda folder, kind=kind: _headed(folder, kind) for kind in HEADED},
    "sparse": lambda folder: _sparse(folder, "max"),
    "sparse, sum": lambda folder: _sparse(folder, "sum"),
    "late": _late,
}
