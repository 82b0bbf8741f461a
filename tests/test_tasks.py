"""Tasks: a contract for all of them, metrics against scikit-learn and SciPy, and bad rows."""

from __future__ import annotations

import numpy as np
import pytest
from pydantic import ValidationError

from octobert import measure, plugins
from octobert.errors import DataError
from octobert.tasks import _classification, _embedding


def build(name: str, of_model: tuple[str, ...] = (), **options: object):
    module = plugins.load("tasks", name)
    return module.build(module.Options(**options), of_model)


def unit(count: int, size: int = 16, seed: int = 0) -> np.ndarray:
    vectors = np.random.default_rng(seed).standard_normal((count, size))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def example(name: str):
    """(task, rows, perfect outputs, shuffled outputs) of a task."""
    generator = np.random.default_rng(1)
    if name == "embedding":
        task = build(name)
        first, second = unit(40, seed=1), unit(40, seed=2)
        gold = (first * second).sum(1)
        rows = [{"sentence1": f"a {i}", "sentence2": f"b {i}", "score": str(g)} for i, g in enumerate(gold)]
        shuffled = np.concatenate([first, generator.permutation(second)])
        return task, rows, {"sentence_embedding": np.concatenate([first, second])}, {"sentence_embedding": shuffled}
    task = build(name, ("no", "yes"))
    columns, label = task.text[0], task.label[0]
    gold = generator.integers(0, 2, 60)
    rows = [{**{c: f"{c} {i}" for c in columns}, label: str(g)} for i, g in enumerate(gold)]
    perfect = np.eye(2, dtype=np.float32)[gold]
    return task, rows, {"logits": perfect}, {"logits": generator.permutation(perfect)}


@pytest.mark.parametrize("name", plugins.names("tasks"))
class TestEveryTask:
    def test_perfect_predictions_score_one_and_shuffled_ones_do_not(self, name: str) -> None:
        task, rows, perfect, shuffled = example(name)
        gold = np.array(task.gold(rows, where="rows"))
        inputs = task.inputs(rows, where="rows")
        for metric, function in task.metrics.items():
            assert function(task.items(perfect, inputs), gold) == pytest.approx(1.0), metric
            assert function(task.items(shuffled, inputs), gold) < 0.8, metric

    def test_inputs_are_one_text_or_a_pair(self, name: str) -> None:
        task, rows, perfect, _ = example(name)
        inputs = task.inputs(rows, where="rows")
        assert len(inputs) == len(next(iter(perfect.values())))
        assert all(1 <= len(text) <= 2 for text in inputs)

    def test_a_model_follows_itself(self, name: str) -> None:
        task, rows, perfect, shuffled = example(name)
        inputs = task.inputs(rows, where="rows")
        assert task.fidelity(perfect, perfect, inputs).agreement == pytest.approx(1.0)
        assert task.fidelity(perfect, perfect, inputs).error == 0.0
        assert task.fidelity(shuffled, perfect, inputs).agreement < 0.95

    def test_a_missing_column_is_named(self, name: str) -> None:
        task, rows, _, _ = example(name)
        column = task.columns[0] if name == "embedding" else task.text[0][0]
        broken = [{(k + "x" if k == column else k): v for k, v in row.items()} for row in rows]
        named = f'there is no column "{column}".*did you mean "{column}x"'
        usual = "no column of texts is recognised .*expected .*name yours with the task's option text"
        with pytest.raises(DataError, match=f"{named}|{usual}"):
            task.inputs(broken, where="rows")

    def test_no_rows(self, name: str) -> None:
        with pytest.raises(DataError, match="there are no rows"):
            example(name)[0].inputs([], where="rows")

    def test_an_empty_text_is_named(self, name: str) -> None:
        task, rows, _, _ = example(name)
        column = task.columns[0] if name == "embedding" else task.text[0][0]
        rows[3] = {**rows[3], column: "  "}
        with pytest.raises(DataError, match=f'rows, row 4, column "{column}": the text is empty'):
            task.inputs(rows, where="rows")

    def test_it_answers(self, name: str) -> None:
        task, _, perfect, _ = example(name)
        answer = task.answer(perfect, 0)
        assert set(answer) in ({"label", "score"}, {"embedding"})


def test_classification_metrics_equal_scikit_learn() -> None:
    from sklearn import metrics

    generator = np.random.default_rng(0)
    gold, ours = generator.integers(0, 2, 500), generator.integers(0, 2, 500)
    assert _classification.accuracy(ours, gold) == pytest.approx(metrics.accuracy_score(gold, ours), abs=1e-12)
    assert _classification.f1(ours, gold) == pytest.approx(metrics.f1_score(gold, ours), abs=1e-12)
    assert _classification.matthews(ours, gold) == pytest.approx(metrics.matthews_corrcoef(gold, ours), abs=1e-12)
    assert _classification.f1(np.zeros(5), np.zeros(5)) == 0.0


def test_ranks_equal_a_full_sort() -> None:
    task = build("embedding", query="q", document="d")
    first, second = unit(700, seed=1), unit(700, seed=2)
    second[:300] += first[:300]
    inputs = [(f"query {i}",) for i in range(700)] + [(f"document {i}",) for i in range(700)]
    ranks = task.items({"sentence_embedding": np.concatenate([first, second])}, inputs)
    similarity = first.astype(np.float64) @ (second / np.linalg.norm(second, axis=1, keepdims=True)).T.astype(np.float64)
    expected = [1 + int(np.sum(similarity[i] > similarity[i, i] + 1e-9)) for i in range(700)]
    np.testing.assert_array_equal(ranks, expected)
    assert _embedding.mrr(np.array([1, 2, 10, 11]), np.zeros(4)) == pytest.approx((1 + 0.5 + 0.1) / 4)
    assert _embedding.recall_at_10(np.array([1, 2, 10, 11]), np.zeros(4)) == 0.75


def test_a_model_that_says_the_same_of_everything_ranks_last() -> None:
    task = build("embedding", query="q", document="d")
    same = np.ones((20, 4), dtype=np.float32)
    inputs = [(str(i),) for i in range(20)]
    assert task.items({"sentence_embedding": same}, inputs).min() == 10


def test_a_document_that_several_queries_share_is_one_document() -> None:
    task = build("embedding", query="q", document="d")
    first = unit(6)
    second = np.concatenate([first[:1]] * 3 + [first[3:]])
    inputs = [(f"q{i}",) for i in range(6)] + [("same",)] * 3 + [(f"d{i}",) for i in range(3)]
    ranks = task.items({"sentence_embedding": np.concatenate([second, second])}, inputs)
    np.testing.assert_array_equal(ranks, np.ones(6))


def test_texts_without_gold_are_judged_by_fidelity_alone() -> None:
    task = build("embedding", text="body")
    assert task.inputs([{"body": "a"}], where="rows") == [("a",)]
    assert task.gold([{"body": "a"}], where="rows") == []
    assert task.primary is None


@pytest.mark.parametrize("value", ["2", "maybe", "-1", "1.5", ""])
def test_a_label_that_is_not_in_the_list(value: str) -> None:
    task = build("text-classification", ("no", "yes"))
    with pytest.raises(DataError, match=r'rows, row 1, column "label": the label is not one of the task\'s .*expected no, yes'):
        task.gold([{"text": "a", "label": value}], where="rows")


def test_labels_by_name_by_index_and_as_numbers() -> None:
    task = build("text-classification", ("no", "yes", "maybe"))
    rows = [{"text": "a", "label": v} for v in ("maybe", "1", 0, 2.0)]
    assert task.gold(rows, where="rows") == [2, 1, 0, 2]
    assert "f1" not in task.metrics
    named = build("text-classification", ("LABEL_0", "LABEL_1"), labels=("bad", "good"))
    assert named.gold([{"text": "a", "label": "good"}], where="rows") == [1]


def test_another_number_of_labels_than_classes() -> None:
    with pytest.raises(DataError, match=r"another number of labels than the model has classes \(got 3 \(a, b, c\), expected 2"):
        build("text-classification", ("no", "yes"), labels=("a", "b", "c"))


def test_pinned_tasks_have_their_own_labels_and_number_of_classes() -> None:
    assert build("mrpc").labels == ("not_equivalent", "equivalent")
    assert build("mrpc", ("LABEL_0", "LABEL_1")).labels == ("not_equivalent", "equivalent")
    assert build("sst2", ("NEGATIVE", "POSITIVE")).labels == ("NEGATIVE", "POSITIVE")
    with pytest.raises(DataError, match="another number of labels than the model has classes"):
        build("mrpc", ("a", "b", "c"))


def test_a_cell_that_is_a_list_is_no_text() -> None:
    with pytest.raises(DataError, match=r'row 1, column "text": the cell is not a text \(got \[\'a\'\]\)'):
        build("text-classification", ("no", "yes")).inputs([{"text": ["a"]}], where="rows")


def test_labels_must_differ() -> None:
    with pytest.raises(ValidationError, match="labels must differ"):
        build("text-classification", labels=("a", "a"))


def test_f1_needs_two_classes() -> None:
    with pytest.raises(DataError, match=r"F1 is a metric of two classes \(got 3 classes, expected macro_f1"):
        build("text-classification", ("a", "b", "c"), metric="f1")


def test_an_undefined_metric_is_refused() -> None:
    with pytest.raises(DataError, match=r"spearman is not defined on the evaluated rows \(got 3 rows, 1 distinct gold"):
        measure.score("spearman", lambda a, b: float("nan"), np.arange(3.0), np.ones(3), seed=0)


def test_errors_name_the_row_of_the_file_after_sampling() -> None:
    from octobert import data

    rows = data.numbered([{"text": "a", "label": "no"}] * 9 + [{"text": "a", "label": "what"}])
    with pytest.raises(DataError, match='rows, row 10, column "label"'):
        build("text-classification", ("no", "yes")).gold(rows[9:], where="rows")


def test_a_score_that_is_no_number() -> None:
    with pytest.raises(DataError, match=r'row 1, column "score": the score is not a number \(got \'high\'\)'):
        build("embedding").gold([{"sentence1": "a", "sentence2": "b", "score": "high"}], where="rows")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"query": "q"}, "query and document go together"),
        ({"text": "a", "score": "s"}, "a score needs two text columns"),
        ({"text": ("a",), "query": "q", "document": "d"}, "not both"),
    ],
)
def test_contradictory_embedding_options(options: dict, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        plugins.load("tasks", "embedding").Options(**options)


def test_bootstrap_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    generator, covered = np.random.default_rng(0), 0
    for seed in range(60):
        gold = np.ones(200)
        items = (generator.random(200) < 0.8).astype(float)
        found = measure.score("accuracy", _classification.accuracy, items, gold, seed=seed)
        covered += found.low <= 0.8 <= found.high
    # 95 % of 60 is 57; fewer than 50 has a probability below 0.001.
    assert covered >= 50


def test_a_paired_difference_of_equal_models_is_nothing() -> None:
    gold, items = np.array([0, 1] * 50), np.array([0, 1, 1, 1] * 25)
    assert measure.paired(_classification.accuracy, items, items, gold, seed=0) == (0.0, 0.0, 0.0, 1.0)


def test_mcnemar_equals_the_binomial_by_hand() -> None:
    gold = np.zeros(30)
    ours, theirs = np.zeros(30), np.zeros(30)
    ours[:9], theirs[9:10] = 1, 1
    # Nine rows only the other gets right, one only ours: two-sided binomial of 1 in 10.
    assert measure.mcnemar(ours, theirs, gold) == pytest.approx(2 * (1 + 10) / 2**10)
    assert measure.mcnemar(ours, ours, gold) == 1.0
