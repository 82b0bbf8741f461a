"""An export answers what its package answers: every client, every head, checkpoints and ONNX files that make their own vector."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from tokenizers import Tokenizer

import octobert
from octobert.api import client_files, clients
from octobert.core.files import file_digest
from octobert.core.results import PACKAGE_FILE
from tests.support.checkpoints import WORDS, make_byte_level_tokenizer, make_tokenizer
from tests.support.every_head import MAKERS, OWN
from tests.support.pooling import reference
from tests.support.runs import made_once

TEXTS = ("the of and", "THEY had This", " ".join(WORDS), " ".join(WORDS * 3))


def slow(kind: str) -> Any:
    """A case that takes a run of its own."""
    return pytest.param(kind, marks=pytest.mark.slow)


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
