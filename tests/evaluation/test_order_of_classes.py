"""Rows that number the classes otherwise than the model: said where it is plain, and nowhere else."""

from __future__ import annotations

import numpy as np
import pytest

from octobert.core.results import ModelMetadata
from octobert.data.tokenization import EncodedTexts
from octobert.evaluation import scoring
from octobert.evaluation.statistics import ORDER_ERROR, reordered
from octobert.report import summary
from octobert.tasks import Result
from octobert.tasks._rows import Table
from tests.support.tasks import build

NLI = ("contradiction", "entailment", "neutral")


def answers(
    chance: np.random.Generator, rows: int, shares: np.ndarray, accuracy: float
) -> np.ndarray:
    """Rows with classes of these shares, and predictions that are right this often and else of a class drawn by the shares."""
    right = chance.choice(len(shares), rows, p=shares)
    guessed = chance.choice(len(shares), rows, p=shares)
    predicted = np.where(chance.random(rows) < accuracy, right, guessed)
    return np.stack([predicted, right], axis=1)


@pytest.mark.parametrize("classes", [2, 3, 6, 20])
def test_false_alarms_are_rarer_than_stated(classes: int) -> None:
    """Models that know nothing, little or much, on few and many rows, with even and uneven classes; and constant ones."""
    chance, alarms, tries = np.random.default_rng(0), 0, 0
    for rows in (16, 64, 400):
        for concentration in (0.3, 100):
            for accuracy in (0.0, 0.3, 0.9):
                for _ in range(60):
                    shares = chance.dirichlet([concentration] * classes)
                    items = answers(chance, rows, shares, accuracy)
                    constant = items.copy()
                    constant[:, 0] = chance.integers(classes)
                    alarms += bool(reordered(items, classes)) + bool(reordered(constant, classes))
                    tries += 2
    assert tries > 1 / ORDER_ERROR
    assert alarms <= ORDER_ERROR * tries


@pytest.mark.parametrize(("classes", "rows"), [(2, 200), (3, 150), (6, 150), (20, 400)])
def test_another_order_is_found(classes: int, rows: int) -> None:
    chance = np.random.default_rng(1)
    for _ in range(50):
        order = chance.permutation(classes)
        items = answers(chance, rows, np.full(classes, 1 / classes), 0.85)
        items[:, 0] = np.argsort(order)[items[:, 0]]
        found = reordered(items, classes)
        assert (found == tuple(order)) if np.any(order != np.arange(classes)) else found == ()


def test_an_order_that_makes_few_rows_more_right_is_not_said() -> None:
    """Two of many classes that are confused are a weakness of the model."""
    items = answers(np.random.default_rng(2), 5_000, np.full(30, 1 / 30), 1.0)
    items[:, 0] = np.select([items[:, 0] == 3, items[:, 0] == 4], [4, 3], items[:, 0])
    assert reordered(items, 30) == ()


def test_the_labels_that_the_sentence_names_mend_it(golden) -> None:
    """MNLI's file has 0 for entailment; the model's first class is contradiction."""
    chance = np.random.default_rng(3)
    meant = chance.integers(0, 3, 200)
    numbers = {"contradiction": 2, "entailment": 0, "neutral": 1}
    rows = [{"text": "a", "label": numbers[NLI[index]]} for index in meant]
    logits = np.eye(3)[np.where(chance.random(200) < 0.9, meant, chance.integers(0, 3, 200))]
    texts = EncodedTexts([("a",)] * 200, [[]] * 200)

    def scores(**options: object):
        task = build("text-classification", options, ModelMetadata(labels=NLI))
        gold = task.read_gold(Table(rows, where="rows"))
        result = Result({"logits": logits}, texts, gold)
        return task, scoring.scores(task, result, seed=0), result

    task, before, result = scores()
    comparison = scoring.compare(task, ("ort-cpu", "ort-f32"), (result, result), seed=0)
    golden("\n".join(summary.chance({"ort-f32": before}, comparison)))
    _, after, _ = scores(labels=["2", "0", "1"])
    assert before[0].value < 0.1
    assert after[0].value > 0.9
    assert "labels: ['2', '0', '1']" in before[0].order
    assert not any(score.order for score in after)
    assert summary.chance({"ort-f32": after}, comparison) == []
