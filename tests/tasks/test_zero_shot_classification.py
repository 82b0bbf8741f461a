"""Zero-shot classification against the pipeline of transformers, with one label and with several, and models without entailment."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

import octobert
from octobert.config.loading import parse
from octobert.core.errors import DataError
from octobert.core.results import ModelMetadata
from octobert.engine.executors import inline
from octobert.pipeline import runner
from octobert.tasks.zero_shot_classification import classes_of
from tests.support.checkpoints import make_checkpoint
from tests.support.runs import FAST
from tests.support.tasks import build

# Sums of float32 in another order, through a softmax.
SAME_FLOAT = 1e-5
LABELS = ["the of", "and a", "was his"]
TEXTS = ["he had this to the of", "it is you", "and a was"]
NLI = {0: "contradiction", 1: "neutral", 2: "entailment"}


@pytest.fixture(scope="module")
def nli(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(
        tmp_path_factory.mktemp("nli") / "model",
        "bert",
        "sequence-classification",
        tuple(NLI.values()),
    )


def rows_in(folder: Path) -> Path:
    folder.mkdir()
    for name, start in (("train", 0), ("validation", 40)):
        rows = [
            {"text": f"{TEXTS[i % 3]} {i}", "label": LABELS[i % 3]}
            for i in range(start, start + 40)
        ]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("several", [False, True])
def test_answers_are_those_of_the_pipeline(nli, tmp_path: Path, several: bool) -> None:
    from transformers import pipeline

    options = {"labels": LABELS, "template": "it is {}", "several": several}
    recipe = parse(
        {
            "model": str(nli),
            "task": {"zero-shot-classification": options},
            "data": str(rows_in(tmp_path / "data")),
            "targets": ["ort-cpu"],
            "baselines": ["ort-f32"],
            "benchmark": FAST,
        }
    )
    report = runner.run(recipe, tmp_path / "out", executor=inline.run)
    assert report.task.labels == tuple(NLI.values())
    assert report.of("ort-cpu").scores[0].metric == ("micro_f1" if several else "accuracy")
    folder = shutil.copytree(tmp_path / "out" / "ort-cpu", tmp_path / "float")
    model = octobert.load(
        folder / "onnx" / "model.onnx", task={"zero-shot-classification": options}
    )
    asked = pipeline("zero-shot-classification", str(nli), device="cpu")
    for text, answer in zip(TEXTS, model(TEXTS), strict=True):
        expected = asked(text, LABELS, hypothesis_template="it is {}", multi_label=several)
        right = dict(zip(expected["labels"], expected["scores"], strict=True))
        assert answer["scores"] == pytest.approx(right, abs=SAME_FLOAT)
        if not several:
            assert answer["label"] == expected["labels"][0]
    packaged = octobert.load(tmp_path / "out" / "ort-cpu")
    assert packaged(TEXTS[0])[0]["scores"].keys() == set(LABELS)


def test_classes_are_found_by_their_names(golden) -> None:
    assert classes_of(["contradiction", "neutral", "entailment"], None) == (2, 0)
    assert classes_of(["ENTAILMENT", "not_entailment"], None) == (0, 1)
    assert classes_of(["neutral", "entailment", "contradiction"], None) == (1, 2)
    assert classes_of(["LABEL_0", "LABEL_1", "LABEL_2"], "LABEL_1") == (1, 0)
    for labels, name in (
        (["LABEL_0", "LABEL_1"], None),
        (["yes", "no"], "yess"),
        (["entailment"], None),
        ([], None),
    ):
        with golden.raises(DataError):
            classes_of(labels, name)


@pytest.mark.parametrize(
    "options",
    [
        {"labels": ["a", "a"]},
        {"labels": ["a"], "template": "no place"},
        {"labels": ["a"], "template": "{} and {}"},
    ],
)
def test_options_that_say_nothing_are_refused(options: dict) -> None:
    with pytest.raises(ValidationError):
        build("zero-shot-classification", options)


def test_a_task_without_labels_is_refused(golden) -> None:
    with golden.raises(DataError):
        build("zero-shot-classification", {}, ModelMetadata(labels=tuple(NLI.values())))


def test_a_label_that_rows_do_not_know_is_named(golden) -> None:
    task = build(
        "zero-shot-classification", {"labels": LABELS}, ModelMetadata(labels=tuple(NLI.values()))
    )
    assert task.gold([{"text": "a", "label": "and a"}], where="rows") == [1]
    with golden.raises(DataError):
        task.gold([{"text": "a", "label": "another"}], where="rows")
    with golden.raises(DataError):
        task.parse(("a", "b"), where="here")
    with golden.raises(DataError):
        task.targets(None, [])


def test_one_label_is_weighed_against_its_contradiction() -> None:
    labels = tuple(NLI.values())
    task = build("zero-shot-classification", {"labels": ["a"]}, ModelMetadata(labels=labels))
    assert type(task).__name__ == "SeveralLabels"
    assert (task.entailed, task.contradicted) == (2, 0)
    assert np.isfinite(task.extremes(np.array([[1.0, 0.0]]))).all()
