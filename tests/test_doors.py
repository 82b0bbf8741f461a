"""One door for folders of unknown origin: what their links lead to reaches no output, and nothing waits for their pipes."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import octobert
from octobert.config.loading import parse
from octobert.core.errors import OctobertError
from octobert.core.origin import is_inside, listed
from octobert.core.results import PACKAGE_FILE
from octobert.data.tokenization import Tokenizer
from octobert.engine.executors import inline
from octobert.models.source import resolve
from octobert.pipeline import runner
from tests.support.late_interaction import write as write_late
from tests.support.pooling import write_modules
from tests.support.retrieval import recipe_of, rows_in
from tests.support.runs import brief, write_pairs
from tests.support.secrets import SECRET, limited_time, linked_outside, with_the_secret
from tests.support.sparse import ENCODER, TABLE, routed

DENSE = {"in_features": 32, "out_features": 8, "bias": True}
POOLING = {"word_embedding_dimension": 32, "pooling_mode_mean_tokens": True}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.setenv("OCTOBERT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def dense(checkpoint: Callable[..., Path], folder: Path) -> tuple[Path, str]:
    """An embedding model with a layer behind its pooling."""
    shutil.copytree(checkpoint("bert", "embedding"), folder)
    write_modules(folder, [("Pooling", POOLING), ("Dense", DENSE), ("Normalize", {})], prompts={})
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 20}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"model_max_length": 30}))
    (folder / "special_tokens_map.json").write_text("{}")
    return folder, "embedding"


def sparse(checkpoint: Callable[..., Path], folder: Path) -> tuple[Path, str]:
    """A sparse encoder whose queries are a table."""
    return routed(checkpoint("bert", "masked-lm"), folder), "sparse-embedding"


def late(checkpoint: Callable[..., Path], folder: Path) -> tuple[Path, str]:
    """A late-interaction model."""
    return write_late(checkpoint("bert", "embedding"), folder, "pylate"), "late-interaction"


MODELS = {"dense": dense, "sparse": sparse, "late": late}
# Files that are read, and so have to be the folder's own; and what nobody asked for.
NEEDED = {
    "dense": (
        *("config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"),
        *("modules.json", "config_sentence_transformers.json", "sentence_bert_config.json"),
        *("1_Pooling", "1_Pooling/config.json", "2_Dense", "2_Dense/config.json"),
        *("2_Dense/model.safetensors", "2_Dense/pytorch_model.bin", "vocab.txt", "spiece.model"),
        "added_tokens.json",
    ),
    "sparse": (
        *("modules.json", "router_config.json", "config_sentence_transformers.json", ENCODER),
        *(f"{ENCODER}/config.json", f"{ENCODER}/tokenizer.json", "document_1_SpladePooling"),
        *("document_1_SpladePooling/config.json", TABLE, f"{TABLE}/model.safetensors"),
        *(f"{TABLE}/config.json", f"{TABLE}/tokenizer.json", f"{TABLE}/vocab.txt"),
    ),
    "late": ("1_Dense", "1_Dense/model.safetensors", "config_sentence_transformers.json"),
}
OTHERS = {
    "dense": ("notes.txt", "1_Pooling/notes.txt", "2_Dense/notes.txt", "2_Dense/notes"),
    "sparse": ("notes.txt", f"{TABLE}/notes.txt", f"{ENCODER}/notes.txt"),
    "late": ("1_Dense/notes.txt",),
}
WEIGHTS = {"dense": "model.safetensors", "sparse": f"{ENCODER}/model.safetensors"}
PLACES = [(kind, name) for kind, names in NEEDED.items() for name in names]


def run(model: Path, task: str, data: Path, out: Path) -> None:
    with limited_time():
        runner.run(brief(recipe_of(model, task, data)), out, executor=inline.run)


@pytest.mark.parametrize(("kind", "name"), PLACES)
def test_what_a_link_of_a_model_leads_to_is_refused(
    checkpoint, tmp_path: Path, cache: Path, kind: str, name: str
) -> None:
    model, task = MODELS[kind](checkpoint, tmp_path / "model")
    linked_outside(model / name, tmp_path / "elsewhere")
    with pytest.raises(octobert.ModelError, match=r"link that leaves|folder of a module") as error:
        run(model, task, rows_in(tmp_path / "data"), tmp_path / "out")
    assert str(model) in str(error.value.where)
    assert with_the_secret(tmp_path / "out", cache) == []


@pytest.mark.parametrize(("kind", "name"), [(kind, n) for kind in OTHERS for n in OTHERS[kind]])
def test_what_lies_beside_the_files_of_a_model_is_left_there(
    checkpoint, tmp_path: Path, cache: Path, kind: str, name: str
) -> None:
    model, task = MODELS[kind](checkpoint, tmp_path / "model")
    linked_outside(model / name, tmp_path / "elsewhere")
    (model / name).with_name("own.txt").write_text(SECRET)
    os.mkfifo((model / name).with_name("pipe.txt"))
    run(model, task, rows_in(tmp_path / "data"), tmp_path / "out")
    package = tmp_path / "out" / "ort-cpu"
    if kind != "late":  # whose markers no client for ONNX files knows
        octobert.export(package, "sentence-transformers")
    assert with_the_secret(tmp_path / "out", cache) == []


@pytest.mark.parametrize("kind", WEIGHTS)
def test_weights_on_another_disk_are_read_and_never_copied(
    checkpoint, tmp_path: Path, cache: Path, kind: str
) -> None:
    model, task = MODELS[kind](checkpoint, tmp_path / "model")
    linked_outside(model / WEIGHTS[kind], tmp_path / "elsewhere")
    run(model, task, rows_in(tmp_path / "data"), tmp_path / "out")
    assert octobert.verify(tmp_path / "out" / "ort-cpu", run=False).added == ()
    assert with_the_secret(tmp_path / "out", cache) == []


@pytest.mark.parametrize(("kind", "name"), [case for case in PLACES if "." in case[1]])
def test_pipes_are_not_waited_for(checkpoint, tmp_path: Path, kind: str, name: str) -> None:
    model, task = MODELS[kind](checkpoint, tmp_path / "model")
    (model / name).unlink(missing_ok=True)
    os.mkfifo(model / name)
    with pytest.raises(OctobertError, match=str(model)):
        run(model, task, rows_in(tmp_path / "data"), tmp_path / "out")


def inside(model: Path) -> Path:
    """All files of a model below `real`, and links to them that stay in the folder."""
    for path in [*model.iterdir()]:
        (model / "real").mkdir(exist_ok=True)
        shutil.move(path, model / "real" / path.name)
        path.symlink_to(Path("real", path.name))
    return model


def in_the_hubs_cache(model: Path) -> Path:
    """The layout of the Hub's cache: links to files that are named by their content."""
    repo = model.with_name("models--me--model")
    snapshot = repo / "snapshots" / ("1" * 40)
    (repo / "blobs").mkdir(parents=True)
    for number, path in enumerate(p for p in sorted(model.rglob("*")) if p.is_file()):
        link = snapshot / path.relative_to(model)
        link.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(path, repo / "blobs" / str(number))
        link.symlink_to(os.path.relpath(repo / "blobs" / str(number), link.parent))
    return snapshot


@pytest.mark.parametrize("kind", ["dense", "sparse"])
@pytest.mark.parametrize("form", [inside, in_the_hubs_cache])
def test_links_that_stay_in_a_model_are_followed(
    checkpoint, tmp_path: Path, kind: str, form: Callable[[Path], Path]
) -> None:
    model, task = MODELS[kind](checkpoint, tmp_path / "model")
    run(form(model), task, rows_in(tmp_path / "data"), tmp_path / "out")
    with octobert.load(tmp_path / "out" / "ort-cpu") as predictor:
        assert len(predictor(["the of", "and"])) == 2


def test_a_cache_of_an_enemy_is_not_that_of_the_hub(tmp_path: Path) -> None:
    """`blobs` that is a link itself leads anywhere."""
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "key").write_text(SECRET)
    snapshot = tmp_path / "repo" / "snapshots" / "1"
    snapshot.mkdir(parents=True)
    (tmp_path / "repo" / "blobs").symlink_to(tmp_path / "home")
    (snapshot / "config.json").symlink_to("../../blobs/key")
    assert not is_inside(snapshot, "config.json")
    for name in ("../config.json", "/etc/passwd", "a\nb", ""):
        assert not is_inside(snapshot, name)
    with pytest.raises(octobert.ModelError, match=r"snapshots/1/config\.json: the file is a link"):
        listed(snapshot, "*.json")


# ---- packages

READERS: dict[str, Callable[[Path, Path], object]] = {
    "verify": lambda package, _: octobert.verify(package),
    "verify without a run": lambda package, _: octobert.verify(package, run=False),
    "load": lambda package, _: octobert.load(package).close(),
    "push": lambda package, _: octobert.push(package, "me/model", dry_run=True),
    "export": lambda package, _: octobert.export(package, "sentence-transformers"),
    "evaluate": lambda package, data: octobert.evaluate(package, str(data)),
}
UNLISTED = (
    *("added_tokens.json", "vocab.txt", "spiece.model", f"{TABLE}/model.safetensors"),
    *("onnx/model_quantized.12.onnx", "sentence_roberta_config.json", "chat_template.jinja"),
)


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(
    "make", [linked_outside, os.mkfifo, Path.touch], ids=["link", "pipe", "file"]
)
def test_what_a_package_does_not_list_is_not_read(
    embedding_package, tmp_path: Path, reader: str, make: Callable[..., object]
) -> None:
    data = write_pairs(tmp_path / "data")
    for number, name in enumerate(UNLISTED):
        package = shutil.copytree(embedding_package, tmp_path / str(number) / "package")
        (package / name).parent.mkdir(exist_ok=True)
        more = (tmp_path / "elsewhere",) if make is linked_outside else ()
        make(package / name, *more)
        with limited_time(), pytest.raises(octobert.ModelError, match=r"not listed|is a link"):
            READERS[reader](package, data)
        assert with_the_secret(package.parent) == []
        shutil.rmtree(tmp_path / "elsewhere", ignore_errors=True)


# ---- data


def classes(folder: Path, secret: Path) -> Path:
    for split in ("train", "validation"):
        for label in ("neg", "pos"):
            (folder / split / label).mkdir(parents=True)
            for number in range(20):
                (folder / split / label / f"{number}.txt").write_text(f"the {label} of {number}")
    (folder / "train" / "pos" / "20.txt").symlink_to(secret)
    return folder


def splits(folder: Path, secret: Path) -> Path:
    write_pairs(folder)
    (folder / "train.tsv").unlink()
    (folder / "train.tsv").symlink_to(secret)
    return folder


def split_folder(folder: Path, secret: Path) -> Path:
    classes(folder, secret)
    shutil.rmtree(folder / "train")
    shutil.copytree(folder / "validation", secret.parent / "train")
    (folder / "train").symlink_to(secret.parent / "train")
    return folder


def feeds(folder: Path, secret: Path) -> Path:
    folder.mkdir()
    (folder / "0.npz").symlink_to(secret)
    return folder


def judged(folder: Path, secret: Path) -> Path:
    (folder / "qrels").mkdir(parents=True)
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n")
    (folder / "queries.jsonl").write_text("")
    (folder / "corpus.jsonl").symlink_to(secret)
    return folder


@pytest.mark.parametrize("make", [classes, splits, split_folder, feeds, judged])
@pytest.mark.parametrize("pipe", [False, True])
def test_what_a_link_of_a_data_folder_leads_to_is_refused(
    checkpoint, tmp_path: Path, make: Callable[[Path, Path], Path], pipe: bool
) -> None:
    secret = tmp_path / "elsewhere" / "secret.tsv"
    secret.parent.mkdir()
    if pipe:
        os.mkfifo(secret)
    else:
        secret.write_text(f"sentence1\tsentence2\tlabel\n{SECRET}\tb\t0\n" * 20)
    plain: dict[str, Any] = {
        "model": str(checkpoint("bert")),
        "task": "text-classification",
        "data": str(make(tmp_path / "data", secret)),
        "targets": ["ort-cpu"],
    }
    with limited_time(), pytest.raises(OctobertError, match="link that leaves") as error:
        runner.run(brief(parse(plain)), tmp_path / "out", executor=inline.run)
    assert str(tmp_path / "data") in str(error.value)
    assert with_the_secret(tmp_path / "out") == []


def test_what_a_link_of_a_corpus_leads_to_is_not_embedded(
    embedding_package, tmp_path: Path
) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    (tmp_path / "corpus").mkdir()
    pq.write_table(pa.table({"text": ["the of", SECRET]}), tmp_path / "secret.parquet")
    (tmp_path / "corpus" / "0.parquet").symlink_to(tmp_path / "secret.parquet")
    with pytest.raises(octobert.DataError, match="link that leaves"):
        octobert.embed(embedding_package, tmp_path / "corpus", tmp_path / "vectors.parquet")
    assert not (tmp_path / "vectors.parquet").exists()


# ---- sizes


def test_a_table_of_a_terabyte_is_refused_by_its_header(checkpoint, tmp_path: Path) -> None:
    """The file takes a few blocks of the disk: all but its header is a hole."""
    model, _ = sparse(checkpoint, tmp_path / "model")
    for count, what in ((2**38, "too much memory"), (2**20, "not one weight for each")):
        header = json.dumps(
            {"weight": {"dtype": "F32", "shape": [count], "data_offsets": [0, 4 * count]}}
        ).encode()
        with (model / TABLE / "model.safetensors").open("wb") as file:
            file.write(np.uint64(len(header)).tobytes() + header)
            file.truncate(8 + len(header) + 4 * count)
        with limited_time(), pytest.raises(octobert.ModelError, match=what):
            Tokenizer(resolve(model).tokenizer_folder)


def test_the_manifest_is_the_only_list(embedding_package, tmp_path: Path) -> None:
    """A float model that no list names is not what a package is compared with."""
    package = shutil.copytree(embedding_package, tmp_path / "package")
    stated = json.loads((package / PACKAGE_FILE).read_text())
    del stated["files"]["onnx/model.onnx"], stated["sizes"]["onnx/model.onnx"]
    (package / PACKAGE_FILE).write_text(json.dumps(stated))
    from octobert.inference.opened import open_model

    assert open_model(package).floating is None
