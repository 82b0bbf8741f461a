"""Rows as people have them: booleans, lists of 0 and 1, headers with spaces, several bad rows, and no rows that nobody needs."""

from __future__ import annotations

import json
from pathlib import Path

import pandas
import pytest

import octobert
from octobert.config.rows import Data
from octobert.core.errors import DataError
from octobert.core.results import ModelMetadata
from octobert.data import readers
from octobert.data.sources import places
from tests.support import tasks

TWO, THREE = ("negative", "positive"), ("a", "b", "c")


def build(name: str, of_model: tuple[str, ...] = TWO, /, **options: object):
    return tasks.build(name, options, ModelMetadata(labels=of_model))


def gold(task, *cells: object, column: str = "label") -> list[object]:
    return task.gold([{"text": "x", column: cell} for cell in cells], where="dev.tsv")


@pytest.mark.parametrize("cells", [(False, True), ("false", "true"), ("FALSE", " True "), (0, 1.0)])
def test_booleans_are_the_two_classes(cells) -> None:
    assert gold(build("text-classification"), *cells) == [0, 1]
    assert gold(build("text-classification", ("LABEL_0", "LABEL_1")), *cells) == [0, 1]


def test_booleans_follow_the_classes_of_a_data_set() -> None:
    """A model of SST-2 that has positive first is read in its own order; 1 is positive in the data set."""
    task = build("sst2", ("positive", "negative"))
    assert gold(task, 1, True, "true") == [0, 0, 0]


def test_a_class_may_be_called_so() -> None:
    task = build("text-classification", ("true", "false"))
    assert gold(task, True, False, "True") == [0, 1, 0]


@pytest.mark.parametrize("labels", [[False, True], ["false", "true"]])
def test_labels_of_a_recipe_may_be_booleans_or_numbers(labels) -> None:
    task = build("text-classification", (), labels=labels)
    assert task.labels == ("false", "true")
    assert gold(task, True, "False") == [1, 0]
    assert build("text-classification", (), labels=[1, 2]).labels == ("1", "2")


def test_booleans_of_three_classes(golden) -> None:
    with golden.raises(DataError):
        gold(build("text-classification", THREE), True)


@pytest.mark.parametrize("cell", [[1.0, 0.0, 0.0], [1, 0, 0], ["a", "c"]])
def test_several_labels_for_a_model_of_one(golden, cell) -> None:
    with golden.raises(DataError):
        gold(build("text-classification", THREE), cell)
    task = build("text-classification", THREE, problem="multi-label")
    assert gold(task, cell) == [[0, 2] if cell == ["a", "c"] else [0]]


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", ".json", ".parquet"])
def test_names_of_columns_lose_their_spaces(tmp_path, suffix) -> None:
    path, frame = tmp_path / f"a{suffix}", pandas.DataFrame({"text ": ["x"], " label\u00a0": ["1"]})
    {
        ".csv": lambda: frame.to_csv(path, index=False),
        ".tsv": lambda: frame.to_csv(path, index=False, sep="\t"),
        ".jsonl": lambda: frame.to_json(path, orient="records", lines=True),
        ".json": lambda: frame.to_json(path, orient="records"),
        ".parquet": lambda: frame.to_parquet(path),
    }[suffix]()
    assert readers.read_file(path) == [{"text": "x", "label": "1"}]


def test_two_columns_that_are_alike_without_their_spaces(golden, tmp_path) -> None:
    (tmp_path / "a.csv").write_text("label, label\n1,2\n")
    with golden.raises(DataError):
        readers.read_file(tmp_path / "a.csv")


BAD = {
    "labels": ("text-classification", "label", ["maybe", 7, 1, *[f"no {i}" for i in range(20)]]),
    "two": ("text-classification", "label", [0, "maybe", 1, 7]),
    "texts": ("text-classification", "text", ["", "x", None, ["y"]]),
    "flags": ("text-classification", "labels", [["a"], "a, d", 3, ["e"]]),
    "scores": ("text-classification", "score", [1, "x", float("nan")]),
}


@pytest.mark.parametrize("kind", BAD)
def test_all_bad_rows_are_said_at_once(golden, kind) -> None:
    name, column, cells = BAD[kind]
    options = {"flags": {"problem": "multi-label"}, "scores": {"problem": "regression"}}
    labels = {"flags": THREE, "scores": ("score",)}.get(kind, TWO)
    task = build(name, labels, **options.get(kind, {}))
    rows = [{"text": "x", "label": 0, column: cell} for cell in cells]
    with golden.raises(DataError):
        (task.inputs if column == "text" else task.gold)(rows, where="dev.tsv")


def test_all_bad_questions_and_sentences(golden) -> None:
    task = build("token-classification", ("O", "B-X", "I-X"))
    rows = [{"tokens": ["a", "b"], "tags": tags} for tags in (["O"], ["O", "O"], ["O", "B-X", "O"])]
    with golden.raises(DataError):
        task.gold(rows, where="a.conll")
    answers = [{"text": ["red"], "answer_start": [start]} for start in (0, 4, 9)]
    asked = [{"question": "?", "context": "the red one", "answers": a} for a in answers]
    with golden.raises(DataError):
        build("squad").gold(asked, where="a.json")


@pytest.mark.parametrize(
    ("suffix", "lines"),
    [(".csv", ["text,label", "a", "b,1", "c,2,3"]), (".jsonl", ['{"a": 1}', "{", "[]", "7"])],
)
def test_all_bad_lines(golden, tmp_path, suffix, lines) -> None:
    path = tmp_path / f"a{suffix}"
    path.write_text("\n".join(lines))
    with golden.raises(DataError):
        readers.read_file(path)


def test_rows_that_nobody_needs_are_not_asked_for(golden, tmp_path) -> None:
    (tmp_path / "train.csv").write_text("text,label\na,0\n")
    settings = Data(source=str(tmp_path))
    assert places(settings, evaluate=False).evaluate is None
    with golden.raises(DataError):
        places(settings)
    # A split that the user names is wanted, and one that is there is kept apart.
    with golden.raises(DataError):
        places(Data(source=str(tmp_path), evaluate={"from": "test"}), evaluate=False)
    (tmp_path / "dev.csv").write_text("text,label\nb,0\n")
    assert str(places(settings, evaluate=False).evaluate).endswith("dev.csv")


def test_a_run_that_measures_nothing_needs_a_training_split_only(
    checkpoint, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    rows = [{" sentence1": f"the cat {i}", "sentence2 ": "the dog"} for i in range(12)]
    (data / "train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    report = octobert.quantize(
        checkpoint("bert", "sequence-classification"),
        task="text-classification",
        data=str(data),
        targets=["ort-cpu"],
        out=tmp_path / "out",
        measure=False,
    )
    assert report.data.evaluation_rows == 0
    assert (tmp_path / "out" / "ort-cpu" / "onnx" / "model_quantized.onnx").is_file()
