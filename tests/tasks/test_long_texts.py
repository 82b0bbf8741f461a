"""Texts that are longer than the model takes: what each window holds, and what a text has of its windows' outputs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

import octobert
from octobert.config.recipe import Choice
from octobert.core import budget, environment
from octobert.core.errors import DataError, ModelError
from octobert.core.results import ModelMetadata
from octobert.core.session import SessionOptions
from octobert.data.encoded import feeds_of
from octobert.data.tokenization import Tokenizer
from octobert.data.windows import NOWHERE
from octobert.engine.executors import inline
from octobert.evaluation.torch_session import TorchSession
from octobert.inference.batching import run_rows
from octobert.pipeline import runner
from octobert.tasks import Result
from tests.support.retrieval import recipe_of, rows_in
from tests.support.runs import FAST
from tests.support.tasks import build

# Sums of float32 in another order.
SAME_FLOAT = 1e-5
# Tokens of a row.
LENGTH = 16
WORDS = ("the", "of", "and", "a", "to", "in", "is", "was", "he", "it")
LABELS = ModelMetadata(labels=("different", "same"))


def words(count: int, start: int = 0) -> str:
    return " ".join(np.random.default_rng(start).choice(WORDS, count))


def task_of(name: str = "text-classification", **options: object):
    metadata = LABELS if name == "text-classification" else ModelMetadata()
    return build(name, options, metadata)


def inside(window) -> np.ndarray:
    return window.ids[window.spans[:, 0] != NOWHERE]


@pytest.fixture
def tokenizer(checkpoint) -> Tokenizer:
    return Tokenizer(checkpoint("bert", "embedding"), LENGTH)


@pytest.mark.parametrize("overlap", [0, 1, 5, 13])
@pytest.mark.parametrize("count", [15, 16, 28, 29, 43, 200])
def test_few_full_windows_hold_the_text_and_share_what_they_must(
    tokenizer, count: int, overlap: int
) -> None:
    text = (words(count),)
    task = task_of(windows="mean", overlap=overlap)
    (rows,) = task.encode(tokenizer, [text]).rows
    tokens = tokenizer.offsets(text)[0].ids
    room = LENGTH - 2
    # As few as can hold it.
    assert len(rows) == 1 + max(0, -(-(count - room) // (room - overlap)))
    assert all(len(row) == LENGTH and not row.truncated for row in rows)
    end = 0
    for row in rows:
        start = next(
            at
            for at in range(max(0, end - room), end + 1)
            if np.array_equal(tokens[at : at + room], inside(row))
        )
        assert not end or end - start >= overlap
        end = start + room
    assert end == count


def test_a_text_that_fits_is_the_row_that_it_always_was(tokenizer) -> None:
    for text in [(words(14),), ("",), (words(5), words(6))]:
        ((row,),) = task_of(windows="max").encode(tokenizer, [text]).rows
        (whole,) = tokenizer.encode([text])
        np.testing.assert_array_equal(row.ids, whole.ids)
        np.testing.assert_array_equal(row.types, whole.types)


@pytest.mark.parametrize(("first", "held"), [(3, 3), (40, 6)])
def test_the_first_text_of_a_pair_stands_in_every_window(tokenizer, first: int, held: int) -> None:
    pair = (words(first), words(30, 3))
    (rows,) = task_of(windows="mean").encode(tokenizer, [pair]).rows
    one, two = (tokens.ids for tokens in tokenizer.offsets(pair))
    frame = tokenizer.frame(2)
    for row in rows:
        start = [*frame.special[0], *one[:held], *frame.special[1]]
        assert row.ids[: len(start)].tolist() == start
        assert row.ids[-1] == frame.special[2][0]
        assert len(row) == LENGTH
        # The second text has segment 1, and nothing before it.
        assert row.types.tolist() == [0] * len(start) + [1] * (LENGTH - len(start))
        assert row.truncated == (held < first)
    assert set(np.concatenate([inside(row) for row in rows])) == set(two)


@pytest.mark.parametrize(("first", "second"), [(12, 1), (30, 0), (30, 3), (3, 4)])
def test_a_short_second_text_leaves_its_room_to_the_first(
    tokenizer, first: int, second: int
) -> None:
    pair = (words(first), words(second, 3))
    (rows,) = task_of(windows="mean").encode(tokenizer, [pair]).rows
    ((plain,),) = task_of().encode(tokenizer, [pair]).rows
    assert len(rows) == 1
    assert len(rows[0]) == len(plain)
    assert rows[0].truncated == plain.truncated


def test_a_prompt_stands_before_every_window(tokenizer) -> None:
    metadata = ModelMetadata(prompts={"passage": "it was : ", "query": "it "})
    options = {"text": ["text"], "prompt": "passage", "windows": "mean"}
    task = build("embedding", options, metadata)
    text = task.parse(words(40), where="")
    (rows,) = task.encode(tokenizer, [text]).rows
    prompt = tokenizer.offsets(["it was :"])[0].ids
    assert len(rows) > 3
    for row in rows:
        np.testing.assert_array_equal(row.ids[1 : 1 + len(prompt)], prompt)
    held = np.concatenate([inside(row) for row in rows])
    assert len(held) >= 40
    np.testing.assert_array_equal(inside(rows[0]), tokenizer.offsets([words(40)])[0].ids[:11])


@pytest.mark.parametrize("joined", ["mean", "max"])
def test_logits_of_a_text_are_joined_of_its_windows(checkpoint, joined: str) -> None:
    folder = checkpoint("bert", "sequence-classification")
    tokenizer, task = Tokenizer(folder, LENGTH), task_of(windows=joined)
    texts = [(words(n, n),) for n in (3, 40, 14, 15, 90)]
    encoded = task.encode(tokenizer, texts)
    session = TorchSession(folder, SessionOptions(), "sequence-classification")
    result = Result(run_rows(session, encoded.flat, tokenizer.pad_id), encoded, [0] * len(texts))
    assert [len(rows) for rows in encoded.rows] == [1, 3, 1, 2, 7]
    for index, rows in enumerate(encoded.rows):
        each = np.concatenate([session.run(feeds_of([row], 0))["logits"] for row in rows])
        expected = each.mean(axis=0) if joined == "mean" else each.max(axis=0)
        np.testing.assert_allclose(result.logits[index], expected, atol=SAME_FLOAT)
        answer = task.answer(result, index, texts[index])
        assert answer["label"] == LABELS.labels[int(expected.argmax())]
    assert len(task.items(result)) == len(task.closeness(result, result)[1]) == len(texts)
    assert task.fidelity(result, result).agreement == 1
    # Every window is trained on with the label of its text.
    targets = task.targets(encoded, [0, 1, 0, 1, 1])
    assert [target["labels"] for target in targets] == [0] + 3 * [1] + [0] + 2 * [1] + 7 * [1]


@pytest.mark.parametrize("normalized", [True, False])
def test_a_vector_is_joined_of_windows_and_as_long_as_theirs(tokenizer, normalized: bool) -> None:
    task = task_of("embedding", text=["text"], windows="mean")
    texts = [(words(n, n),) for n in (3, 40, 14)]
    encoded = task.encode(tokenizer, texts)
    vectors = np.random.default_rng(1).normal(1, 1, (5, 8)).astype(np.float32)
    if normalized:
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    result = Result({"sentence_embedding": vectors}, encoded)
    found = task.vectors(result)
    mean = vectors[1:4].mean(axis=0)
    length = np.linalg.norm(vectors[1:4], axis=1).mean()
    expected = np.stack([vectors[0], mean / np.linalg.norm(mean) * length, vectors[4]])
    np.testing.assert_allclose(found, expected, atol=SAME_FLOAT)
    assert task.answer(result, 2, texts[2])["embedding"] == pytest.approx(vectors[4].tolist())
    assert task.fidelity(result, result).agreement == pytest.approx(1)


def test_wrong_options_are_one_sentence(tokenizer) -> None:
    with pytest.raises(ValidationError, match="overlap is of windows: set windows: mean, or max"):
        task_of(overlap=3)
    with pytest.raises(
        DataError, match=r"overlap: windows would not advance \(got 14, expected less than the 14"
    ):
        task_of(windows="mean", overlap=14).encode(tokenizer, [(words(40),)])


def test_a_run_a_package_and_a_corpus_read_long_documents_in_windows(
    checkpoint, tmp_path: Path
) -> None:
    """Stored vectors are of whole documents, and so are those of a package and of a corpus."""
    folder = checkpoint("bert", "embedding")
    options = {"query": "query", "document": "document", "max_length": 6, "windows": "max"}
    recipe = recipe_of(folder, "embedding", rows_in(tmp_path / "data"), benchmark=FAST)
    recipe = recipe.replaced(task=Choice(name="embedding", options=options))
    report = runner.run(recipe, tmp_path / "out", executor=inline.run)
    figures = report.of("ort-cpu")
    whole = next(score for score in figures.scores if score.metric == "ndcg@10")
    stays, own = figures.stored[:2]
    assert (stays.type, own.type, stays.documents) == ("float32", "float32", "ort-f32")
    assert own.value == pytest.approx(whole.value)
    with octobert.load(tmp_path / "out/ort-cpu", measure=False) as model:
        long = words(28).split()
        parts = [" ".join(long[start : start + 4]) for start in range(0, 28, 4)]
        whole, *windows = (answer["embedding"] for answer in model([words(28), *parts]))
        lengths = np.linalg.norm(windows, axis=1).mean()
        highest = np.max(windows, axis=0)
        expected = highest / np.linalg.norm(highest) * lengths
        np.testing.assert_allclose(whole, expected, atol=SAME_FLOAT)
        assert "truncated" not in model([words(28)])[0]
    embedded = octobert.Embedder(tmp_path / "out/ort-cpu").vectors([words(28), "the of"])
    np.testing.assert_allclose(embedded[0], whole, atol=SAME_FLOAT)
    with pytest.raises(ModelError, match="would cut long texts, which the task reads in windows"):
        octobert.export(tmp_path / "out/ort-cpu", "sentence-transformers", tmp_path / "st")


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("text-classification", {"windows": "mean", "overlap": 13}),
        ("embedding", {"windows": "max", "overlap": 13}),
        ("token-classification", {"step": 1}),
        ("token-classification", {"overlap": 13}),
        ("question-answering", {"step": 1, "max_query_length": 2}),
    ],
)
def test_windows_do_not_fill_the_memory(tokenizer, monkeypatch, name: str, options: dict) -> None:
    """They take a share of what is free, which is known before any is made."""
    metadata = ModelMetadata(labels=("O", "B-X") if name == "token-classification" else ())
    task = build(name, options, LABELS if name == "text-classification" else metadata)

    def encoded(count: int) -> int:
        text = words(count)
        inputs = {"question-answering": ("who ?", text), "token-classification": text.split()}
        return len(task.encode(tokenizer, [task.parse(inputs.get(name, text), where="")]).flat)

    assert encoded(2000) > 1000
    monkeypatch.setattr(budget, "_LITTLE", 1 << 20)
    monkeypatch.setattr(environment, "memory", lambda: environment.Memory(2 << 30, 64 << 20))
    with pytest.raises(
        DataError,
        match=r"overlap: a text of 2,0\d\d tokens in [12],\d\d\d windows would take too much memory "
        r"\(got about \d MiB, expected at most 64 MiB, which are free / 32\); lower overlap, or raise step",
    ):
        encoded(2000)
    assert encoded(200) > 100
