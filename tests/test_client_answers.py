"""An export answers what its package answers: every client, every head, checkpoints and ONNX files that make their own vector."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
from tokenizers import Tokenizer

import octobert
from octobert.api import client_files, clients
from octobert.config.loading import parse
from octobert.core.files import file_digest
from octobert.core.results import PACKAGE_FILE
from octobert.core.session import VECTOR
from octobert.engine.executors import inline
from octobert.graph.capture.capture import capture
from octobert.models.source import resolve
from octobert.pipeline import runner
from tests.support.checkpoints import (
    WORDS,
    make_byte_level_tokenizer,
    make_checkpoint,
    make_tokenizer,
    parity_feeds,
)
from tests.support.pooling import reference, write_modules
from tests.support.runs import brief, made_once, squad_file, write_pairs

WIDTH, OWN_WIDTH = 32, 24
TEXTS = ("the of and", "THEY had This", " ".join(WORDS), " ".join(WORDS * 3))


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


def slow(kind: str) -> Any:
    """A case that takes a run of its own."""
    return pytest.param(kind, marks=pytest.mark.slow)


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


@pytest.fixture
def package(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """`package(kind)`, a key of `MAKERS`, for ort-cpu; that for openvino-cpu lies beside it. Not to be written into."""
    return lambda kind: (
        made_once(tmp_path_factory, f"answers-{kind}", MAKERS[kind]) / "out" / "ort-cpu"
    )


def as_sentence_transformers(folder: Path) -> np.ndarray:
    """What sentence-transformers computes of the texts, with NumPy alone: the first output, pooled as the modules say."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_padding()
    encoded = tokenizer.encode_batch(list(TEXTS))
    session = ort.InferenceSession(folder / "onnx" / "model.onnx")
    feeds = {
        "input_ids": [each.ids for each in encoded],
        "attention_mask": [each.attention_mask for each in encoded],
        "token_type_ids": [each.type_ids for each in encoded],
    }
    given = {value.name: np.array(feeds[value.name]) for value in session.get_inputs()}
    states = session.run(None, given)[0]
    mask = given["attention_mask"] if states.shape[1] > 1 else np.ones((len(TEXTS), 1))
    return reference(folder, states, mask)


@pytest.mark.parametrize("kind", [*OWN, slow("modules"), slow("poolings"), slow("truncated")])
def test_sentence_transformers_gets_the_vectors_of_the_package(
    kind: str, package: Any, tmp_path: Path
) -> None:
    source = package(kind)
    # Prompts are those of the caller here.
    asked = [{"text": text, "prompt": ""} for text in TEXTS] if kind == "modules" else list(TEXTS)
    with octobert.load(source) as model:
        right = np.array([answer["embedding"] for answer in model(asked)])
    found = as_sentence_transformers(
        octobert.export(source, "sentence-transformers", tmp_path / "model").folder
    )
    assert found.shape == right.shape
    np.testing.assert_allclose(found, right, atol=1e-5)


@pytest.mark.parametrize("kind", [*OWN, *(slow(kind) for kind in MAKERS if kind not in OWN)])
def test_every_export_answers_what_the_package_answers(
    kind: str, package: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever can be exported was compared; and what is refused is refused for a reason of its client.

    Clients whose rows say the same get the same folder, and those without a file for the IR get that of ort-cpu.
    """
    unnormalized = kind in ("not normalized", "weighted", "truncated")
    own = clients.CLIENTS["openvino-genai"].replaced(writes=None)
    # `make test-clients` converts a tokenizer.
    monkeypatch.setitem(clients.CLIENTS, "openvino-genai", own)
    for target in ("ort-cpu", "openvino-cpu"):
        source, written = package(kind).with_name(target), []
        for name, client in clients.CLIENTS.items():
            row = client.replaced(kinds=(), install=())
            if row in written or (target == "openvino-cpu" and not client.ir):
                continue
            try:
                exported = octobert.export(source, name, tmp_path / f"{target}-{name}")
            except octobert.ModelError as error:
                assert not (tmp_path / f"{target}-{name}").exists()
                if error.what.endswith("would make other answers than the package"):
                    assert (unnormalized and client.normalizes) or (kind, name) == (
                        "sparse, sum",
                        "fastembed",
                    )
            else:
                assert not exported.unchecked
                written.append(row)


def changed(source: Path, folder: Path, name: str, **content: Any) -> Path:
    """A package one file of which states something else, and whose manifest knows it."""
    shutil.copytree(source, folder)
    stated = json.loads((folder / name).read_text()) if (folder / name).is_file() else {}
    (folder / name).write_text(json.dumps(stated | content))
    manifest = json.loads((folder / PACKAGE_FILE).read_text())
    manifest["files"][name] = file_digest(folder / name)
    manifest["sizes"][name] = (folder / name).stat().st_size
    (folder / PACKAGE_FILE).write_text(json.dumps(manifest))
    return folder


OTHER = {
    "another pooling": ("1_Pooling/config.json", {"pooling_mode": "max"}, "sentence-transformers"),
    "another pooling of a server": ("1_Pooling/config.json", {"pooling_mode": "max"}, "tei"),
    "shorter vectors": ("config_sentence_transformers.json", {"truncate_dim": 8}, "langchain"),
    "shorter texts": ("tokenizer_config.json", {"model_max_length": 7}, "optimum"),
}


@pytest.mark.parametrize("case", OTHER)
def test_a_folder_that_would_answer_otherwise_is_refused(
    case: str, package: Any, tmp_path: Path
) -> None:
    name, content, client = OTHER[case]
    what = "tokens of 3" if case == "shorter texts" else "sentence_embedding of 4"
    said = f"{client} would make other answers than the package .got other {what} of 4 texts, by up"
    source = changed(package("mean"), tmp_path / "package", name, **content)
    with pytest.raises(octobert.ModelError, match=said):
        octobert.export(source, client, tmp_path / "model")
    assert [path.name for path in tmp_path.iterdir()] == ["package"]


def test_padding_and_classes_are_not_those_of_the_model_that_was_quantized(
    package: Any, tmp_path: Path
) -> None:
    other = {"padding_side": "left", "tokenizer_class": "BertTokenizer"}
    source = changed(package("mean"), tmp_path / "package", "tokenizer_config.json", **other)
    folder = octobert.export(source, "optimum", tmp_path / "model").folder
    stated = json.loads((folder / "tokenizer_config.json").read_text())
    assert (stated["padding_side"], stated["tokenizer_class"]) == (
        "right",
        "PreTrainedTokenizerFast",
    )
    # transformers.js takes segment ids by the class.
    folder = octobert.export(source, "transformers.js", tmp_path / "other").folder
    stated = json.loads((folder / "tokenizer_config.json").read_text())
    assert (stated["padding_side"], stated["tokenizer_class"]) == ("right", "BertTokenizer")


@pytest.mark.parametrize(
    "kind",
    [
        "BertTokenizer",
        "BertTokenizerFast",
        "RobertaTokenizer",
        "XLMRobertaTokenizer",
        "MPNetTokenizer",
    ],
)
def test_transformers_reads_the_tokenizer_of_an_export_as_it_is(kind: str, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    make_tokenizer(tmp_path, pad_id=0)
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    tokenizer = json.loads((tmp_path / "tokenizer.json").read_text())
    # Classes of transformers would split the text in their own way.
    tokenizer["pre_tokenizer"] = {"type": "WhitespaceSplit"}
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    stated = {"tokenizer_class": kind, "model_max_length": 20}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(stated))
    client_files.state_reading(tmp_path, by_class=True)
    right = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    found = AutoTokenizer.from_pretrained(tmp_path)
    for text in ("he had: this, that.", "a, b", "the of"):
        assert found(text)["input_ids"] == right.encode(text).ids


def test_a_space_before_the_first_word_is_stated(tmp_path: Path) -> None:
    """transformers 4 writes what `tokenizer_config.json` states into the tokenizer, and False where it states nothing."""
    make_byte_level_tokenizer(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(
        '{"tokenizer_class": "PreTrainedTokenizerFast"}'
    )
    for first in (True, False):
        tokenizer = json.loads((tmp_path / "tokenizer.json").read_text())
        tokenizer["pre_tokenizer"]["add_prefix_space"] = first
        (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
        client_files.state_reading(tmp_path, by_class=True)
        stated = json.loads((tmp_path / "tokenizer_config.json").read_text())
        assert stated["add_prefix_space"] is first


@pytest.mark.parametrize("activation", ["Identity", "Sigmoid", "Tanh"])
@pytest.mark.parametrize(
    ("client", "lines"),
    [
        ("optimum", {"Identity": '"none"', "Sigmoid": '"sigmoid"', "Tanh": "math.tanh"}),
        ("transformers.js", {"Identity": "=> x", "Sigmoid": "Math.exp(-x)", "Tanh": "Math.tanh"}),
        (
            "tei",
            {"Identity": "raw_scores=True", "Sigmoid": "raw_scores=False", "Tanh": "math.tanh"},
        ),
    ],
)
def test_the_lines_make_the_score_of_one_logit(
    client: str, lines: dict[str, str], activation: str
) -> None:
    text = clients.snippet(
        client, clients.Model("out", clients.SINGLE, width=1, activation=activation)
    )
    assert lines[activation] in text
