"""Ranking: rows in all their forms, metrics against NumPy, BEIR folders, ties, similarities, and bad rows."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from octobert.config.loading import parse
from octobert.config.rows import Data
from octobert.core.errors import DataError, ModelError
from octobert.core.results import ModelMetadata
from octobert.data import readers, sources
from octobert.data.tokenization import EncodedTexts
from octobert.pipeline.resolve import resolve
from octobert.tasks import Result, Table, check_columns
from octobert.tasks._ranking import METRICS
from octobert.tasks._vectors import similarities
from tests.support import tasks
from tests.support.beir import write_beir

# Metrics are the same sums in another order.
ROUNDING = 1e-12


def build(name: str = "embedding", metadata: ModelMetadata | None = None, **options: object):
    if name == "embedding":
        options = {"query": "query", "document": "document", **options}
    return tasks.build(name, options, metadata or ModelMetadata())


def result(task, rows: list, outputs: np.ndarray, *, name: str = "sentence_embedding") -> Result:
    texts = task.inputs(rows, where="rows")
    return Result({name: outputs}, EncodedTexts(texts, []), task.gold(rows, where="rows"))


def values(task, made: Result) -> dict[str, float]:
    items = task.items(made)
    return {name: metric(items) for name, metric in task.metrics.items()}


def reference(order: list[int], levels: list[int]) -> dict[str, float]:
    """The metrics of one ranking: levels of the documents, and the documents in the order of the ranking."""
    gains, ideal = np.array([levels[i] for i in order]), np.sort(levels)[::-1]
    discount = 1 / np.log2(np.arange(2, 12))
    right = gains > 0
    total = sum(level > 0 for level in levels)
    precision = np.cumsum(right) / np.arange(1, len(order) + 1)
    first = np.flatnonzero(right[:10])
    return {
        "ndcg@10": float(gains[:10] @ discount[: len(gains[:10])])
        / float(ideal[:10] @ discount[: len(ideal[:10])]),
        "mrr@10": 1 / (first[0] + 1) if len(first) else 0.0,
        "map@100": float((precision * right)[:100].sum()) / total,
        "recall@1": float(right[:1].sum()) / total,
        "recall@10": float(right[:10].sum()) / total,
        "recall@100": float(right[:100].sum()) / total,
    }


def test_metrics_of_graded_relevance_equal_numpy() -> None:
    generator = np.random.default_rng(0)
    documents = [f"document {i}" for i in range(150)]
    levels = {f"query {i}": generator.choice(4, 150, p=[0.9, 0.04, 0.03, 0.03]) for i in range(20)}
    rows = [
        {"query": query, "document": documents, "relevance": own.tolist()}
        for query, own in levels.items()
    ]
    vectors = generator.standard_normal((170, 8)).astype(np.float32)
    task = build()
    made = result(task, rows, vectors)
    scores = similarities("cosine", vectors[:20], vectors[20:])
    expected = [
        reference(np.argsort(-row).tolist(), own.tolist())
        for row, own in zip(scores, levels.values(), strict=True)
    ]
    for name, value in values(task, made).items():
        assert value == pytest.approx(np.mean([each[name] for each in expected]), abs=ROUNDING)
    assert list(METRICS) == list(expected[0])


def test_a_perfect_retriever_of_several_relevant_documents_is_perfect() -> None:
    """Rows of one query used to count each other's documents as errors."""
    rows = [{"query": q, "document": d} for q, d in (("q1", "A"), ("q2", "C"), ("q1", "B"))]
    task = build()
    assert task.inputs(rows, where="rows") == [("q1",), ("q2",), ("A",), ("B",), ("C",)]
    x, y = [1.0, 0.0], [0.0, 1.0]
    figures = values(task, result(task, rows, np.array([x, y, x, x, y], dtype=np.float32)))
    # Recall at 1 of a query with two relevant documents is a half at most.
    assert figures.pop("recall@1") == 0.75
    assert set(figures.values()) == {1.0}


def test_rows_of_a_query_are_one_row() -> None:
    task = build(negative="wrong")
    rows = [
        {"query": "q1", "document": "A", "relevance": "1", "wrong": None},
        {"query": "q2", "document": ["B", "C"], "relevance": [2, 0], "wrong": ["D"]},
        {"query": "q1", "document": "B", "relevance": 0.0, "wrong": "A"},
    ]
    grouped = task.grouped(Table(rows, "rows"))
    assert [(row["query"], row["document"], row["relevance"]) for row in grouped] == [
        ("q1", ["A", "B"], [1, 0]),
        ("q2", ["B", "C", "D"], [2, 0, 0]),
    ]
    assert task.grouped(Table(grouped, "rows")) == grouped
    assert task.row_texts(Table(rows, "rows")) == [("q1", "A", "B"), ("q2", "B", "C", "D")]


def test_ties_count_against_the_model() -> None:
    rows = [{"query": f"q{i}", "document": f"d{i}"} for i in range(150)]
    task = build()
    same = np.ones((300, 4), dtype=np.float32)
    assert max(values(task, result(task, rows, same)).values()) == 0.0


def test_chance_is_that_of_a_random_order() -> None:
    rows = [{"query": f"q{i}", "document": f"d{i}"} for i in range(400)]
    task = build()
    items = task.items(result(task, rows, np.eye(400, dtype=np.float32)[np.r_[0:400, 0:400]]))
    chance = task.chance(items)
    # Three standard deviations of a share of 400 queries.
    assert chance["recall@10"] == pytest.approx(10 / 400, abs=3 * np.sqrt(0.025 * 0.975 / 400))
    assert chance["recall@100"] == pytest.approx(100 / 400, abs=3 * np.sqrt(0.25 * 0.75 / 400))


@pytest.mark.parametrize("kind", ["cosine", "dot", "euclidean", "manhattan"])
def test_the_similarity_that_the_model_states_ranks(kind: str) -> None:
    generator = np.random.default_rng(1)
    first, second = generator.standard_normal((2, 6, 5))
    second[0] *= 9
    scores = similarities(kind, first, second)
    exact = {
        "cosine": lambda a, b: a @ b / np.linalg.norm(a) / np.linalg.norm(b),
        "dot": lambda a, b: a @ b,
        "euclidean": lambda a, b: -np.linalg.norm(a - b),
        "manhattan": lambda a, b: -np.abs(a - b).sum(),
    }[kind]
    np.testing.assert_allclose(scores, [[exact(a, b) for b in second] for a in first], rtol=1e-12)
    task = build(metadata=ModelMetadata(similarity=kind))
    rows = [{"query": f"q{i}", "document": f"d{i}"} for i in range(6)]
    figures = values(task, result(task, rows, np.concatenate([first, second])))
    ranks = 1 + (scores > np.diag(scores)[:, None]).sum(axis=1)
    assert figures["mrr@10"] == pytest.approx(np.mean(1 / ranks), abs=ROUNDING)


def test_rerankers_are_judged_by_query() -> None:
    rows = [
        {"query": "q1", "document": ["A", "B", "C"], "relevance": [0, 2, 1]},
        {"query": "q2", "document": "A", "negative": ["B", "D"]},
    ]
    task = build("reranking")
    assert task.inputs(rows, where="rows") == [
        ("q1", "A"),
        ("q1", "B"),
        ("q1", "C"),
        ("q2", "A"),
        ("q2", "B"),
        ("q2", "D"),
    ]
    logits = np.array([[3.0], [1.0], [2.0], [-1.0], [-2.0], [-3.0]], dtype=np.float32)
    made = result(task, rows, logits, name="logits")
    expected = [reference([0, 2, 1], [0, 2, 1]), reference([0, 1, 2], [1, 0, 0])]
    for name, value in values(task, made).items():
        assert value == pytest.approx(np.mean([each[name] for each in expected]), abs=ROUNDING)
    assert task.targets(made.encoded, made.gold) == [
        {"labels": level} for level in (0.0, 2.0, 1.0, 1.0, 0.0, 0.0)
    ]


def test_scores_whose_activation_is_saturated_are_ranked_by_their_logits() -> None:
    task = build("reranking", ModelMetadata(activation="torch.nn.modules.activation.Sigmoid"))
    rows = [{"query": "q", "document": ["A", "B"], "relevance": [1, 0]}]
    made = result(task, rows, np.array([[60.0], [50.0]]), name="logits")
    assert values(task, made)["mrr@10"] == 1.0


def test_changed_ranks_are_explained() -> None:
    rows = [{"query": f"q{i}", "document": f"d{i}"} for i in range(3)]
    task, same = build(), np.eye(3, dtype=np.float32)
    before = result(task, rows, np.concatenate([same, same]))
    after = result(task, rows, np.concatenate([same[[1, 0, 2]], same]))
    fidelity = task.fidelity(after, before)
    assert fidelity.changed == ((0, "rank 1", "rank 3"), (1, "rank 1", "rank 3"))
    (index, *answers), *_ = fidelity.changed
    row = task.changed_row((before, after), index, answers)
    assert (row.texts, row.expected, row.change) == (("q0",), "d0", pytest.approx(1.0))
    assert [near for near, _ in row.before.neighbours] == ["d0", "d1", "d2"]
    assert row.transitions == (("rank 1", "rank 2–10"),)


def beir(folder: Path, *lines: str, split: str = "test") -> Path:
    """Three queries and four documents, one of them without text."""
    corpus = [("d1", "The", "one"), ("d2", "", "two"), ("d3", "", ""), ("d4", "A title", "four")]
    queries = {f"q{i}": f"query {i}" for i in (1, 2, 3)}
    judged = lines or ("q1\td1\t2", "q2\td2\t1", "q1\td2\t0")
    return write_beir(folder, corpus, queries, {split: judged})


def test_a_beir_folder_is_read(tmp_path) -> None:
    beir(tmp_path, split="train")
    beir(tmp_path, split="dev")
    places = sources.places(Data(source=str(tmp_path)))
    assert Path(places.calibrate).name == "train.tsv"
    assert Path(places.evaluate).name == "dev.tsv"
    _, rows = readers.read(places.evaluate, hub=None, revision=None, columns=())
    task = build()
    rows += task.searched(readers.read(places.corpus, hub=None, revision=None, columns=())[1])
    assert task.inputs(rows, where="rows") == [
        (text,) for text in ("query 1", "query 2", "The one", "two", "A title four")
    ]
    assert task.gold(rows, where="rows") == [[(2, 2), (3, 0)], [(3, 1)]]


def test_beir_leaves_out_the_document_that_a_query_is_and_tells_queries_by_their_id(
    tmp_path,
) -> None:
    """As its evaluator does (`ignore_identical_ids`); ArguAna's queries are documents."""
    corpus = [("a", "", "one"), ("b", "", "two"), ("c", "", "three")]
    queries = {"a": "asked", "q": "asked", "c": "another"}
    judged = ("a\tb\t1", "q\ta\t1", "c\tc\t1")
    write_beir(tmp_path, corpus, queries, {"test": judged})
    task, rows = build(), []
    for place in (tmp_path / "qrels" / "test.tsv", tmp_path / "corpus.jsonl"):
        read = readers.read(str(place), hub=None, revision=None, columns=())[1]
        rows += read if place.suffix == ".tsv" else task.searched(read)
    texts = [text for (text,) in task.inputs(rows, where="rows")]
    assert texts == ["asked", "asked", "another", "two", "one", "three"]
    vectors = np.array([[1, 0.5], [1, 0.5], [0, 1], [0.8, 0.6], [1, 0.5], [0, 1]], dtype=np.float32)
    made = result(task, rows, vectors)
    # A document that is judged is not left out.
    assert made.gold == [[(3, 1), (4, -1)], [(4, 1)], [(5, 1)]]
    # Both texts are nearest to "one"; for the query that is this document, "two" is the first.
    assert values(task, made)["mrr@10"] == pytest.approx(1, abs=ROUNDING)
    rows[0].pop("own-document")
    assert values(task, result(task, rows, vectors))["mrr@10"] == pytest.approx(5 / 6, abs=ROUNDING)


def test_documents_can_be_calibrated_on(tmp_path) -> None:
    """For folders without a split of training queries."""
    settings = {"source": str(beir(tmp_path)), "calibrate": "corpus[-1:]", "corpus": "corpus[:-1]"}
    places = sources.places(Data.model_validate(settings))
    (_, calibrated), (_, searched) = (
        readers.read(place, hub=None, revision=None, columns=())
        for place in (places.calibrate, places.corpus)
    )
    task = build()
    assert task.inputs(calibrated, where="rows") == [("A title four",)]
    assert task.inputs(searched, where="rows") == [("The one",), ("two",)]


def test_what_a_beir_split_depends_on_is_all_of_its_files(tmp_path) -> None:
    beir(tmp_path, split="train")
    settings = Data(source=str(beir(tmp_path, split="dev")), corpus=None)
    before = sources.places(settings).content().digest
    assert sources.places(settings).corpus is None
    queries = tmp_path / "queries.jsonl"
    queries.write_text(queries.read_text().replace("query 1", "another"))
    assert sources.places(settings).content().digest != before


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("q9\td1\t1", 'queries.jsonl has no text with the _id "q9"'),
        ("q1\td9\t1", 'corpus.jsonl has no text with the _id "d9"'),
        ("q1\td3\t1", 'corpus.jsonl has no text with the _id "d3"'),
        ("q1 d1 1", "the line is no judgement"),
    ],
)
def test_wrong_judgements_are_named(tmp_path, line: str, what: str) -> None:
    folder = beir(tmp_path, "q1\td1\t1", line)
    with pytest.raises(DataError, match=what) as error:
        readers.read(str(folder / "qrels" / "test.tsv"), hub=None, revision=None, columns=())
    assert "test.tsv, line 3" in str(error.value)


def test_a_judgement_twice_counts_once_and_two_scores_of_one_are_refused(tmp_path) -> None:
    folder = beir(tmp_path, "q1\td1\t1", "q1\td2\t2", "q1\td1\t1")
    place = str(folder / "qrels" / "test.tsv")
    (row,) = readers.read(place, hub=None, revision=None, columns=())[1]
    assert (row["document"], row["relevance"]) == (["The one", "two"], ["1", "2"])
    beir(tmp_path, "q1\td1\t1", "q1\td2\t2", "q1\td1\t0")
    with pytest.raises(
        DataError, match=r"test\.tsv, line 4: the document 'd1' .*got '0', expected '1'"
    ):
        readers.read(place, hub=None, revision=None, columns=())


@pytest.mark.parametrize("separator", "\u2028\x85\x0b\x1c")
def test_an_id_may_hold_what_ends_a_line_in_python_only(tmp_path, separator: str) -> None:
    query, document = f"q{separator}1", f"d{separator}1"
    judged = {"test": [f"{query}\t{document}\t1\r"]}
    folder = write_beir(tmp_path, [(document, "", "found")], {query: "asked"}, judged)
    place = str(folder / "qrels" / "test.tsv")
    (row,) = readers.read(place, hub=None, revision=None, columns=())[1]
    assert (row["query"], row["document"], row["relevance"]) == ("asked", ["found"], ["1"])


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ({"_id": "d1", "text": "another"}, "the _id 'd1' was there with another value"),
        ({"_id": "d5", "text": ["one", "two"]}, "text is not a text"),
        ({"_id": "d5", "title": {"a": 1}, "text": "t"}, "title is not a text"),
        ({"_id": ["d5"], "text": "t"}, "_id is not a text"),
        ({"text": "t"}, "the row has no _id"),
    ],
)
def test_wrong_documents_are_named(tmp_path, line: dict, what: str) -> None:
    """By their line, also below empty lines."""
    corpus = beir(tmp_path) / "corpus.jsonl"
    with corpus.open("a") as file:
        file.write("\n" + json.dumps({"_id": "d1", "title": "The", "text": "one"}))
        file.write("\n\n" + json.dumps(line) + "\n")
    with pytest.raises(DataError, match=what) as error:
        readers.read(str(corpus), hub=None, revision=None, columns=())
    assert "corpus.jsonl, line 7" in str(error.value)


@pytest.mark.parametrize(
    ("row", "what"),
    [
        ({"query": "q", "document": []}, "the query has no documents"),
        ({"query": "q", "document": ""}, "the text is empty"),
        ({"query": "", "document": "d"}, "the text is empty"),
        ({"query": "q", "document": ["a", "b"], "relevance": [1]}, "another number of relevances"),
        ({"query": "q", "document": "a", "relevance": 0.5}, "not a whole number"),
        ({"query": "q", "document": "a", "relevance": "x"}, "not a number"),
        ({"query": "q", "document": "a", "relevance": 0}, "the query has no relevant document"),
    ],
)
def test_wrong_rows_are_named(row: dict, what: str) -> None:
    with pytest.raises(DataError, match=what) as error:
        build().gold([{"query": "q0", "document": "d0", "relevance": 1}, row], where="rows")
    assert "row 2" in str(error.value)


def test_a_wrong_name_of_the_query_column_is_named() -> None:
    with pytest.raises(DataError, match='there is no column "query"'):
        check_columns("embedding", build(), [{"quary": "q", "document": "d"}], where="rows")


def test_rankings_that_cannot_be_wrong_are_refused() -> None:
    rows = [{"query": f"q{i}", "document": f"d{i}"} for i in range(3)]
    with pytest.raises(DataError, match="every document of every query is relevant"):
        build("reranking").gold(rows, where="rows")


def test_a_model_with_classes_is_no_reranker() -> None:
    with pytest.raises(DataError, match="a reranker gives one score"):
        build("reranking", ModelMetadata(labels=("no", "yes")))


def test_a_reranker_with_a_chat_template_is_refused(golden, checkpoint, tmp_path) -> None:
    """sentence-transformers writes pairs as messages; transformers, for text-classification, does not."""
    folder = shutil.copytree(checkpoint("bert"), tmp_path / "model")
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    rows = [{"query": "q", "document": ["a", "b"], "relevance": [1, 0]}] * 2
    for split in ("train", "validation"):
        (tmp_path / f"{split}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    recipe = {"model": str(folder), "task": "reranking", "data": str(tmp_path)}
    with golden.raises(ModelError):
        resolve(parse(recipe), tune=False)


def test_tasks_with_other_options_have_their_own_answers_of_one_result() -> None:
    """What a task computed is kept in the result, and must not be taken for another task's."""
    generator = np.random.default_rng(2)
    rows = [{"query": f"q{i}", "document": f"d{i}"} for i in range(600)]
    vectors = generator.standard_normal((1200, 8)).astype(np.float32)
    vectors[:600] *= 3 * generator.random((600, 1))
    cosine, dot = (build(metadata=ModelMetadata(similarity=kind)) for kind in ("cosine", "dot"))
    made = result(cosine, rows, vectors)
    tasks = [cosine, dot, replace(cosine, coarse=True), replace(cosine, metrics={})]
    alone = [task.items(result(cosine, rows, vectors)) for task in tasks]
    assert len({items.tobytes() for items in alone}) == 3
    for task, expected in [*zip(tasks, alone, strict=True)] * 2:
        np.testing.assert_array_equal(task.items(made), expected)


def test_a_query_is_ranked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"query": f"q{i}", "document": f"d{i}"} for i in range(3)]
    task, same, calls = build(), np.eye(3, dtype=np.float32), []
    chunks = type(task).chunks
    monkeypatch.setattr(type(task), "chunks", lambda *args: calls.append(args) or chunks(*args))
    before = result(task, rows, np.concatenate([same, same]))
    after = replace(before, outputs={"sentence_embedding": np.concatenate([same[::-1], same])})
    for _ in range(2):
        fidelity = task.fidelity(after, before)
        assert task.items(before)[:, 0].tolist() == [1.0] * 3
        for index, *answers in fidelity.changed:
            task.changed_row((before, after), index, answers)
    assert len(calls) == 2
    assert replace(before).made == {}
