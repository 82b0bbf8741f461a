"""Token ids beyond the rows of a model's table: what octobert says of them, from the model's files to the answers."""

from __future__ import annotations

import json
import re
import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Library
from typer.testing import CliRunner

import octobert
from octobert.cli.main import app
from octobert.config.loading import parse
from octobert.config.recipe import Recipe
from octobert.core.errors import TokenError, TokenWarning
from octobert.data.tokenization import Tokenizer
from octobert.engine.executors import inline
from octobert.inference.opened import open_model
from octobert.models.source import resolve
from octobert.pipeline import runner
from tests.support.runs import TARGETS, brief, made_once, write_pairs

PAIRS = "text-classification"
# What a text holds that the model has no row for.
NEW = "[new]"
CPUS = [name for name in ("ort-cpu", "openvino-cpu") if name in TARGETS]


def add_token(folder: Path) -> None:
    """Add a token, as people do who do not train it, behind as many as the tiny models have rows."""
    tokenizer = Library.from_file(str(folder / "tokenizer.json"))
    names = [f"[unused{i}]" for i in range(120 - tokenizer.get_vocab_size())]
    tokenizer.add_tokens([*names, NEW])
    assert tokenizer.token_to_id(NEW) == 120
    tokenizer.save(str(folder / "tokenizer.json"))


@pytest.fixture
def classifier(checkpoint, tmp_path: Path) -> Path:
    folder = shutil.copytree(checkpoint("bert"), tmp_path / "classifier")
    add_token(folder)
    return folder


def recipe(model: Path, data: Any, targets: list[str]) -> Recipe:
    return parse({"model": str(model), "task": PAIRS, "data": data, "targets": targets})


@pytest.fixture(scope="module")
def packages(checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Packages of a classifier whose tokenizer has one token more than the model has rows."""

    def make(folder: Path) -> None:
        model = shutil.copytree(checkpoint("bert"), folder / "classifier")
        add_token(model)
        made = recipe(model, str(write_pairs(folder / "data")), CPUS)
        runner.run(brief(made), folder / "out", executor=inline.run)

    return made_once(tmp_path_factory, "token-tables", make) / "out"


def test_a_run_names_the_tokens(packages: Path) -> None:
    CliRunner().invoke(app, ["report", str(packages), "--format", "markdown"])
    said = " ".join((packages / "report.md").read_text().split())
    assert (
        f"has tokens (1) that the model has no embedding for, and texts with them are refused: {NEW}."
        in said
    )


@pytest.mark.parametrize("target", CPUS)
def test_texts_with_such_a_token_are_refused_alone(packages: Path, target: str) -> None:
    texts = [("the of", "and"), (f"the {NEW}", "and"), ("to in", "is"), ("of", NEW), ("a", "a")]
    whole = [pair for pair in texts if NEW not in " ".join(pair)]
    with octobert.load(packages / target, measure=False, alone=True) as model:
        answers, expected = list(model.stream(texts)), model(whole)
        assert [a for a in answers if "error" not in a] == expected
        assert [a["error"].partition(":")[0] for a in answers if "error" in a] == [
            "input 2",
            "input 4",
        ]
        assert answers[1]["error"] == (
            f"input 2: the text has a token that the model has no embedding for (got {NEW}, id 120, expected ids below 120); "
            "leave the text out, or train the model with its tokenizer."
        )
        assert "error" in model([texts[1]])[0]


def test_the_command_answers_the_others_and_fails(packages: Path) -> None:
    called = CliRunner().invoke(
        app,
        ["predict", str(packages / "ort-cpu"), "--pair", "the", "of", NEW, "and", "to", "in"],
    )
    assert isinstance(called.exception, TokenError)
    assert len(called.stdout.splitlines()) == 3
    assert "input 2: the text has a token" in called.stdout


@pytest.mark.parametrize("part", ["validation", "train"])
def test_rows_with_such_a_token_are_named_before_anything_is_made(
    classifier: Path, tmp_path: Path, part: str
) -> None:
    data = write_pairs(tmp_path / "data")
    lines = (data / f"{part}.tsv").read_text().splitlines()
    for number in (3, 7):
        lines[number] = f"the {NEW}\tof\t1"
    (data / f"{part}.tsv").write_text("\n".join(lines) + "\n")
    made = recipe(classifier, {"source": str(data), "calibrate": {"samples": 80}}, ["ort-cpu"])
    out = tmp_path / "out"
    with pytest.raises(
        TokenError, match=rf"{part}\.tsv, row (3|7): the text has.* and 1 more: row"
    ):
        runner.run(made, out, executor=inline.run)
    assert not any((out / ".octobert" / "store").glob("capture-*"))


def test_rows_of_evaluations_are_named(packages: Path, tmp_path: Path) -> None:
    data = write_pairs(tmp_path / "data")
    with (data / "validation.tsv").open("a") as file:
        file.write(f"the {NEW}\tof\t1\n")
    with pytest.raises(TokenError, match="row 41: the text has a token"):
        octobert.evaluate(packages / "ort-cpu", data=data)


@pytest.mark.parametrize("change", ["cls", "segment", "pair"])
def test_what_a_template_adds_is_refused_too(classifier: Path, change: str) -> None:
    stated = json.loads((classifier / "tokenizer.json").read_text())
    template = stated["post_processor"]
    if change == "cls":
        template["special_tokens"]["[CLS]"] |= {"ids": [120], "tokens": [NEW]}
    else:
        for part in template["pair" if change == "pair" else "single"]:
            (inner,) = part.values()
            inner["type_id"] = 2
    (classifier / "tokenizer.json").write_text(json.dumps(stated))
    expected = {"cls": rf"{re.escape(NEW)}, id 120, expected ids below 120"}
    segment = r"\[CLS\], segment 2, expected segments below 2"
    with pytest.raises(TokenError, match=expected.get(change, segment)):
        Tokenizer(classifier).encode([("the", "of")[: 1 + (change == "pair")]])


def test_padding_without_an_embedding_is_another_id(classifier: Path) -> None:
    """Masks hide it."""
    config = json.loads((classifier / "config.json").read_text())
    (classifier / "config.json").write_text(json.dumps(config | {"pad_token_id": 120}))
    assert Tokenizer(classifier).pad_id == 0


def test_a_model_of_one_segment_reads_pairs_as_one(checkpoint, tmp_path: Path) -> None:
    folder = shutil.copytree(checkpoint("bert"), tmp_path / "one")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"type_vocab_size": 1}))
    (row,) = Tokenizer(folder).encode([("the", "of")])
    assert not row.types.any()


@pytest.mark.parametrize("config", [None, {"vocab_size": 5000, "type_vocab_size": 9}])
def test_tables_of_files_count_more_than_configs(
    packages: Path, tmp_path: Path, config: dict[str, int] | None
) -> None:
    shutil.copy(packages / "ort-cpu" / "tokenizer.json", tmp_path)
    if config is not None:
        (tmp_path / "config.json").write_text(json.dumps(config))
    file = Path(shutil.copy(packages / "ort-cpu" / "onnx" / "model.onnx", tmp_path))
    tables = {"vocab_size": 120, "type_vocab_size": 2}
    assert open_model(file, task=PAIRS).tables == tables
    assert resolve(file).config.items() >= tables.items()
    with octobert.load(file, task=PAIRS, measure=False) as loaded:
        good, bad = loaded.stream([("the", "of"), ("the", NEW)])
    assert "label" in good
    assert bad["error"].startswith("input 2: the text has a token")


@pytest.mark.parametrize("form", ["float32", "int8"])
def test_a_row_of_a_corpus_with_such_a_token_has_no_vector(
    embedding_package: Path, tmp_path: Path, form: str
) -> None:
    """The others stand where they stood, with the vectors that they have without it."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    package = shutil.copytree(embedding_package, tmp_path / "package")
    add_token(package)
    corpus, out = tmp_path / "corpus.parquet", tmp_path / "out.parquet"
    found = {}
    for texts in (["the", f"of {NEW}", "and a"], ["the", "and a"], [NEW]):
        pq.write_table(pa.table({"text": texts}), corpus)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            if texts == [NEW]:
                with pytest.raises(
                    TokenError, match=r"corpus\.parquet, row 1: the text has a token"
                ):
                    octobert.embed(package, corpus, out, vectors=form)
                assert not out.exists()
                continue
            assert octobert.embed(package, corpus, out, vectors=form) == len(texts)
        said = [str(each.message) for each in caught if each.category is TokenWarning]
        assert len(said) == (len(texts) == 3)
        for message in said:
            assert "corpus.parquet, row 2: the text has a token" in message
            assert message.endswith("Of 3 rows 1 get no embedding, but null")
        found[len(texts)] = pq.read_table(out)["embedding"].to_pylist()
        out.unlink()
    assert found[3] == [found[2][0], None, found[2][1]]
    embedder = octobert.Embedder(package)
    with pytest.raises(TokenError, match="row 2: the text"):
        embedder.vectors(["the", f"of {NEW}"])
    assert embedder({"text": ["the", f"of {NEW}"]})["embedding"].is_null().to_pylist() == [
        False,
        True,
    ]
