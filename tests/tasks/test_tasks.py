"""Tasks: a contract for all of them, metrics against scikit-learn and SciPy, and bad rows."""

from __future__ import annotations

import numpy as np
import pytest
from pydantic import ValidationError

from octobert.core import plugins
from octobert.core.errors import DataError
from octobert.core.heads import head_of
from octobert.core.measurements import RESAMPLES, score_named
from octobert.core.model_config import Reading
from octobert.core.results import ModelMetadata
from octobert.data.encoded import split
from octobert.data.tokenization import EncodedTexts, Tokenizer
from octobert.evaluation import scoring, statistics
from octobert.evaluation.scoring import changed_rows
from octobert.tasks import Result, _metrics, check_columns
from octobert.tasks._texts import RowTexts
from tests.support import tasks

VECTORS = ("embedding", "sparse-embedding", "late-interaction")


def build(name: str, of_model: tuple[str, ...] = (), **options: object):
    if name == "zero-shot-classification":
        of_model, options = ("entailment", "contradiction"), {"labels": ("no", "yes"), **options}
    return tasks.build(name, options, ModelMetadata(labels=of_model, reading=Reading()))


def unit(count: int, size: int = 16, seed: int = 0) -> np.ndarray:
    vectors = np.random.default_rng(seed).standard_normal((count, size))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


@pytest.fixture(scope="module")
def tokenizer(wordpiece_folder) -> Tokenizer:
    return Tokenizer(wordpiece_folder, 64)


def only(*texts: tuple[str, ...]) -> EncodedTexts:
    """What is asked, for tasks that judge whole texts and need no tokens."""
    return EncodedTexts(texts, [])


# The other one reads arrays: see `test_graph`.
OF_TEXTS = [name for name in plugins.names("tasks") if name != "graph"]
ANSWERING = ("question-answering", "squad", "squad-v2")
TAGS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")
# Without "a", of which nothing is left once articles are dropped.
LETTERS = "bcdefghi"


def answering(name: str, tokenizer: Tokenizer):
    """Every question asks for one of eight letters; in 2.0 every third has no answer."""
    task, generator = build(name), np.random.default_rng(1)
    context = " ".join(LETTERS)
    places = [
        0 if name == "squad-v2" and i % 3 == 0 else 2 * int(generator.integers(8)) + 1
        for i in range(40)
    ]
    rows = [
        {
            "id": str(i),
            "question": "the of",
            "context": context,
            "answers": [{"text": context[p - 1], "answer_start": p - 1}] if p else [],
        }
        for i, p in enumerate(places)
    ]
    encoded = task.encode(tokenizer, task.inputs(rows, where="rows"))
    # [CLS] the of [SEP] b c d …: the letter at character 2k is token 4 + k; "no answer" is token 0.
    tokens = [4 + (p - 1) // 2 if p else 0 for p in places]

    def said(chosen: list[int]) -> dict[str, np.ndarray]:
        high = np.concatenate(
            [
                np.eye(len(row), dtype=np.float32)[t]
                for row, t in zip(encoded.flat, chosen, strict=True)
            ]
        )
        return {"start_logits": 9 * high, "end_logits": 9 * high}

    return task, rows, encoded, said(tokens), said(list(generator.permutation(tokens)))


def tagging(name: str, tokenizer: Tokenizer):
    """Sentences of single words, a random tag each."""
    task, generator = build(name, TAGS), np.random.default_rng(1)
    tags = [[TAGS[k] for k in generator.integers(0, 5, 3 + i % 5)] for i in range(40)]
    rows = [
        {"tokens": ["the", "of", "and", "a", "to", "in", "is"][: len(own)], "ner_tags": own}
        for own in tags
    ]
    encoded = task.encode(tokenizer, task.inputs(rows, where="rows"))
    gold = task.gold(rows, where="rows")

    def said(chosen: list[list[str]]) -> dict[str, np.ndarray]:
        return {
            "logits": np.concatenate(
                [np.eye(5, dtype=np.float32)[[0, *map(TAGS.index, own), 0]] for own in chosen]
            )
        }

    flat = generator.permutation([tag for own in gold for tag in own]).tolist()
    return task, rows, encoded, said(gold), said([[flat.pop() for _ in own] for own in gold])


def filling(tokenizer: Tokenizer):
    """Texts of eight words each, of which one or all are masked."""
    task, generator = build("fill-mask", mask=0.25), np.random.default_rng(1)
    words = ("the", "of", "and", "a", "to", "in", "is", "you", "that", "it")
    rows = [{"text": " ".join(generator.choice(words, 8))} for _ in range(40)]
    encoded = task.encode(tokenizer, task.inputs(rows, where="rows"))

    def said(chosen: list[np.ndarray]) -> dict[str, np.ndarray]:
        outputs = []
        for row, ids in zip(encoded.flat, chosen, strict=True):
            logits = np.zeros((len(row), tokenizer.vocabulary), dtype=np.float32)
            logits[row.places, ids] = 60
            outputs.append(row.kept({"logits": logits}))
        return {name: np.concatenate([each[name] for each in outputs]) for name in outputs[0]}

    wanted = [row.masked_ids for row in encoded.flat]
    return (
        task,
        rows,
        encoded,
        said(wanted),
        said([np.roll(ids, 1) + 1 for ids in generator.permutation(wanted)]),
    )


def other_vectors(name: str, tokenizer: Tokenizer):
    """Pairs whose gold score follows from vectors that are sparse, or one for each token; by loops over all products."""
    task, generator = build(name), np.random.default_rng(1)
    rows = [{"sentence1": f"a {i}", "sentence2": f"b {i}", "score": 0.0} for i in range(40)]
    encoded = task.encode(tokenizer, task.inputs(rows, where="rows"))
    if name == "sparse-embedding":
        dense = np.maximum(generator.standard_normal((80, 30)), 0).astype(np.float32)
        kept = [
            row.kept({"sentence_embedding": one})
            for row, one in zip(encoded.flat, dense, strict=True)
        ]
        outputs = {key: np.concatenate([each[key] for each in kept]) for key in kept[0]}
        order = np.concatenate([np.arange(40), 40 + generator.permutation(40)])
        shuffled = {key: array[order] for key, array in outputs.items()}
        scores = [float(a @ b) for a, b in zip(dense[:40], dense[40:], strict=True)]
    else:
        vectors = unit(sum(row.entries for row in encoded.flat))
        outputs = {"token_vectors": vectors}
        shuffled = {"token_vectors": generator.permutation(vectors)}
        parts = split(vectors, encoded.flat)
        scores = [
            sum(max(float(q @ d) for d in document) for q in query)
            for query, document in zip(parts[:40], parts[40:], strict=True)
        ]
    rows = [{**row, "score": round(score, 4)} for row, score in zip(rows, scores, strict=True)]
    return task, rows, encoded, outputs, shuffled


def example(name: str, tokenizer: Tokenizer):
    """(task, rows, what is asked, perfect outputs, shuffled outputs) of a task."""
    generator = np.random.default_rng(1)
    if name == "fill-mask":
        return filling(tokenizer)
    if name == "feature-extraction":
        task, rows = build(name), [{"sentence1": "the", "sentence2": "of"} for _ in range(40)]
        encoded = task.encode(tokenizer, task.inputs(rows, where="rows"))
        states = unit(5 * 40)
        return (
            task,
            rows,
            encoded,
            {"last_hidden_state": states},
            {"last_hidden_state": generator.permutation(states)},
        )
    if name in ANSWERING:
        return answering(name, tokenizer)
    if name == "token-classification":
        return tagging(name, tokenizer)
    if name in ("sparse-embedding", "late-interaction"):
        return other_vectors(name, tokenizer)
    if name == "embedding":
        task = build(name)
        first, second = unit(40, seed=1), unit(40, seed=2)
        gold = (first * second).sum(1)
        rows = [
            {"sentence1": f"a {i}", "sentence2": f"b {i}", "score": str(g)}
            for i, g in enumerate(gold)
        ]
        shuffled = np.concatenate([first, generator.permutation(second)])
        encoded = only(*task.inputs(rows, where="rows"))
        return (
            task,
            rows,
            encoded,
            {"sentence_embedding": np.concatenate([first, second])},
            {"sentence_embedding": shuffled},
        )
    if name == "reranking":
        task = build(name)
        rows = [
            {"query": f"q{i}", "document": [f"d{k}" for k in range(12)], "relevance": own}
            for i, own in enumerate(np.eye(12, dtype=int)[generator.integers(0, 12, 40)].tolist())
        ]
        encoded = only(*task.inputs(rows, where="rows"))
        logits = np.array([[float(x)] for row in rows for x in row["relevance"]])
        return task, rows, encoded, {"logits": logits}, {"logits": generator.permutation(logits)}
    task = build(name, ("no", "yes"))
    columns, label = task.text[0], task.label[0]
    gold = generator.integers(0, 2, 60)
    rows = [{**{c: f"{c} {i}" for c in columns}, label: str(g)} for i, g in enumerate(gold)]
    perfect = np.eye(2, dtype=np.float32)[gold]
    encoded = only(*task.inputs(rows, where="rows"))
    return task, rows, encoded, {"logits": perfect}, {"logits": generator.permutation(perfect)}


def text_column(task) -> str:
    """One column of texts that the task reads."""
    if isinstance(task, RowTexts):
        return task.text[0][0]
    if task.head == "masked-lm":
        return task.text[0]
    return task.words[0] if task.head == "token-classification" else task.columns[0]


@pytest.mark.parametrize("name", OF_TEXTS)
class TestEveryTask:
    def test_perfect_predictions_score_one_and_shuffled_ones_do_not(
        self, name: str, tokenizer
    ) -> None:
        task, rows, encoded, perfect, shuffled = example(name, tokenizer)
        gold = task.gold(rows, where="rows")
        for metric, function in task.metrics.items():
            if metric == "pseudo_perplexity":
                assert function(task.items(Result(perfect, encoded, gold))) == pytest.approx(1.0)
                assert function(task.items(Result(shuffled, encoded, gold))) > 100
            elif metric == "log_likelihood":
                assert function(task.items(Result(perfect, encoded, gold))) == pytest.approx(0.0)
            elif not metric.endswith("_threshold"):
                assert function(task.items(Result(perfect, encoded, gold))) == pytest.approx(1.0), (
                    metric
                )
                assert function(task.items(Result(shuffled, encoded, gold))) < 0.8, metric

    def test_items_are_figures_of_each_item(self, name: str, tokenizer) -> None:
        task, rows, encoded, perfect, _ = example(name, tokenizer)
        gold = task.gold(rows, where="rows")
        items = task.items(Result(perfect, encoded, gold))
        assert items.ndim == 2
        assert len(items) == len(gold)
        assert np.isfinite(items).all()

    def test_no_row_is_worse_than_the_worst_or_better_than_the_best(
        self, name: str, tokenizer
    ) -> None:
        """Those are what intervals count as the row that was not seen."""
        task, rows, encoded, perfect, shuffled = example(name, tokenizer)
        if task.primary is None:
            return
        metric, gold = task.metrics[task.primary], task.gold(rows, where="rows")
        best, worse = (
            task.items(Result(outputs, encoded, gold)) for outputs in (perfect, shuffled)
        )
        wrong, right = task.extremes(worse)
        assert wrong.shape == right.shape
        assert wrong.shape[1:] == worse.shape[1:]
        assert metric(wrong) <= metric(worse)
        assert metric(right) >= metric(best) - 1e-9

    def test_chance_is_below_a_perfect_score(self, name: str, tokenizer) -> None:
        task, rows, encoded, perfect, _ = example(name, tokenizer)
        result = Result(perfect, encoded, task.gold(rows, where="rows"))
        by_metric = {s.metric: s for s in scoring.scores(task, result, seed=0)}
        chance = task.chance(task.items(result))
        assert task.primary is None or task.primary in chance
        assert all(0 <= chance[metric] == by_metric[metric].chance < 0.8 for metric in chance)
        # Correlations of scores have no chance.
        fidelity = task.fidelity(Result(perfect, encoded), Result(perfect, encoded))
        assert (fidelity.chance or 0.0) < 0.8

    def test_inputs_are_one_text_or_a_pair_or_words(self, name: str, tokenizer) -> None:
        task, rows, encoded, perfect, _ = example(name, tokenizer)
        inputs = task.inputs(rows, where="rows")
        assert len(next(iter(perfect.values()))) == (
            sum(row.entries for row in encoded.flat)
            if encoded.rows and task.per_token
            else len(inputs)
        )
        lengths = {len(text) for text in inputs}
        assert (
            lengths == {len(row["tokens"]) for row in rows}
            if task.head == "token-classification"
            else lengths <= {1, 2}
        )

    def test_what_is_expected_can_be_said(self, name: str, tokenizer) -> None:
        task, rows, *_ = example(name, tokenizer)
        assert all(task.expected(one) for one in task.gold(rows, where="rows"))

    def test_a_model_follows_itself(self, name: str, tokenizer) -> None:
        task, _, encoded, perfect, shuffled = example(name, tokenizer)
        assert task.fidelity(
            Result(perfect, encoded), Result(perfect, encoded)
        ).agreement == pytest.approx(1.0)
        assert task.fidelity(Result(perfect, encoded), Result(perfect, encoded)).error == 0.0
        assert task.fidelity(Result(perfect, encoded), Result(perfect, encoded)).changed == ()
        assert task.fidelity(Result(shuffled, encoded), Result(perfect, encoded)).agreement < 0.95

    def test_what_changed_is_said_in_words(self, name: str, tokenizer) -> None:
        task, rows, encoded, perfect, shuffled = example(name, tokenizer)
        gold = task.gold(rows, where="rows")
        both = Result(shuffled, encoded, gold), Result(perfect, encoded, gold)
        compared = scoring.compare(task, ("ours", "float"), both, seed=0)
        assert bool(compared.changed) == (name != "feature-extraction")
        if name == "fill-mask":
            # What was masked is in the text, which is what is expected.
            assert all(
                set(before.split()) <= set(expected.split())
                for _, expected, before, _ in compared.changed
            )
            return
        for index, expected, before, after in compared.changed:
            # The reference is perfect here, so it said what was expected; of a score, its first digits.
            assert expected == task.expected(gold[index])
            said = f"{float(expected):.4f}" if name in VECTORS else expected
            assert before == ("rank 1" if name == "reranking" else said)
            assert after != before

    def test_rows_that_changed_are_told_with_their_places(self, name: str, tokenizer) -> None:
        task, rows, encoded, perfect, shuffled = example(name, tokenizer)
        gold = task.gold(rows, where="rows")
        ours, reference = Result(shuffled, encoded, gold), Result(perfect, encoded, gold)
        compared = scoring.compare(task, ("ours", "float"), (ours, reference), seed=0)
        told = changed_rows(task, [compared], {"ours": ours, "float": reference})
        if name == "feature-extraction":
            assert told == ()
            return
        (told,) = told
        assert told.total == len(told.rows) == len(compared.changed)
        assert {row.row for row in told.rows} == {index for index, *_ in compared.changed}
        assert sum(row.outcome == "lost" for row in told.rows) == told.lost
        # The reference is perfect, so nothing gains; whether a score is better alone, cannot be said.
        assert told.gained == 0
        assert told.lost == (0 if name in VECTORS else told.total)
        assert [row.change for row in told.rows] == sorted(
            (row.change for row in told.rows), reverse=True
        )
        for row in told.rows:
            for side in (row, row.before, row.after):
                assert all(
                    0 <= mark.start < mark.end <= len(row.texts[mark.text]) for mark in side.marks
                )
            if name == "fill-mask":
                assert (
                    row.before.text
                    == row.expected
                    == ", ".join(row.texts[0][m.start : m.end] for m in row.marks)
                )
            elif task.head == "question-answering" and row.before.marks:
                assert (
                    row.texts[1][row.before.marks[0].start : row.before.marks[0].end]
                    == row.before.text
                    == row.expected
                )
            elif task.head == "token-classification":
                assert row.marks == row.before.marks != row.after.marks

    def test_a_missing_column_is_named(self, name: str, tokenizer) -> None:
        task, rows, *_ = example(name, tokenizer)
        column = text_column(task)
        broken = [{(k + "x" if k == column else k): v for k, v in row.items()} for row in rows]
        named = f'there is no column "{column}".*did you mean "{column}x"'
        usual = "no column is recognized as (text|tokens) .*expected .*rename a column"
        with pytest.raises(DataError, match=f"{named}|{usual}"):
            task.inputs(broken, where="rows")

    def test_no_rows(self, name: str, tokenizer) -> None:
        with pytest.raises(DataError, match="there are no rows"):
            example(name, tokenizer)[0].inputs([], where="rows")

    def test_an_empty_text_is_named(self, golden, name: str, tokenizer) -> None:
        task, rows, *_ = example(name, tokenizer)
        column = text_column(task)
        rows[3] = {**rows[3], column: [] if name == "token-classification" else "  "}
        with golden.raises(DataError):
            task.inputs(rows, where="rows")

    def test_it_answers(self, name: str, tokenizer) -> None:
        task, _, encoded, perfect, _ = example(name, tokenizer)
        if name == "fill-mask":
            encoded = task.encode(tokenizer, [("the [MASK] of",)])
            perfect = encoded.flat[0].kept({"logits": np.zeros((5, tokenizer.vocabulary))})
        answer = task.answer(Result(perfect, encoded), 0, encoded.texts[0])
        answered = {"answer", "score", "start", "end", "others"}
        others = ({"words", "tags", "entities"}, {"masks", "text"}, {"tokens", "states"})
        others += ({"indices", "values", "tokens"}, {"embeddings"}, {"label", "score", "scores"})
        assert set(answer) in ({"label", "score"}, {"score"}, {"embedding"}, answered, *others)

    def test_what_is_no_text_is_refused(self, golden, name: str, tokenizer) -> None:
        for given in (None, 1, {"text": "a"}, ["a", 1], "\udcff"):
            with golden.raises(DataError):
                example(name, tokenizer)[0].parse(given, where="here")

    def test_an_empty_text_is_read_where_it_has_an_answer(
        self, golden, name: str, tokenizer
    ) -> None:
        """As sentence-transformers and the pipelines of transformers do; there is no mask, word or answer to find in it."""
        task = example(name, tokenizer)[0]
        wordless = {"token-classification": [" "]}.get(name, ("a", " "))
        for given in ("", wordless):
            if head_of(task.head).shape in ("classes", "embedding", "states"):
                text = task.parse(("", "") if getattr(task, "texts", 0) == 2 else "", where="here")
                count = 2 if name in VECTORS else 1 + len(text)
                row = task.encode(tokenizer, [text]).flat[0]
                assert len(row) == count or name == "zero-shot-classification"
            else:
                with golden.raises(DataError):
                    task.parse(given, where="here")


def test_classification_metrics_equal_scikit_learn() -> None:
    from sklearn import metrics

    generator = np.random.default_rng(0)
    gold, ours = generator.integers(0, 2, 500), generator.integers(0, 2, 500)
    items = np.stack([ours, gold], axis=1)
    assert _metrics.accuracy(items) == pytest.approx(metrics.accuracy_score(gold, ours), abs=1e-12)
    assert _metrics.CLASSES["f1"](items) == pytest.approx(metrics.f1_score(gold, ours), abs=1e-12)
    assert _metrics.matthews(items) == pytest.approx(
        metrics.matthews_corrcoef(gold, ours), abs=1e-12
    )
    macro = metrics.f1_score(gold, ours, average="macro")
    assert _metrics.CLASSES["macro_f1"](items) == pytest.approx(macro, abs=1e-12)
    assert _metrics.CLASSES["f1"](np.zeros((5, 2))) == 0.0


def test_classes_of_a_model_with_equal_labels_stay_apart() -> None:
    task, logits = build("text-classification", ("joy", "joy", "fear")), np.eye(3, dtype=np.float32)
    ours, reference = (
        Result({"logits": logits[classes]}, EncodedTexts([], []))
        for classes in ([1, 1, 2], [0, 1, 2])
    )
    assert task.fidelity(ours, reference).agreement == pytest.approx(2 / 3)


def test_texts_without_gold_are_judged_by_fidelity_alone() -> None:
    task = build("embedding", text="body")
    assert task.inputs([{"body": "a"}], where="rows") == [("a",)]
    assert task.gold([{"body": "a"}], where="rows") == []
    assert task.primary is None


@pytest.mark.parametrize("value", ["2", "maybe", "-1", "1.5", ""])
def test_a_label_that_is_not_in_the_list(golden, value: str) -> None:
    task = build("text-classification", ("no", "yes"))
    with golden.raises(DataError):
        task.gold([{"text": "a", "label": value}], where="rows")


def test_a_label_in_another_case_is_the_label_where_that_is_clear() -> None:
    rows = [{"text": "a", "label": label} for label in ("Positive", "NEGATIVE", "positive")]
    assert build("text-classification", ("negative", "positive")).gold(rows, where="rows") == [
        1,
        0,
        1,
    ]
    assert build("text-classification", ("Positive", "positive", "NEGATIVE")).gold(
        rows, where="rows"
    ) == [0, 2, 1]
    several = build("text-classification", ("negative", "positive"), problem="multi-label")
    assert several.gold([{"text": "a", "labels": ["Positive"]}], where="rows") == [[1]]
    tags = [{"tokens": ["a"], "tags": ["b-per"]}]
    assert build("token-classification", ("O", "B-PER", "I-PER")).gold(tags, where="rows") == [
        ["B-PER"]
    ]
    with pytest.raises(DataError, match="no such label"):
        build("text-classification", ("US", "Us")).gold(
            [{"text": "a", "label": "us"}], where="rows"
        )


def test_labels_that_start_at_1_are_told_to(golden) -> None:
    rows = [{"text": "a", "label": label} for label in (1, 2)]
    with golden.raises(DataError):
        build("text-classification", ("no", "yes")).gold(rows, where="rows")
    assert build("text-classification", ("no", "yes"), labels=("1", "2")).gold(
        rows, where="rows"
    ) == [0, 1]


@pytest.mark.parametrize(
    "name",
    [
        "text-classification",
        "embedding",
        "question-answering",
        "token-classification",
        "fill-mask",
        "sst2",
    ],
)
def test_all_columns_that_are_missing_are_told_at_once(golden, name: str) -> None:
    with golden.raises(DataError):
        check_columns(name, build(name), [{"review": "a", "stars": "1"}], where="rows")


def test_one_column_that_is_misspelled_has_a_suggestion() -> None:
    task = build("text-classification", text="revie", label="stars")
    with pytest.raises(DataError, match=r'there is no column "revie" .*did you mean "review"'):
        check_columns("text-classification", task, [{"review": "a", "stars": "1"}], where="rows")


def test_labels_by_name_by_index_and_as_numbers() -> None:
    task = build("text-classification", ("no", "yes", "maybe"))
    rows = [{"text": "a", "label": v} for v in ("maybe", "1", 0, 2.0)]
    assert task.gold(rows, where="rows") == [2, 1, 0, 2]
    assert "f1" not in task.metrics
    named = build("text-classification", ("LABEL_0", "LABEL_1"), labels=("bad", "good"))
    assert named.gold([{"text": "a", "label": "good"}], where="rows") == [1]


def test_another_number_of_labels_than_classes(golden) -> None:
    with golden.raises(DataError):
        build("text-classification", ("no", "yes"), labels=("a", "b", "c"))


def test_pinned_tasks_have_their_own_labels_and_number_of_classes() -> None:
    assert build("mrpc").labels == ("not_equivalent", "equivalent")
    assert build("mrpc", ("LABEL_0", "LABEL_1")).labels == ("not_equivalent", "equivalent")
    assert build("sst2", ("NEGATIVE", "POSITIVE")).labels == ("NEGATIVE", "POSITIVE")
    with pytest.raises(DataError, match="another number of labels than the model has classes"):
        build("mrpc", ("a", "b", "c"))


@pytest.mark.parametrize(
    ("of_model", "expected"),
    [
        ((), [0, 1]),
        (("LABEL_0", "LABEL_1"), [0, 1]),
        (("NEGATIVE", "POSITIVE"), [0, 1]),
        (("neg", "Positive"), [0, 1]),
        (("bad", "good"), [0, 1]),
        (("POSITIVE", "NEGATIVE"), [1, 0]),
    ],
)
@pytest.mark.parametrize("name", ["imdb", "sst2"])
def test_a_fixed_class_in_every_spelling(
    name: str, of_model: tuple[str, ...], expected: list[int]
) -> None:
    """Of the data set, of the hub, and of the model, whose names also tell its own order."""
    task = build(name, of_model)
    for written in (
        ("negative", "positive"),
        ("neg", "pos"),
        ("Negative", "POSITIVE"),
        (0, 1),
        ("0", "1"),
        (0.0, 1.0),
    ):
        assert task.gold([{"label": one} for one in written], where="rows") == expected


@pytest.mark.parametrize(
    ("value", "fix"),
    [
        (2, "; if the rows number the classes so, name them"),
        ("neutral", "; correct the row."),
        (-1, "take a split that has labels"),
    ],
)
def test_a_label_that_is_no_fixed_class(value: object, fix: str) -> None:
    found = rf"row 1, column \"label\": the task has no such label \(got .*, expected negative, positive, or .*{fix}"
    with pytest.raises(DataError, match=found):
        build("imdb").gold([{"label": value}], where="rows")


@pytest.mark.parametrize(("text", "label"), [("text", "label"), ("review", "sentiment")])
def test_imdb_under_the_columns_of_the_hub_and_of_the_csv_file(text: str, label: str) -> None:
    rows = [
        {text: "Bad.<br /><br />Very bad.", label: "negative"},
        {text: "Good.", label: "positive"},
    ]
    task = build("imdb")
    assert task.inputs(rows, where="rows") == [("Bad.<br /><br />Very bad.",), ("Good.",)]
    assert task.gold(rows, where="rows") == [0, 1]
    assert task.labels == ("negative", "positive")
    with pytest.raises(DataError, match=f'row 2, column "{text}": the text is empty'):
        task.inputs([rows[0], {**rows[1], text: " "}], where="rows")


def test_a_cell_that_is_a_list_is_no_text(golden) -> None:
    with golden.raises(DataError):
        build("text-classification", ("no", "yes")).inputs([{"text": ["a"]}], where="rows")


def test_labels_must_differ() -> None:
    with pytest.raises(ValidationError, match="labels must differ"):
        build("text-classification", labels=("a", "a"))


def test_f1_needs_two_classes(golden) -> None:
    with golden.raises(DataError):
        build("text-classification", ("a", "b", "c"), metric="f1")


@pytest.mark.filterwarnings("ignore:An input array is constant")
def test_an_undefined_metric_is_refused(golden) -> None:
    task = build("embedding")
    encoded = only(*((f"a{i}",) for i in range(6)))
    assert (
        statistics.scores_of(
            "spearman", lambda items: float("nan"), np.ones((3, 2)), (np.ones((1, 2)),) * 2, seed=0
        )
        == []
    )
    with golden.raises(DataError):
        scoring.scores(task, Result({"sentence_embedding": unit(6)}, encoded, [1.0] * 3), seed=0)


def test_errors_name_the_row_of_the_file_after_sampling() -> None:
    from octobert.data import readers

    rows = readers.numbered([{"text": "a", "label": "no"}] * 9 + [{"text": "a", "label": "what"}])
    with pytest.raises(DataError, match='rows, row 10, column "label"'):
        build("text-classification", ("no", "yes")).gold(rows[9:], where="rows")


@pytest.mark.parametrize(
    "score", ["high", float("nan"), "nan", "inf", None, "", pytest.param(10**400, id="huge")]
)
def test_a_score_that_is_no_number(golden, score: object) -> None:
    rows = [{"sentence1": "a", "sentence2": "b", "score": value} for value in (1.0, score)]
    with golden.raises(DataError):
        build("embedding").gold(rows, where="dev.csv")


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
        build("embedding", **options)


@pytest.fixture
def few_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    """A quarter of them: where an interval ends is a little less certain, and how often it is wrong is not."""
    monkeypatch.setattr(statistics, "RESAMPLES", 250)


def test_bootstrap_interval_covers_the_truth_about_as_often_as_it_says(few_resamples) -> None:
    generator, covered = np.random.default_rng(0), 0
    for seed in range(60):
        items = np.stack([generator.random(200) < 0.8, np.ones(200)], axis=1).astype(float)
        (found,) = statistics.scores_of(
            "accuracy", _metrics.accuracy, items, (np.array([[0, 1]]), np.ones((1, 2))), seed=seed
        )
        covered += found.low <= 0.8 <= found.high
    # 95 % of 60 is 57; fewer than 50 has a probability below 0.001.
    assert covered >= 50


# Of 1,000 resamples: the 25th from an end is off by as much.
QUANTILE = 0.15


@pytest.mark.parametrize("rows", [10, 40, 100, 1000])
def test_rows_without_a_mistake_leave_room_for_rare_ones(rows: int) -> None:
    """As much as the exact interval of Clopper and Pearson."""
    from scipy.stats import binomtest

    items = np.ones((rows, 2))
    extremes = (np.array([[0.0, 1.0]]), np.array([[1.0, 1.0]]))
    (found,) = statistics.scores_of("accuracy", _metrics.accuracy, items, extremes, seed=0)
    exact = binomtest(rows, rows).proportion_ci(0.95, method="exact")
    assert 1 - found.low == pytest.approx(1 - exact.low, rel=QUANTILE)
    assert found.high == 1.0
    difference, low, high, p_value = statistics.paired(
        _metrics.accuracy, items, items, extremes, seed=0
    )
    assert (difference, p_value) == (0.0, 1.0)
    assert -low == pytest.approx(1 - exact.low, rel=QUANTILE)
    assert high == pytest.approx(-low, rel=QUANTILE)


@pytest.mark.parametrize("name", ["squad", "token-classification"])
def test_a_model_that_reads_nothing_is_not_better_than_chance(name: str, tokenizer) -> None:
    """Random answers to questions, and tags of other words, score something."""
    task, rows, encoded, perfect, _ = example(name, tokenizer)
    generator, gold = np.random.default_rng(3), task.gold(rows, where="rows")
    noise = {
        key: generator.normal(size=array.shape).astype(np.float32) for key, array in perfect.items()
    }
    guessed, right = (
        score_named(task.primary, scoring.scores(task, Result(outputs, encoded, gold), seed=0))
        for outputs in (noise, perfect)
    )
    assert guessed.low <= guessed.chance < right.low


def test_a_share_has_the_interval_of_clopper_and_pearson() -> None:
    from scipy.stats import binomtest

    items = np.stack([np.arange(60) < 51, np.ones(60)], axis=1).astype(float)
    extremes = (np.array([[0.0, 1.0]]), np.array([[1.0, 1.0]]))
    (found,) = statistics.scores_of("accuracy", _metrics.accuracy, items, extremes, seed=1)
    exact = binomtest(51, 60).proportion_ci(0.95, method="exact")
    assert (found.low, found.high) == pytest.approx((exact.low, exact.high), abs=0.015)


def losing_two_points(rows: int, draw: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Items of a model whose accuracy is two points below that of the float model, and of the float model."""
    gold = (draw.random(rows) < 0.5).astype(int)
    right = draw.random(rows) < 0.85
    before = np.where(right, gold, 1 - gold)
    after = np.where(right & (draw.random(rows) < 0.02 / 0.85), 1 - gold, before)
    return np.stack([after, gold], axis=1), np.stack([before, gold], axis=1)


@pytest.mark.slow
@pytest.mark.parametrize("rows", [40, 400])
def test_a_loss_is_called_smaller_than_it_is_as_rarely_as_the_interval_says(
    few_resamples, rows: int
) -> None:
    """The ordinary bootstrap did so in half of all samples of 40 rows: it takes no changed row for proof that none can change.
    `benchmarks/verdicts.py` has all metrics and more samples."""
    draw, wrong, samples = np.random.default_rng(rows), 0, 60
    task = build("text-classification", ("no", "yes"))
    for seed in range(samples):
        ours, theirs = losing_two_points(rows, draw)
        _, low, _, _ = statistics.paired(
            _metrics.accuracy, ours, theirs, task.extremes(theirs), seed=seed
        )
        wrong += low > -0.02
    # 2.5 % of 60 is 1.5; more than 6 have a probability below 0.001.
    assert wrong <= 6


def test_the_p_value_goes_with_the_interval() -> None:
    gold = np.array([0, 1] * 100)
    worse = np.where(np.arange(200) < 20, 1 - gold, gold)
    ours, theirs = (np.stack([each, gold], axis=1) for each in (worse, gold))
    task = build("text-classification", ("no", "yes"))
    difference, low, high, p_value = statistics.paired(
        _metrics.accuracy, ours, theirs, task.extremes(theirs), seed=0
    )
    assert difference == pytest.approx(-0.1)
    assert low < difference < high < 0
    assert p_value < 0.05


def changed_rows_of(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Items of a model that is always right, and of one that is wrong on `count` of 100 rows."""
    gold = np.zeros(100)
    wrong = np.where(np.arange(100) < count, 1, 0)
    return np.stack([gold, gold], axis=1), np.stack([wrong, gold], axis=1)


WRONG, RIGHT = np.array([[1.0, 0.0]]), np.array([[0.0, 0.0]])


@pytest.mark.parametrize("sign", [1, -1])
def test_a_p_value_of_few_changes_is_that_of_the_sign_test(sign: int) -> None:
    """The unseen item outweighs four changed ones with the probability 1 in 16."""
    ours, theirs = changed_rows_of(4)[::sign]
    difference, _, _, p_value = statistics.paired(
        _metrics.accuracy, ours, theirs, (WRONG, RIGHT), seed=0
    )
    assert difference == pytest.approx(sign * 0.04)
    # Of 1,000 resamples 62 are expected, with a deviation of 8.
    assert p_value == pytest.approx(statistics.sign_test(4, 0), rel=0.3)


@pytest.mark.parametrize("sign", [1, -1])
def test_the_smallest_p_value_is_that_of_no_resample(sign: int) -> None:
    ours, theirs = changed_rows_of(60)[::sign]
    *_, p_value = statistics.paired(_metrics.accuracy, ours, theirs, (WRONG, RIGHT), seed=0)
    assert p_value == pytest.approx(2 / (RESAMPLES + 1))


@pytest.mark.parametrize("order", [1, -1])
def test_of_a_few_kinds_of_unseen_items_the_worst_counts_for_each_end(order: int) -> None:
    ours, theirs = changed_rows_of(9)[1], changed_rows_of(12)[1]
    kinds = np.concatenate([WRONG, RIGHT])[::order]
    assert statistics.scores_of(
        "accuracy", _metrics.accuracy, ours, (kinds, kinds), seed=0
    ) == statistics.scores_of("accuracy", _metrics.accuracy, ours, (WRONG, RIGHT), seed=0)
    assert statistics.paired(
        _metrics.accuracy, ours, theirs, (kinds, kinds[::-1]), seed=0
    ) == statistics.paired(_metrics.accuracy, ours, theirs, (WRONG, RIGHT), seed=0)


def test_a_median_has_the_interval_of_its_order_statistics() -> None:
    """About half of 1,000 ± 1.96 · √1,000 / 2."""
    found = statistics.percentile(np.arange(1000.0), 50, seed=0)
    assert found.value == 499.5
    # The 25th of 1,000 resamples from an end is off by 1.3.
    assert (found.low, found.high) == pytest.approx((468.5, 530.5), abs=2.6)


def test_mcnemar_equals_the_binomial_by_hand() -> None:
    ours, theirs = np.ones(30, dtype=bool), np.ones(30, dtype=bool)
    ours[:9], theirs[9:10] = False, False
    # Nine rows only the other gets right, one only ours: two-sided binomial of 1 in 10.
    assert statistics.mcnemar(ours, theirs) == pytest.approx(2 * (1 + 10) / 2**10)
    assert statistics.mcnemar(ours, ours) == 1.0


@pytest.mark.parametrize(
    "labels", [["no", "yes"], [0, 1, 2], ["10", "9", "1"], [1.0, 2.0, 3.0], [True, False], ["b", 1]]
)
def test_classes_of_a_new_head_come_from_the_data(labels: list) -> None:
    """And every row they were read from has one of them."""
    rows = [{"text": "a", "label": label} for label in labels for _ in range(2)]
    classes = build("text-classification").labels_in(rows, where="rows")
    gold = build("text-classification", classes).gold(rows, where="rows")
    assert sorted(set(gold)) == list(range(len(classes))) == list(range(len(labels)))


def test_classes_that_are_numbers_are_in_the_order_of_numbers() -> None:
    rows = [{"text": "a", "label": label} for label in ("10", "9", "1")]
    assert build("text-classification").labels_in(rows, where="rows") == ("1", "9", "10")


def test_what_training_wants_of_a_row() -> None:
    assert build("mrpc").targets(only(("a", "b"), ("c", "d")), [1, 0]) == [
        {"labels": 1},
        {"labels": 0},
    ]


def test_texts_that_no_encoding_can_write_and_texts_that_are_missing() -> None:
    one = build("text-classification", ("no", "yes"))
    with pytest.raises(DataError, match=r'row 1, column "text": the text is not Unicode .*udc00'):
        one.inputs([{"text": "a\udc00"}], where="dev.jsonl")
    with pytest.raises(DataError, match=r'row 1, column "text": the text is empty'):
        one.inputs([{"text": float("nan")}], where="dev.parquet")


def test_a_hundred_thousand_classes_take_no_square_of_anything() -> None:
    count = 100_000
    labels = tuple(f"class {i}" for i in range(count))
    task = build("text-classification", labels)
    rows = [{"text": "a", "label": labels[-1 - i]} for i in range(count)]
    gold = np.array(task.gold(rows, where="rows"))
    assert gold[:3].tolist() == [count - 1, count - 2, count - 3]
    items = np.stack([gold, gold], axis=1)
    assert all(
        metric(items) == pytest.approx(1)
        for metric in (_metrics.CLASSES["macro_f1"], _metrics.matthews)
    )
    assert task.chance(items)["accuracy"] == pytest.approx(1 / count)


@pytest.mark.parametrize("label", ["²", "९", "9" * 5000])
def test_digits_that_are_no_number_of_a_class(label: str) -> None:
    with pytest.raises(DataError, match="the task has no such label"):
        build("text-classification").gold([{"text": "a", "label": label}], where="rows")


@pytest.mark.parametrize("name", OF_TEXTS)
@pytest.mark.parametrize("parts", [1, 2])
def test_texts_of_others_become_inputs_of_every_task(name: str, parts: int, tokenizer) -> None:
    """Each once, in the form of the task's own inputs, and as long as the model takes."""
    labels = TAGS if name == "token-classification" else ()
    task, texts = build(name, labels), [f"the {letter} of" for letter in LETTERS]
    inputs = task.inputs_like(("the",) * parts, texts)
    assert len(inputs) == len(set(inputs)) == len(texts)
    encoded = task.encode(tokenizer, inputs)
    assert len(encoded.flat) >= len(texts)
    assert max(map(len, encoded.flat)) <= 64


def test_closeness_is_that_of_each_text() -> None:
    """Relative errors of scores and of tokens, changes of probabilities, cosines of vectors; against sums written out."""
    generator = np.random.default_rng(0)
    before, after = (generator.normal(0, 2, (6, 3)) for _ in range(2))
    texts = only(*[("a",)] * 6)
    classes = build("text-classification", ("x", "y", "z"))
    measure, values = classes.closeness(
        Result({"logits": after}, texts), Result({"logits": before}, texts)
    )
    chances = [
        np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True) for logits in (after, before)
    ]
    assert measure == "1 - change of a probability"
    np.testing.assert_allclose(values, 1 - np.abs(chances[0] - chances[1]).max(axis=1), atol=1e-12)
    vectors = build("embedding", text="body")
    measure, values = vectors.closeness(
        Result({"sentence_embedding": after}, texts), Result({"sentence_embedding": before}, texts)
    )
    cosines = (
        (after * before).sum(1) / np.linalg.norm(after, axis=1) / np.linalg.norm(before, axis=1)
    )
    assert measure == "cosine"
    np.testing.assert_allclose(values, cosines, atol=1e-7)


@pytest.mark.parametrize("windows", [1, 2])
def test_closeness_of_tokens_is_that_of_all_windows_of_a_text(windows: int, tokenizer) -> None:
    task = build("token-classification", TAGS)
    (row,) = tokenizer.encode([("the of the",)])
    encoded = EncodedTexts([("the",), ("of",)], [[row] * windows, [row]])
    count = len(row) * windows
    before = np.random.default_rng(0).normal(0, 3, (count + len(row), 5))
    after = before.copy()
    after[:count] += 0.3
    measure, values = task.closeness(
        Result({"logits": after}, encoded), Result({"logits": before}, encoded)
    )
    assert measure == "1 - relative error"
    np.testing.assert_allclose(values, [1 - 0.3 / before.std(), 1])
