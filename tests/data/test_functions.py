"""Rows from functions of the user, and rows that functions of the user change or leave out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from octobert.config.loading import load, parse
from octobert.core import user_code
from octobert.core.errors import DataError, RecipeError
from octobert.data import sources
from octobert.data.sources import RowFunction
from tests.support.stages import call_of, step_of

ROWS = """
def rows(split):
    for number in range({"train": 12, "validation": 6, "dev": 4}[split]):
        yield {"content": f"the {split} text {number}", "stars": number % 2}

def preprocess(row):
    if row["content"].endswith("3"):
        return None
    return {"text": row["content"].upper(), "label": row["stars"]}
"""


def function_in(folder: Path, body: str, split: str = "train") -> RowFunction:
    (folder / "rows.py").write_text(f"def rows(split):\n    {body}\n")
    return RowFunction(
        code=user_code.at(f"{folder / 'rows.py'}:rows", "rows", where="data.source"), split=split
    )


def recipe_in(folder: Path, model: Path, **data: object) -> dict:
    (folder / "rows.py").write_text(ROWS)
    source = f"{folder / 'rows.py'}:rows"
    keys = {
        "task": "text-classification",
        "data": {"source": source, **data},
        "preprocess": f"{folder / 'rows.py'}:preprocess",
    }
    return {"model": str(model), "allow_code": True, **keys}


def test_the_rows_of_a_function_are_stored_like_others(tmp_path, checkpoint) -> None:
    step = step_of(parse(recipe_in(tmp_path, checkpoint("bert"))), "data")
    context = call_of(step, tmp_path / "run", {})
    summary = context.run()
    assert (summary["calibration_rows"], summary["evaluation_rows"], summary["left_out_rows"]) == (
        11,
        5,
        2,
    )
    assert (
        summary["source"]
        == "calibrated from rows.py:rows('train'), evaluated on rows.py:rows('validation')"
    )
    stored = json.loads((context.work / "evaluation.json").read_text())
    assert stored["inputs"][3] == ["THE VALIDATION TEXT 4"]
    assert stored["gold"] == [0, 1, 0, 0, 1]


def test_the_key_depends_on_the_files_and_on_the_splits(tmp_path, checkpoint) -> None:
    from octobert.engine.keys import key_data

    raw = recipe_in(tmp_path, checkpoint("bert"))
    before = key_data(step_of(parse(raw), "data").options)
    assert before == key_data(step_of(parse(raw), "data").options)
    dev = step_of(parse(recipe_in(tmp_path, checkpoint("bert"), evaluate="dev")), "data").options
    assert key_data(dev)["functions"] != before["functions"]
    (tmp_path / "rows.py").write_text(ROWS + "# changed\n")
    changed = key_data(step_of(parse(raw), "data").options)
    assert changed["functions"] != before["functions"]
    assert changed["preprocess"] != before["preprocess"]


def test_functions_and_files_give_different_splits(tmp_path, checkpoint) -> None:
    (tmp_path / "test.csv").write_text("content,stars\na,0\nb,1\nc,1\n")
    raw = recipe_in(tmp_path, checkpoint("bert"), test=str(tmp_path / "test.csv"), evaluate="test")
    summary = call_of(step_of(parse(raw), "data"), tmp_path / "run", {}).run()
    assert (summary["calibration_rows"], summary["evaluation_rows"]) == (11, 3)
    assert summary["source"] == "calibrated from rows.py:rows('train'), evaluated on test.csv"


def test_paths_of_code_are_relative_to_the_recipe(golden, tmp_path, monkeypatch) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "rows.py").write_text(ROWS)
    path = tmp_path / "own" / "recipe.yaml"
    path.write_text("model: m\ntask: mrpc\ndata: rows.py:rows\npreprocess: rows.py:preprocess\n")
    with golden.raises(RecipeError):
        load(path)
    recipe = load(path, ["allow_code=true"])
    assert recipe.data.source == f"{path.parent / 'rows.py'}:rows"
    assert recipe.preprocess == f"{path.parent / 'rows.py'}:preprocess"
    (tmp_path / "other.py").write_text(ROWS)
    monkeypatch.chdir(tmp_path)
    assert (
        load(path, ["allow_code=true", "preprocess=other.py:preprocess"]).preprocess
        == f"{tmp_path}/other.py:preprocess"
    )


def test_objects_of_datasets_are_rows_with_the_names_of_classes(golden, tmp_path) -> None:
    dataset = (
        "import datasets\n"
        "    features = datasets.Features({'text': datasets.Value('string'), 'label': datasets.ClassLabel(names=['no', 'yes'])})\n"
        "    data = datasets.Dataset.from_dict({'text': ['a', 'b'], 'label': [1, 0]}, features=features)\n"
    )
    expected = [
        {"text": "a", "label": "yes", "__row__": 1},
        {"text": "b", "label": "no", "__row__": 2},
    ]
    for given in ("data", "datasets.DatasetDict({'train': data})"):
        assert function_in(tmp_path, f"{dataset}    return {given}").read()[1] == expected
    function = function_in(tmp_path, f"{dataset}    return datasets.DatasetDict({{'trian': data}})")
    with golden.raises(DataError):
        function.read()


WRONG = {
    "nothing": "pass",
    "a number": "return 3",
    "columns": "return {'text': ['a']}",
    "a text": "return [{'text': 'a'}, 'b']",
    "none": "return []",
}


@pytest.mark.parametrize("body", WRONG.values(), ids=WRONG)
def test_what_is_not_rows(golden, tmp_path, body: str) -> None:
    with golden.raises(DataError):
        function_in(tmp_path, body).read()


def test_what_a_generator_raises_is_a_sentence(golden, tmp_path) -> None:
    with golden.raises(RecipeError):
        function_in(tmp_path, "yield {'text': 'a'}\n    yield {'validation': 1}[split]").read()


@pytest.mark.parametrize("body", ["return row['text']", "return None"])
def test_what_preprocess_must_not_return(golden, tmp_path, body: str) -> None:
    (tmp_path / "mine.py").write_text(f"def preprocess(row):\n    {body}\n")
    code = user_code.at(f"{tmp_path / 'mine.py'}:preprocess", "preprocess", where="preprocess")
    with golden.raises(DataError):
        sources.preprocessed([{"text": "a", "__row__": 1}], code, where="a.csv")


def test_a_package_is_evaluated_with_code_only_if_it_is_allowed(golden, finished, tmp_path) -> None:
    """Predicting with it needs no code; its manifest says what the metrics of the run were."""
    import octobert

    text = "def rows(split):\n    return [{'sentence1': f'the {i}', 'sentence2': 'of', 'label': i % 2} for i in range(9)]\n"
    (tmp_path / "mine.py").write_text(
        f"{text}\ndef right(predictions, references):\n    return (predictions == references).mean()\n"
    )
    package, code = finished[1] / "ort-cpu", str(tmp_path / "mine.py")
    for given in (
        {"data": f"{code}:rows"},
        {"data": tmp_path, "metric": f"{code}:right"},
        {"data": "d", "metric": {"evaluate": "f1"}},
    ):
        with golden.raises(RecipeError):
            octobert.evaluate(package, **given)
    judged = octobert.evaluate(
        package, f"{code}:rows", metric=["auroc", f"{code}:right"], allow_code=True
    )
    assert [score.metric for score in judged.scores["ort-cpu"]] == ["auroc", "right"]
    assert judged.comparison.metric == "auroc"
