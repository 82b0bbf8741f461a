"""Metrics that a recipe asks for: built in against scikit-learn, functions of the user, modules of `evaluate`, postprocess."""

from __future__ import annotations

import copy
import importlib.util
import warnings
from pathlib import Path

import numpy as np
import pytest
from sklearn import metrics as reference

from octobert.config.loading import parse
from octobert.config.measuring import EvaluateMetric
from octobert.core.errors import DataError, RecipeError
from octobert.core.results import ModelMetadata
from octobert.core.wording import score_text
from octobert.data.tokenization import EncodedTexts, Tokenizer
from octobert.evaluation import scoring, statistics
from octobert.tasks import Result, measured, metric_specs
from tests.support.tasks import build

ROWS = 120
NOTHING = EncodedTexts([], [])
needs_evaluate = pytest.mark.skipif(
    importlib.util.find_spec("evaluate") is None, reason="evaluate is not installed"
)


def classes(count: int, problem: str | None = None):
    """(task, outputs, gold) of texts with a model that is right more often than not."""
    generator = np.random.default_rng(count)
    task = build(
        "text-classification",
        {"problem": problem} if problem else {},
        ModelMetadata(labels=tuple("abcd"[:count])),
    )
    if problem == "multi-label":
        gold = [sorted(set(generator.integers(0, count, 2).tolist())) for _ in range(ROWS)]
        right = np.array([[k in own for k in range(count)] for own in gold])
    else:
        gold = generator.integers(0, count, ROWS).tolist()
        right = np.eye(count)[gold]
    logits = (right * 1.5 + generator.standard_normal((ROWS, count))).astype(np.float32) - (
        problem == "multi-label"
    )
    return task, {"logits": logits}, gold


def scores_of(task, outputs, gold, *names, postprocess: str | None = None):
    """Name → score, of the metrics that are asked for."""
    own = measured(task, metric_specs(names, postprocess, task))
    result = Result(outputs, NOTHING, gold)
    return {score.metric: score for score in scoring.scores(own, result, seed=0)}


def softmax(logits: np.ndarray) -> np.ndarray:
    return np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)


def code(folder: Path, text: str, function: str = "metric") -> str:
    (folder / "mine.py").write_text(text)
    return f"{folder / 'mine.py'}:{function}"


@pytest.fixture
def few_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values do not depend on them, and intervals are looked at roughly."""
    monkeypatch.setattr(statistics, "RESAMPLES", 250)


def test_metrics_of_two_classes_equal_scikit_learn(few_resamples) -> None:
    task, outputs, gold = classes(2)
    predicted = outputs["logits"].argmax(axis=1)
    expected = {
        "auroc": reference.roc_auc_score(gold, softmax(outputs["logits"])[:, 1]),
        "accuracy": reference.accuracy_score(gold, predicted),
        "f1": reference.f1_score(gold, predicted),
        "micro_f1": reference.f1_score(gold, predicted, average="micro"),
        "precision": reference.precision_score(gold, predicted),
        "recall": reference.recall_score(gold, predicted),
        "macro_precision": reference.precision_score(gold, predicted, average="macro"),
        "matthews": reference.matthews_corrcoef(gold, predicted),
    }
    found = scores_of(task, outputs, gold, *expected)
    assert {name: score.value for name, score in found.items()} == pytest.approx(expected)
    assert list(found) == list(expected)
    assert all(score.low < score.value < score.high for score in found.values())
    assert (found["auroc"].chance, found["accuracy"].chance) == (
        0.5,
        max(np.mean(gold), 1 - np.mean(gold)),
    )
    assert list(scores_of(task, outputs, gold, "mcc")) == ["matthews"]


def test_metrics_of_more_classes_and_of_labels_equal_scikit_learn(few_resamples) -> None:
    task, outputs, gold = classes(4)
    predicted = outputs["logits"].argmax(axis=1)
    expected = {
        "auroc": reference.roc_auc_score(gold, softmax(outputs["logits"]), multi_class="ovr"),
        "macro_recall": reference.recall_score(gold, predicted, average="macro"),
    }
    assert {
        n: s.value for n, s in scores_of(task, outputs, gold, *expected).items()
    } == pytest.approx(expected)
    task, outputs, gold = classes(3, "multi-label")
    right, predicted = (
        np.array([[k in own for k in range(3)] for own in gold]),
        outputs["logits"] >= 0,
    )
    expected = {
        "auroc": reference.roc_auc_score(right, outputs["logits"]),
        "accuracy": reference.accuracy_score(right, predicted),
        "micro_precision": reference.precision_score(right, predicted, average="micro"),
        "macro_recall": reference.recall_score(right, predicted, average="macro"),
    }
    assert {
        n: s.value for n, s in scores_of(task, outputs, gold, *expected).items()
    } == pytest.approx(expected)


def test_a_task_with_other_metrics_can_be_copied() -> None:
    task = build("mrpc", {})
    assert copy.copy(measured(task, metric_specs(["auroc"], None, task))).primary == "auroc"


def test_a_metric_of_the_user_gets_predictions_and_references(tmp_path) -> None:
    task, outputs, gold = classes(2)
    text = """
        import numpy as np
        def metric(predictions, references):
            assert isinstance(predictions, np.ndarray) and predictions.dtype.kind == "i"
            return (predictions == references).mean()
        def two(predictions, references):
            return {"wrong": float((predictions != references).sum()), "rows": len(predictions)}
    """
    own = code(tmp_path, text.replace("\n        ", "\n"))
    found = scores_of(task, outputs, gold, own, "accuracy", own.replace(":metric", ":two"))
    assert list(found) == ["metric", "accuracy", "two.wrong", "two.rows"]
    # The same but for the row that was not seen, which is drawn for code of others.
    both = [
        [getattr(found[name], end) for end in ("value", "low", "high")]
        for name in ("metric", "accuracy")
    ]
    assert both[0] == pytest.approx(both[1], abs=0.005)
    assert found["two.rows"].value == ROWS
    assert measured(task, metric_specs([own], None, task)).primary == "metric"


def test_tags_are_lists_of_names(tmp_path, wordpiece_folder) -> None:
    task = build("token-classification", {}, ModelMetadata(labels=("O", "B-PER", "I-PER")))
    rows = [
        {"tokens": ["the", "of", "and"], "ner_tags": ["O", "B-PER", "I-PER"]},
        {"tokens": ["a"], "ner_tags": ["O"]},
    ]
    encoded = task.encode(Tokenizer(wordpiece_folder, 64), task.inputs(rows, where="rows"))
    text = "def metric(predictions, references):\n    return float(predictions == [['O', 'B-PER', 'O'], ['O']] == references)\n"
    asked = measured(task, metric_specs([code(tmp_path, text)], None, task))
    outputs = {"logits": np.eye(3, dtype=np.float32)[[0, 0, 1, 0, 0, 0, 0, 0]]}
    gold = [["O", "B-PER", "O"], ["O"]]
    assert asked.metrics["metric"](asked.items(Result(outputs, encoded, gold))) == 1
    assert (asked.head, asked.per_token) == ("token-classification", True)


def test_answers_are_texts(tmp_path, wordpiece_folder) -> None:
    task = build("squad", {})
    rows = [
        {
            "id": "1",
            "question": "the",
            "context": "of and a",
            "answers": [{"text": "and", "answer_start": 3}],
        }
    ]
    encoded = task.encode(Tokenizer(wordpiece_folder, 64), task.inputs(rows, where="rows"))
    text = "def metric(predictions, references):\n    return float(predictions == ['and'] and references == [['and']])\n"
    asked = measured(task, metric_specs([code(tmp_path, text)], None, task))
    high = 9 * np.eye(len(encoded.flat[0]), dtype=np.float32)[4]
    outputs = {"start_logits": high, "end_logits": high}
    items = asked.items(Result(outputs, encoded, task.gold(rows, where="rows")))
    assert asked.metrics["metric"](items) == 1


def test_slow_metrics_have_fewer_resamples(tmp_path, monkeypatch) -> None:
    task, outputs, gold = classes(2)
    monkeypatch.setattr(statistics, "SECONDS", 0.0)
    slow = code(
        tmp_path,
        "def metric(predictions, references):\n    return float((predictions == references).mean())\n",
    )
    found = scores_of(task, outputs, gold, slow)["metric"]
    assert found.resamples == statistics.LEAST
    assert found.low < found.value < found.high
    asked = measured(task, metric_specs([slow], None, task))
    items = asked.items(Result(outputs, NOTHING, gold))
    # So few say nothing about the ends of a difference.
    assert statistics.paired(
        asked.metrics["metric"], items, items, asked.extremes(items), seed=0
    ) == (0.0, None, None, None)


def test_resamples_on_which_a_metric_fails_are_left_out(tmp_path) -> None:
    """As scikit-learn's AUROC fails where a resample has one class."""
    task, outputs, gold = classes(2)
    text = "def metric(predictions, references):\n    if len(references) % 2:\n        raise ValueError\n    return 1.0\n"
    found = scores_of(task, outputs, [0, *gold[1:]], code(tmp_path, text))["metric"]
    assert 200 < found.resamples < 1000


def test_a_metric_that_fails_on_all_resamples_has_no_interval(tmp_path, monkeypatch) -> None:
    task, outputs, gold = classes(2)
    monkeypatch.setattr(statistics, "SECONDS", 0.0)
    rows = len(gold)
    text = f"def metric(predictions, references):\n    if len(references) != {rows}:\n        raise ValueError\n    return 0.5\n"
    asked = measured(task, metric_specs([code(tmp_path, text)], None, task))
    items = asked.items(Result(outputs, NOTHING, [row % 2 for row in range(rows)]))
    (found,) = statistics.scores_of(
        "metric", asked.metrics["metric"], items, asked.extremes(items), seed=0
    )
    assert (found.value, found.low, found.high, found.resamples) == (0.5, None, None, 0)
    assert score_text(found) == "0.5000 [no interval]"
    assert statistics.paired(
        asked.metrics["metric"], items, items, asked.extremes(items), seed=0
    ) == (0.0, None, None, None)


def test_postprocess_makes_the_predictions(golden, tmp_path) -> None:
    task, outputs, gold = classes(2)
    own = code(
        tmp_path,
        "def post(outputs):\n    return (outputs['logits'][:, 1] > 5).astype(int)\n",
        "post",
    )
    found = scores_of(task, outputs, gold, postprocess=own)
    assert list(found) == ["accuracy", "f1", "macro_f1", "matthews"]
    assert found["accuracy"].value == pytest.approx(1 - np.mean(gold))
    own = code(tmp_path, "def post(outputs):\n    return outputs['logits'][:, 1] * 1.0\n", "post")
    expected = reference.roc_auc_score(gold, outputs["logits"][:, 1])
    assert scores_of(task, outputs, gold, "auroc", postprocess=own)["auroc"].value == pytest.approx(
        expected
    )
    with golden.raises(DataError):
        scores_of(task, outputs, gold, "accuracy", postprocess=own)


def test_several_labels_need_a_score_each(golden, tmp_path) -> None:
    task, outputs, gold = classes(3, "multi-label")
    one = code(tmp_path, "def post(outputs):\n    return outputs['logits'].max(axis=1)\n", "post")
    with golden.raises(DataError):
        scores_of(task, outputs, gold, "auroc", postprocess=one)
    (tmp_path / "mine.py").write_text(
        "def post(outputs):\n    return outputs['logits'].astype(float)\n"
    )
    assert "auroc" in scores_of(task, outputs, gold, "auroc", postprocess=one)


@pytest.mark.parametrize("body", ["return outputs['logits'][:3]", "pass", "return 1.0"])
def test_what_postprocess_must_not_return(golden, tmp_path, body: str) -> None:
    task, outputs, gold = classes(2)
    with golden.raises(DataError):
        scores_of(
            task,
            outputs,
            gold,
            postprocess=code(tmp_path, f"def post(outputs):\n    {body}\n", "post"),
        )


@pytest.mark.parametrize("value", ["'good'", "None", "{}", "[1, 2]", "{'a': 'b'}"])
def test_what_a_metric_must_not_return(golden, tmp_path, value: str) -> None:
    task, outputs, gold = classes(2)
    with golden.raises(DataError):
        scores_of(
            task,
            outputs,
            gold,
            code(tmp_path, f"def metric(predictions, references):\n    return {value}\n"),
        )


def test_metrics_that_a_recipe_cannot_have(golden) -> None:
    task = classes(2)[0]
    with golden.raises(RecipeError):
        metric_specs(["acuracy"], None, task)
    with pytest.raises(RecipeError, match=r'the task has no metric "f1"'):
        metric_specs(["f1"], None, classes(3)[0])
    with pytest.raises(RecipeError, match="two metrics have the same name"):
        metric_specs(["mcc", "matthews"], None, task)
    raw = {"model": "m", "data": "d", "task": {"text-classification": {"metric": "f1"}}}
    with golden.raises(RecipeError):
        parse({**raw, "metric": "auroc"})
    for metric in (3, {"evalute": "f1"}, [["f1"]]):
        with golden.raises(RecipeError):
            parse({"model": "m", "data": "d", "task": "mrpc", "metric": metric})


def test_without_evaluate_its_metrics_name_the_extra(golden, monkeypatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with golden.raises(RecipeError):
        metric_specs([EvaluateMetric(evaluate="f1")], None, classes(2)[0])


MODULE = """
import datasets
import evaluate


class Share(evaluate.Metric):
    def _info(self):
        features = datasets.Features({"%s": datasets.Value("float32"), "references": datasets.Value("int32")})
        return evaluate.MetricInfo(description="", citation="", features=features)

    def _compute(self, %s, references, scale=1.0):
        return {"share": scale * sum(round(p) == r for p, r in zip(%s, references)) / len(references)}
"""


@needs_evaluate
@pytest.mark.parametrize("name", ["predictions", "prediction_scores"])
def test_a_local_module_of_evaluate(tmp_path, monkeypatch, name: str) -> None:
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr(statistics, "SECONDS", 0.0)
    folder = tmp_path / f"share_{name}"
    folder.mkdir()
    (folder / f"share_{name}.py").write_text(MODULE % (name, name, name))
    task, outputs, gold = classes(2)
    asked = EvaluateMetric(evaluate={"name": str(folder), "scale": 2.0})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = scores_of(task, outputs, gold, asked)
    expected = 2 * np.mean(outputs["logits"].argmax(axis=1) == gold)
    assert found[f"share_{name}"].value == pytest.approx(expected)


@needs_evaluate
def test_a_metric_of_evaluate_that_is_not_there(golden, tmp_path) -> None:
    task, outputs, gold = classes(2)
    with golden.raises(RecipeError):
        scores_of(task, outputs, gold, EvaluateMetric(evaluate=str(tmp_path / "nothing")))
