"""Packages as other programs read them: names and shapes of outputs, files of sentence-transformers, exported folders.

`make test-clients` loads them in those programs.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import openvino
import pytest
import tokenizers
from typer.testing import CliRunner

import octobert
from octobert import tasks
from octobert.api import client_files, clients
from octobert.cli.main import app
from octobert.config.loading import parse
from octobert.core.heads import HEADS
from octobert.core.model_config import Dense, Normalize, Pooling
from octobert.core.results import TaskFacts
from octobert.data.tokenization import state_length
from octobert.engine.executors import inline
from octobert.graph import operators
from octobert.models import sentence_transformers
from octobert.pipeline import runner
from tests.support.checkpoints import make_checkpoint
from tests.support.runs import brief, made_once, write_pairs

OUTPUTS = ["last_hidden_state", "sentence_embedding"]
ABOUT = {
    "prompts": {"query": "query: "},
    "default_prompt_name": "query",
    "__version__": {"sentence_transformers": "9.0.0"},
}


@pytest.fixture(scope="session")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny embedding model with CLS pooling, normalization and a prompt, as OpenVINO's package."""

    def make(folder: Path) -> None:
        model = make_checkpoint(folder / "model", "bert", "embedding")
        (model / "1_Pooling").mkdir()
        (model / "1_Pooling" / "config.json").write_text(
            '{"word_embedding_dimension": 32, "pooling_mode_cls_token": true}'
        )
        # Names of release 6.
        kinds = [
            "base.modules.transformer.Transformer",
            "sentence_transformer.modules.pooling.Pooling",
        ]
        kinds.append("sentence_transformer.modules.normalize.Normalize")
        paths = ["", "1_Pooling", "2_Normalize"]
        entries = [
            {"type": f"sentence_transformers.{k}", "path": p}
            for k, p in zip(kinds, paths, strict=True)
        ]
        (model / "modules.json").write_text(json.dumps(entries))
        (model / "config_sentence_transformers.json").write_text(json.dumps(ABOUT))
        (model / "sentence_bert_config.json").write_text(
            '{"max_seq_length": 40, "do_lower_case": true}'
        )
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
        np.testing.assert_allclose(
            states[:, 0] / np.linalg.norm(states[:, 0], axis=1, keepdims=True), vector, atol=1e-6
        )
    compiled = openvino.Core().compile_model(str(package / "openvino_model.xml"), "CPU")
    assert [port.get_any_name() for port in compiled.outputs] == OUTPUTS
    results = compiled(feeds([port.get_any_name() for port in compiled.inputs]))
    assert [results[name].shape for name in OUTPUTS] == [(2, 7, 32), (2, 32)]


def test_octobert_reads_the_vector_only(package: Path) -> None:
    with octobert.load(package) as model:
        answer = model(["the one"])[0]
    assert list(answer) == ["embedding"]
    assert np.linalg.norm(answer["embedding"]) == pytest.approx(1, abs=1e-5)


def test_the_files_of_sentence_transformers_have_names_that_all_releases_read(
    package: Path,
) -> None:
    modules = json.loads((package / "modules.json").read_text())
    assert [(m["type"], m["path"]) for m in modules] == [
        ("sentence_transformers.models.Transformer", ""),
        ("sentence_transformers.models.Pooling", "1_Pooling"),
        ("sentence_transformers.models.Normalize", "2_Normalize"),
    ]
    pooling = json.loads((package / "1_Pooling" / "config.json").read_text())
    assert [key for key, value in pooling.items() if value is True] == [
        "pooling_mode_cls_token",
        "include_prompt",
    ]
    assert pooling["word_embedding_dimension"] == 32
    settings = json.loads((package / "sentence_bert_config.json").read_text())
    # The IR is opened under its own name.
    assert settings == {"max_seq_length": 24, "do_lower_case": True}
    about = json.loads((package / "config_sentence_transformers.json").read_text())
    assert about == {
        "model_type": "SentenceTransformer",
        **{key: ABOUT[key] for key in ("prompts", "default_prompt_name")},
    }


def test_modules_with_weights_are_copied(tmp_path: Path) -> None:
    (tmp_path / "source" / "3_Dense").mkdir(parents=True)
    (tmp_path / "source" / "3_Dense" / "model.safetensors").write_bytes(b"weights")
    dense = Dense(folder="3_Dense", in_features=64, out_features=8)
    pooling = Pooling(modes=("mean", "cls"), steps=(dense, Normalize()))
    folder = tmp_path / "package"
    folder.mkdir()
    sentence_transformers.write(
        folder, tmp_path / "source", HEADS["embedding"], pooling, hidden=32, max_length=16
    )
    paths = [module["path"] for module in json.loads((folder / "modules.json").read_text())]
    assert paths == ["", "1_Pooling", "2_Dense", "3_Normalize"]
    assert (folder / "2_Dense" / "model.safetensors").read_bytes() == b"weights"
    assert json.loads((folder / "1_Pooling" / "config.json").read_text())["pooling_mode"] == [
        "mean",
        "cls",
    ]


def test_without_token_states_the_vector_is_the_only_output(package: Path) -> None:
    model = ir.load(package / "onnx" / "model_quantized.onnx")
    assert operators.drop_states_(model) == 1
    assert [value.name for value in model.graph.outputs] == OUTPUTS[1:]
    assert operators.drop_states_(model) == 0


def test_the_length_of_texts_is_in_all_tokenizer_files(package: Path) -> None:
    tokenizer = json.loads((package / "tokenizer.json").read_text())
    assert tokenizer["truncation"] == {
        "direction": "Right",
        "max_length": 24,
        "strategy": "LongestFirst",
        "stride": 0,
    }
    config = json.loads((package / "tokenizer_config.json").read_text())
    assert config == {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "truncation_side": "right",
        "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
        "pad_token": "[PAD]",
        "model_max_length": 24,
    }


def test_tokenizer_files_of_transformers_5_get_names_that_transformers_4_reads(
    tmp_path: Path,
) -> None:
    folder = make_checkpoint(tmp_path, "bert", "embedding")
    stated = {
        "tokenizer_class": "TokenizersBackend",
        "extra_special_tokens": ["[X]"],
        "max_length": 9,
        "model_max_length": 10**30,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(stated))
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    added = {"id": len(tokenizer["model"]["vocab"]), "content": "[X]"}
    tokenizer["added_tokens"].append({**tokenizer["added_tokens"][-1], **added})
    padding = {
        "strategy": {"Fixed": 128},
        "direction": "Right",
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "[PAD]",
    }
    (folder / "tokenizer.json").write_text(
        json.dumps(tokenizer | {"padding": padding | {"pad_to_multiple_of": None}})
    )
    state_length(folder, 20)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    renamed = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_input_names": ["input_ids", "attention_mask"],
        "additional_special_tokens": ["[X]"],
        "pad_token": "[PAD]",
        "model_max_length": 20,
    }
    assert config == renamed
    opened = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert [len(e.ids) for e in opened.encode_batch(["the of " * 50, "he"])] == [20, 20]
    assert len(opened.encode("he").ids) == 3


def stated_of(folder: Path, **facts: Any) -> dict[str, Any]:
    """What `config.json` states of a text classification."""
    known = {"name": "text-classification", "options": {}, "head": "sequence-classification"}
    stated = {"sentence_transformers": {"version": "5.0.0"}, "problem_type": "regression"}
    (folder / "config.json").write_text(json.dumps(stated))
    tasks.state(TaskFacts(**known | {"primary": None} | facts), folder)
    return json.loads((folder / "config.json").read_text())


def test_what_makes_answers_is_in_the_config(tmp_path: Path) -> None:
    """transformers makes a sigmoid of one logit by default, and sentence-transformers as well: a regression has to say more."""
    for stated, name, problem in (
        ({"problem": "regression"}, "linear.Identity", "regression"),
        ({"activation": "torch.nn.modules.activation.Tanh"}, "activation.Tanh", "regression"),
        ({}, "activation.Sigmoid", None),
    ):
        found = stated_of(tmp_path, labels=("score",), **stated)
        assert found["sentence_transformers"] == {
            "version": "5.0.0",
            "activation_fn": f"torch.nn.modules.{name}",
        }
        assert found["problem_type"] == problem
    found = stated_of(tmp_path, labels=("a", "b"), options={"problem": "multi-label"})
    assert found["problem_type"] == "multi_label_classification"
    assert (found["id2label"], found["label2id"]) == ({"0": "a", "1": "b"}, {"a": 0, "b": 1})
    assert found["sentence_transformers"] == {"version": "5.0.0"}
    assert stated_of(tmp_path, labels=("a", "b"))["problem_type"] is None


@pytest.fixture(scope="session")
def reranker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny reranker whose activation stands in a file that sentence-transformers reads beside modules.json, as ort-cpu's package."""

    def make(folder: Path) -> None:
        model = make_checkpoint(
            folder / "model", "bert", "sequence-classification", labels=("LABEL_0",)
        )
        (model / "modules.json").write_text(
            '[{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}]'
        )
        stated = {"model_type": "CrossEncoder", "activation_fn": "torch.nn.modules.linear.Identity"}
        (model / "config_sentence_transformers.json").write_text(json.dumps(stated))
        recipe = {
            "model": str(model),
            "task": {"text-classification": {"max_length": 30}},
            "data": str(write_pairs(folder / "data")),
            "targets": ["ort-cpu"],
            "transforms": [],
            "corrections": [],
        }
        runner.run(brief(parse(recipe)), folder / "out", executor=inline.run)

    return made_once(tmp_path_factory, "reranker-package", make) / "out" / "ort-cpu"


def test_a_reranker_keeps_its_scale_and_its_length(golden, reranker: Path, tmp_path: Path) -> None:
    config = json.loads((reranker / "config.json").read_text())
    assert config["sentence_transformers"]["activation_fn"] == "torch.nn.modules.linear.Identity"
    assert json.loads((reranker / "tokenizer_config.json").read_text())["model_max_length"] == 30
    assert "score for score in" in octobert.export(reranker, "fastembed", tmp_path / "a").snippet
    assert "scale_score=False" in octobert.export(reranker, "haystack", tmp_path / "b").snippet
    with golden.raises(octobert.ModelError):
        octobert.export(reranker, "infinity", tmp_path / "c")
    with pytest.raises(octobert.ModelError, match="openvino-genai opens models of OpenVINO"):
        octobert.export(reranker, "openvino-genai", tmp_path / "c")
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize("client", clients.CLIENTS)
def test_an_exported_folder_holds_one_model_under_its_default_name(
    package: Path, client: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = clients.CLIENTS[client]
    if client == "openvino-genai":
        # `make test-clients` converts a tokenizer.
        monkeypatch.setitem(clients.CLIENTS, client, known.model_copy(update={"writes": None}))
    exported = octobert.export(package, client, tmp_path / "it's")
    names = {
        path.relative_to(exported.folder).as_posix()
        for path in exported.folder.rglob("*")
        if path.is_file()
    }
    models = {name for name in names if Path(name).suffix in (".onnx", ".xml", ".bin")}
    ir_files = {known.ir, known.ir.replace(".xml", ".bin")}
    assert models == (ir_files if known.ir else {known.file})
    beside = {"config.json", "tokenizer.json", "modules.json", "1_Pooling/config.json"}
    if known.folder:
        # Servers take folders whose names start with a number for versions of the model.
        beside = {f"{known.folder}/{name}" for name in beside if "/" not in name}
        assert {path.name for path in (exported.folder / known.folder).glob("*/")} == {"1"}
    assert beside <= names
    assert "octobert.json" not in names
    if not client.endswith(".js"):
        compile(exported.snippet, client, "exec")
    assert json.dumps(str(exported.folder)).rstrip('"') in exported.snippet
    model = exported.folder / (known.ir or known.file)
    shapes = outputs_of(model)
    kept = {"vector": OUTPUTS[1:], "token": OUTPUTS[:1], "states": OUTPUTS[:1]}
    assert list(shapes) == kept.get(known.outputs, OUTPUTS)
    if known.outputs == "token":
        assert shapes["last_hidden_state"] == (2, 1, 32)
        source = package / (_IR if known.ir else "onnx/model_quantized.onnx")
        right = outputs_of(source, values=True)["sentence_embedding"]
        np.testing.assert_allclose(
            outputs_of(model, values=True)["last_hidden_state"][:, 0], right, atol=1e-6
        )


_IR = "openvino_model.xml"


def outputs_of(path: Path, *, values: bool = False) -> dict[str, Any]:
    """Shapes, or values, of the outputs of a model."""
    if path.suffix == ".xml":
        compiled = openvino.Core().compile_model(str(path), "CPU")
        results = compiled(feeds([port.get_any_name() for port in compiled.inputs]))
        found = {port.get_any_name(): results[port] for port in compiled.outputs}
    else:
        session = ort.InferenceSession(path)
        given = feeds([i.name for i in session.get_inputs()])
        found = dict(
            zip([o.name for o in session.get_outputs()], session.run(None, given), strict=True)
        )
    return found if values else {name: array.shape for name, array in found.items()}


@pytest.mark.parametrize("made", ["package", "reranker"])
def test_tritons_config_follows_its_schema_and_says_what_the_model_has(
    made: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    schema = pytest.importorskip(
        "tritonclient.grpc.model_config_pb2", reason="tritonclient is not installed"
    )
    from google.protobuf import text_format

    folder = octobert.export(request.getfixturevalue(made), "triton", tmp_path / "models").folder
    text = (folder / "encoder" / "config.pbtxt").read_text()
    config = text_format.Parse(text, schema.ModelConfig())
    is_ir = made == "package"
    assert config.backend == ("openvino" if is_ir else "onnxruntime")
    # Triton adds the axis of the batch where it makes batches.
    assert (config.max_batch_size, config.HasField("dynamic_batching")) == (
        (0, False) if is_ir else (32, True)
    )
    batch = [-1] if is_ir else []
    inputs = {each.name: (each.data_type, list(each.dims)) for each in config.input}
    names = ("input_ids", "attention_mask", "token_type_ids")
    assert inputs == dict.fromkeys(names, (schema.TYPE_INT64, [*batch, -1]))
    (output,) = config.output
    model = folder / "encoder" / "1" / ("model.xml" if is_ir else "model.onnx")
    ((name, (_, *sizes)),) = outputs_of(model).items()
    assert (output.name, output.data_type, list(output.dims)) == (
        name,
        schema.TYPE_FP32,
        [*batch, *sizes],
    )
    (group,) = config.instance_group
    assert (group.kind, group.count) == (schema.ModelInstanceGroup.KIND_CPU, 1)


def test_the_config_of_model_server_names_the_model(
    golden, package: Path, reranker: Path, tmp_path: Path
) -> None:
    exported = octobert.export(package, "ovms", tmp_path / "models")
    config = json.loads((exported.folder / "config.json").read_text())
    # Keys of its documentation. OpenVINO's own default of the precision would be that of the CPU.
    assert config == {
        "model_config_list": [
            {
                "config": {
                    "name": "encoder",
                    "base_path": "/models/encoder",
                    "target_device": "CPU",
                    "plugin_config": {"INFERENCE_PRECISION_HINT": "f32"},
                }
            }
        ]
    }
    with golden.raises(octobert.ModelError):
        octobert.export(reranker, "ovms", tmp_path / "other")


def test_infinity_finds_the_length_where_it_looks_for_it(package: Path, tmp_path: Path) -> None:
    folder = octobert.export(package, "infinity", tmp_path / "model").folder
    assert json.loads((folder / "config.json").read_text())["max_position_embeddings"] == 24


def test_openvino_genai_needs_a_package_that_is_named(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "openvino_tokenizers", None)
    with pytest.raises(octobert.RecipeError, match=r"openvino_tokenizers.*not installed.*genai"):
        octobert.export(package, "openvino-genai", tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


def test_the_8_bit_file_is_the_one_that_sentence_transformers_opens_in_a_package(
    tmp_path: Path,
) -> None:
    sentence_transformers.write(
        tmp_path,
        tmp_path,
        HEADS["embedding"],
        Pooling(),
        hidden=32,
        max_length=16,
        onnx_file="model_quantized.onnx",
    )
    stated = json.loads((tmp_path / "sentence_bert_config.json").read_text())
    assert stated["model_args"] == {"file_name": "model_quantized.onnx"}
    client_files.name_no_file(tmp_path)
    assert json.loads((tmp_path / "sentence_bert_config.json").read_text()) == {
        "max_seq_length": 16,
        "do_lower_case": False,
    }


def test_every_client_prints_python_or_javascript_for_every_kind_that_it_opens() -> None:
    for name, client in clients.CLIENTS.items():
        for kind in client.kinds:
            for prompts in ({}, {"query": "query: ", "passage": "passage: "}):
                for activation in ("Identity", "Sigmoid", "Tanh"):
                    model = clients.Model(
                        "out/ort-cpu",
                        kind,
                        bool(client.ir),
                        8,
                        activation,
                        prompts=prompts,
                        multi_label=True,
                    )
                    text = clients.snippet(name, model)
                    assert "answers" in text or "vectors" in text
                    if not name.endswith(".js"):
                        compile(text, name, "exec")


@pytest.mark.parametrize(
    "client",
    [name for name, client in clients.CLIENTS.items() if clients.EMBEDDING in client.kinds],
)
def test_prompts_are_applied_in_every_client(client: str) -> None:
    prompts = {"s2p_query": "ask: ", "clustering": "group: ", "passage": "tell: "}
    text = clients.snippet(client, clients.Model("out", clients.EMBEDDING, prompts=prompts))
    for name, prompt in (("s2p_query", "ask: "), ("passage", "tell: ")):
        assert f'"{name}"' in text or f'"{prompt}' in text
    assert "queries" in text
    # The default prompt stands before all texts.
    given = clients.Model(
        "out",
        clients.EMBEDDING,
        prompts={"clustering": "group: "},
        default_prompt="clustering",
    )
    text = clients.snippet(client, given)
    assert "queries" not in text
    assert '"clustering"' in text or '"group: ' in text


def test_what_cannot_be_exported_is_said(golden, package: Path, finished, tmp_path: Path) -> None:
    with golden.raises(octobert.RecipeError):
        octobert.export(package, "optimun")
    with golden.raises(octobert.ModelError):
        octobert.export(finished[1] / "ort-cpu", "fastembed", tmp_path / "a")
    (tmp_path / "b").mkdir()
    with pytest.raises(octobert.StorageError, match="the folder exists already"):
        octobert.export(package, "optimum", tmp_path / "b")
    assert [path.name for path in tmp_path.iterdir()] == ["b"]


def test_the_command_prints_the_lines_that_load_the_model(package: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(
        app, ["export", str(package), "--for", "fastembed", "--out", str(tmp_path / "out")]
    )
    assert done.exit_code == 0, done.output
    assert "pip install fastembed" in done.output
    assert "dim=32" in done.output
