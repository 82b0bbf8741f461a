"""Packages as other programs read them: names and shapes of outputs, files of sentence-transformers, exported folders.

`make test-clients` loads them in those programs.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import openvino
import pytest
from typer.testing import CliRunner

import octobert
from octobert.api import clients
from octobert.cli.main import app
from octobert.config.loading import parse
from octobert.core.pooling import Dense, Normalize, Pooling
from octobert.graph import operators
from octobert.models import sentence_transformers
from octobert.pipeline import runner
from octobert.pipeline.executors import inline
from tests.support.checkpoints import make_checkpoint
from tests.support.runs import brief, made_once, write_pairs

OUTPUTS = ["last_hidden_state", "sentence_embedding"]
ABOUT = {"prompts": {"query": "query: "}, "default_prompt_name": "query", "__version__": {"sentence_transformers": "9.0.0"}}


@pytest.fixture(scope="session")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny embedding model with CLS pooling, normalization and a prompt, as OpenVINO's package."""

    def make(folder: Path) -> None:
        model = make_checkpoint(folder / "model", "bert", "embedding")
        (model / "1_Pooling").mkdir()
        (model / "1_Pooling" / "config.json").write_text('{"word_embedding_dimension": 32, "pooling_mode_cls_token": true}')
        # Names of release 6.
        kinds = ["base.modules.transformer.Transformer", "sentence_transformer.modules.pooling.Pooling"]
        kinds.append("sentence_transformer.modules.normalize.Normalize")
        paths = ["", "1_Pooling", "2_Normalize"]
        entries = [{"type": f"sentence_transformers.{k}", "path": p} for k, p in zip(kinds, paths, strict=True)]
        (model / "modules.json").write_text(json.dumps(entries))
        (model / "config_sentence_transformers.json").write_text(json.dumps(ABOUT))
        (model / "sentence_bert_config.json").write_text('{"max_seq_length": 40, "do_lower_case": true}')
        recipe = {
            "model": str(model),
            "task": {"embedding": {"text": "sentence1", "max_length": 24}},
            "data": str(write_pairs(folder / "data")),
            "targets": ["openvino-cpu"],
            "transforms": [],
            "corrections": [],
        }
        runner.run(brief(parse(recipe)), folder / "out", executor=inline.run)

    return made_once(tmp_path_factory, "embedding-package", make) / "out" / "openvino-cpu"


def feeds(names: list[str]) -> dict[str, np.ndarray]:
    return {name: np.ones((2, 7), dtype=np.int64) for name in names}


def test_embeddings_have_token_states_first_and_the_vector_second(package: Path) -> None:
    for name in ("model.onnx", "model_quantized.onnx"):
        session = ort.InferenceSession(package / "onnx" / name)
        assert [output.name for output in session.get_outputs()] == OUTPUTS
        states, vector = session.run(None, feeds([i.name for i in session.get_inputs()]))
        # CLS pooling reads one token, and the states are those of all.
        assert (states.shape, vector.shape) == ((2, 7, 32), (2, 32))
        np.testing.assert_allclose(states[:, 0] / np.linalg.norm(states[:, 0], axis=1, keepdims=True), vector, atol=1e-6)
    compiled = openvino.Core().compile_model(str(package / "openvino_model.xml"), "CPU")
    assert [port.get_any_name() for port in compiled.outputs] == OUTPUTS
    results = compiled(feeds([port.get_any_name() for port in compiled.inputs]))
    assert [results[name].shape for name in OUTPUTS] == [(2, 7, 32), (2, 32)]


def test_octobert_reads_the_vector_only(package: Path) -> None:
    with octobert.load(package) as model:
        answer = model(["the one"])[0]
    assert list(answer) == ["embedding"]
    assert np.linalg.norm(answer["embedding"]) == pytest.approx(1, abs=1e-5)


def test_the_files_of_sentence_transformers_have_names_that_all_releases_read(package: Path) -> None:
    modules = json.loads((package / "modules.json").read_text())
    assert [(m["type"], m["path"]) for m in modules] == [
        ("sentence_transformers.models.Transformer", ""),
        ("sentence_transformers.models.Pooling", "1_Pooling"),
        ("sentence_transformers.models.Normalize", "2_Normalize"),
    ]
    pooling = json.loads((package / "1_Pooling" / "config.json").read_text())
    assert [key for key, value in pooling.items() if value is True] == ["pooling_mode_cls_token", "include_prompt"]
    assert pooling["word_embedding_dimension"] == 32
    settings = json.loads((package / "sentence_bert_config.json").read_text())
    assert settings == {"max_seq_length": 24, "do_lower_case": True}
    about = json.loads((package / "config_sentence_transformers.json").read_text())
    assert about == {key: ABOUT[key] for key in ("prompts", "default_prompt_name")}


def test_modules_with_weights_are_copied(tmp_path: Path) -> None:
    (tmp_path / "source" / "3_Dense").mkdir(parents=True)
    (tmp_path / "source" / "3_Dense" / "model.safetensors").write_bytes(b"weights")
    dense = Dense(folder="3_Dense", in_features=64, out_features=8)
    pooling = Pooling(modes=("mean", "cls"), steps=(dense, Normalize()))
    folder = tmp_path / "package"
    folder.mkdir()
    sentence_transformers.write(folder, tmp_path / "source", pooling, hidden=32, max_length=16)
    paths = [module["path"] for module in json.loads((folder / "modules.json").read_text())]
    assert paths == ["", "1_Pooling", "2_Dense", "3_Normalize"]
    assert (folder / "2_Dense" / "model.safetensors").read_bytes() == b"weights"
    assert json.loads((folder / "1_Pooling" / "config.json").read_text())["pooling_mode"] == ["mean", "cls"]


def test_without_token_states_the_vector_is_the_only_output(package: Path) -> None:
    model = ir.load(package / "onnx" / "model_quantized.onnx")
    assert operators.drop_states_(model) == 1
    assert [value.name for value in model.graph.outputs] == OUTPUTS[1:]
    assert operators.drop_states_(model) == 0


@pytest.mark.parametrize("client", clients.CLIENTS)
def test_an_exported_folder_holds_one_model_under_its_default_name(package: Path, client: str, tmp_path: Path) -> None:
    exported = octobert.export(package, client, tmp_path / "it's")
    names = {path.relative_to(exported.folder).as_posix() for path in exported.folder.rglob("*") if path.is_file()}
    models = {name for name in names if Path(name).suffix in (".onnx", ".xml", ".bin")}
    known = clients.CLIENTS[client]
    assert models == ({"openvino_model.xml", "openvino_model.bin"} if known.ir else {known.file})
    assert {"config.json", "tokenizer.json", "modules.json", "1_Pooling/config.json"} <= names
    assert "octobert.json" not in names
    if not client.endswith(".js"):
        compile(exported.snippet, client, "exec")
    assert json.dumps(str(exported.folder)).rstrip('"') in exported.snippet
    if not known.ir:
        outputs = [value.name for value in ir.load(exported.folder / known.file).graph.outputs]
        assert outputs == (OUTPUTS[1:] if known.vector_only else OUTPUTS)


def test_every_client_prints_python_or_javascript_for_every_head_that_it_opens() -> None:
    for name, client in clients.CLIENTS.items():
        for head in client.heads:
            for pairs in (False, True):
                text = clients.snippet(name, clients.Model("out/ort-cpu", head, client.ir, pairs, 8))
                assert "answers" in text or "vectors" in text
                if not name.endswith(".js"):
                    compile(text, name, "exec")


def test_what_cannot_be_exported_is_said(package: Path, finished, tmp_path: Path) -> None:
    with pytest.raises(octobert.RecipeError, match=r'there is no client "optimun".*did you mean "optimum"'):
        octobert.export(package, "optimun")
    with pytest.raises(octobert.ModelError, match=r"fastembed does not open models with this head.*sequence-classification"):
        octobert.export(finished[1] / "ort-cpu", "fastembed", tmp_path / "a")
    (tmp_path / "b").mkdir()
    with pytest.raises(octobert.StorageError, match="the folder exists already"):
        octobert.export(package, "optimum", tmp_path / "b")
    assert [path.name for path in tmp_path.iterdir()] == ["b"]


def test_the_command_prints_the_lines_that_load_the_model(package: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["export", str(package), "--for", "fastembed", "--out", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    assert "pip install fastembed" in done.output
    assert "dim=32" in done.output
