"""Labels as rows have them: numbers that do not start at 0, spellings, and classes that no row has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import yaml

from octobert.core.errors import DataError
from octobert.core.results import ModelMetadata
from octobert.data import readers
from octobert.data.tokenization import EncodedTexts
from octobert.evaluation import scoring
from octobert.models.source import read_metadata, resolve
from octobert.tasks import Result
from tests.support.tasks import build

TWO, FIVE = ("LABEL_0", "LABEL_1"), tuple(f"LABEL_{index}" for index in range(5))


def task(
    of_model: tuple[str, ...] = TWO, name: str = "text-classification", **options: object
) -> Any:
    return build(name, options, ModelMetadata(labels=of_model))


def gold(one: Any, *cells: object, column: str = "label") -> list[object]:
    return one.gold(
        [{"text": "x", "sentence": "x", column: cell} for cell in cells], where="dev.tsv"
    )


FOREIGN = {
    "from 1": (TWO, [1, 2]),
    "texts from 1": (TWO, ["1", "2", "1"]),
    "floats from 1": (TWO, [1.0, 2.0]),
    "signs": (TWO, [-1, 1]),
    "signs as texts": (TWO, ["+1", "-1"]),
    "signs as floats": (TWO, ["-1.0", "1.0"]),
    "signs and 0": (("a", "b", "c"), [-1, 0, 1]),
    "0 and 4": (TWO, [0, 4, 0]),
    "5 from 1": (FIVE, [1, 2, 3, 4, 5]),
    "5 from 1 with some absent": (FIVE, ["5", "2"]),
    "twelve from 1": (tuple(f"c{index}" for index in range(12)), [12, 3]),
    "one too many": (TWO, [0, 1, 2]),
    "far too many": (TWO, [7]),
    "no label": (TWO, [0, 1, -1]),
    "no label at all": (TWO, [-1, -1]),
    "scores": (FIVE, ["3.5", "1.0"]),
    "signs, of unknown classes": ((), [-1, 1]),
    "no label, of unknown classes": ((), [-1, -1]),
    "names": (TWO, ["neg", "pos"]),
    "numbers of classes with names that are numbers": (("1", "2"), [0, 1]),
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_labels_that_the_model_does_not_have(golden, kind: str) -> None:
    labels, cells = FOREIGN[kind]
    with golden.raises(DataError):
        gold(task(labels), *cells)


@pytest.mark.parametrize("kind", ["from 1", "signs", "texts from 1", "5 from 1"])
def test_the_labels_that_the_sentence_names_mend_it(kind: str) -> None:
    labels, cells = FOREIGN[kind]
    with pytest.raises(DataError) as caught:
        gold(task(labels), *cells)
    named = yaml.safe_load(str(caught.value.fix).split("task: ")[1])["text-classification"][
        "labels"
    ]
    order = sorted({int(cell) for cell in cells})
    assert gold(task(labels, labels=named), *cells) == [order.index(int(cell)) for cell in cells]


@pytest.mark.parametrize("name", ["sst2", "imdb"])
def test_data_sets_with_fixed_classes(golden, name: str) -> None:
    with golden.raises(DataError):
        gold(task(TWO, name), 1, 2)


def test_several_labels_from_1(golden) -> None:
    one = task(("a", "b", "c"), problem="multi-label")
    with golden.raises(DataError):
        gold(one, [1, 3], [2], column="labels")
    with golden.raises(DataError):
        gold(one, "1, 3", column="labels")
    assert gold(one, [0, 2], ["1.0"], " A , c", column="labels") == [[0, 2], [1], [0, 2]]


def test_numbers_of_classes_may_be_absent() -> None:
    assert gold(task(FIVE), 0, 4, "2", "2.0", 3.0) == [0, 4, 2, 2, 3]
    assert gold(task(FIVE), 1, 4) == [1, 4]


def test_spellings_of_names() -> None:
    one = task((" World News", "sci/tech"))
    assert gold(one, "world  news", "World News ", "SCI/Tech", "wOrLd\u00a0nEwS") == [0, 0, 1, 0]


def test_class_labels_of_datasets(golden, tmp_path: Path) -> None:
    """Yelp polarity on the hub calls its classes 1 and 2."""
    features = datasets.Features(
        {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["1", "2"])}
    )
    rows = datasets.Dataset.from_dict({"text": ["a", "b"], "label": [0, 1]}, features=features)
    rows.to_parquet(str(tmp_path / "dev.parquet"))
    read = readers.read_file(tmp_path / "dev.parquet")
    with golden.raises(DataError):
        task().gold(read, where="dev.parquet")
    assert task(labels=["1", "2"]).gold(read, where="dev.parquet") == [0, 1]


@pytest.mark.parametrize(
    ("config", "labels"),
    [
        ({"architectures": ["BertForSequenceClassification"]}, TWO),
        ({"architectures": ["BertForSequenceClassification"], "num_labels": 5}, FIVE),
        ({"architectures": ["BertForTokenClassification"]}, TWO),
        ({"architectures": ["BertForMaskedLM"]}, ()),
        ({}, ()),
    ],
)
def test_a_config_without_names_of_classes(
    tmp_path: Path, config: dict[str, object], labels: tuple[str, ...]
) -> None:
    """`save_pretrained` of transformers leaves out two names that it would make itself."""
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert", **config}))
    assert read_metadata(resolve(tmp_path)).labels == labels


def _scored(one: Any, meant: np.ndarray, numbers: np.ndarray, classes: int) -> Any:
    texts = EncodedTexts([("a",)] * len(meant), [[]] * len(meant))
    rows = [{"text": "a", "label": int(number)} for number in numbers]
    result = Result({"logits": np.eye(classes)[meant]}, texts, one.gold(rows, where="dev.tsv"))
    return scoring.scores(one, result, seed=0)


def test_no_class_is_made_beyond_the_logits(golden) -> None:
    """Of an ONNX file without a config nobody knows how many classes there are before it runs."""
    meant = np.arange(200) % 2
    with golden.raises(DataError):
        _scored(task(()), meant, meant + 1, 2)
    assert _scored(task(()), meant, meant, 2)[0].value == 1


@pytest.mark.parametrize("absent", [{5}, {5, 3}, {1, 5}])
def test_labels_from_1_whose_last_class_no_row_has(absent: set[int]) -> None:
    """Numbers say nothing then; the answers do."""
    meant = np.array([index for index in np.arange(400) % 5 if index + 1 not in absent])
    before = _scored(task(FIVE), meant, meant + 1, 5)
    assert "labels: ['1', '2', '3', '4', '5']" in before[0].order
    after = _scored(task(FIVE, labels=["1", "2", "3", "4", "5"]), meant, meant + 1, 5)
    assert after[0].value == 1
    assert not after[0].order
