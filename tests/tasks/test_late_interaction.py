"""Late interaction: vectors of three forms of folders against a reference apart from octobert, rows, storage, and bad models."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import octobert
from octobert.core.errors import DataError, ModelError, OctobertError
from octobert.core.session import SessionOptions
from octobert.data.encoded import feeds_of
from octobert.data.tokenization import Tokenizer
from octobert.engine.executors import inline
from octobert.evaluation.torch_session import TorchSession
from octobert.inference.batching import run_rows
from octobert.models.source import read_metadata, resolve
from octobert.pipeline import runner
from octobert.tasks import Result
from tests.support import late_interaction as late
from tests.support.pooling import write_modules
from tests.support.retrieval import OPTIONS, recipe_of, rows_in
from tests.support.runs import FAST
from tests.support.tasks import build

# Sums of float32 in another order.
SAME_FLOAT = 1e-5
TEXTS = ("the of, and a.", "it was his", "he had the and of a to in is you that it", "a")


def opened(folder: Path, **options: object):
    """(task, tokenizer) of a folder."""
    source = resolve(folder)
    task = build("late-interaction", OPTIONS | options, read_metadata(source))
    return task, Tokenizer(source.tokenizer_folder, task.max_length)


@pytest.fixture
def encoder(checkpoint) -> Path:
    return checkpoint("bert", "embedding")


@pytest.mark.parametrize("form", ["pylate", "sentence-transformers", "stanford"])
def test_vectors_are_those_of_the_library(encoder, tmp_path: Path, form: str) -> None:
    folder = late.write(encoder, tmp_path / form, form)
    task, tokenizer = opened(folder)
    asked = [task.parse({"text": text, "prompt": "query"}, where="") for text in TEXTS]
    asked += [task.parse(text, where="") for text in TEXTS]
    encoded = task.encode(tokenizer, asked)
    session = TorchSession(folder, SessionOptions(), "late-interaction")
    outputs = run_rows(session, encoded.flat, tokenizer.pad_id, per_token=True)
    vectors = task.vectors(Result(outputs, encoded))
    for index, found in enumerate(vectors):
        side, text = divmod(index, len(TEXTS))
        expected = late.reference(encoder, folder, text=TEXTS[text], side=side)
        assert found.shape == expected.shape
        np.testing.assert_allclose(found, expected, rtol=0, atol=SAME_FLOAT)
    scores = task.form.similarities("cosine", vectors[:4], vectors[4:])
    expected = [[late.maxsim(q, d) for d in vectors[4:]] for q in vectors[:4]]
    np.testing.assert_allclose(scores, expected, rtol=SAME_FLOAT)


def test_queries_are_filled_up_and_documents_lose_punctuation(encoder, tmp_path: Path) -> None:
    task, tokenizer = opened(late.write(encoder, tmp_path / "model", "pylate"))
    long = " ".join(["the"] * 30)
    query, document, cut = task.encode(
        tokenizer, [("a.", "query"), ("a.", "document"), (long, "document")]
    ).flat
    mask = tokenizer.id_of("[MASK]")
    assert (len(query), query.attended, query.entries) == (late.QUERY_TOKENS, 5, late.QUERY_TOKENS)
    assert query.ids[5:].tolist() == [mask] * 7
    # [CLS] [D] a . [SEP]
    assert (len(document), document.attended, document.entries) == (5, 5, 4)
    assert (len(cut), cut.truncated, cut.ids[-1]) == (
        late.DOCUMENT_TOKENS,
        True,
        document.ids[-1],
    )
    feeds = feeds_of([query, document], tokenizer.pad_id)
    assert feeds["attention_mask"].sum(axis=1).tolist() == [5, 5]


def test_other_statements_are_followed(encoder, tmp_path: Path) -> None:
    folder = late.write(
        encoder,
        tmp_path / "model",
        "sentence-transformers",
        query_expansion={"strategy": "min", "attend": True, "token": "the", "length": 6},
    )
    task, tokenizer = opened(folder)
    long = " ".join(["of"] * 9)
    short, whole = task.encode(tokenizer, [("[Q] a", "query"), (f"[Q] {long}", "query")]).flat
    assert short.ids[-2:].tolist() == [tokenizer.id_of("the")] * 2
    assert (short.attended, len(short), len(whole)) == (6, 6, 12)


def test_queries_are_not_filled_beyond_what_is_read(encoder, tmp_path: Path) -> None:
    task, tokenizer = opened(late.write(encoder, tmp_path / "model", "pylate"), max_length=10)
    assert len(task.encode(tokenizer, [("a", "query")]).flat[0]) == 10 < late.QUERY_TOKENS


@pytest.mark.parametrize(
    ("form", "stated"),
    [
        ("pylate", {"query_prefix": "[unknown]"}),
        ("pylate", {"query_length": "many"}),
        ("stanford", {"doc_token_id": "[unknown]"}),
        ("sentence-transformers", {"query_expansion": 32}),
        ("sentence-transformers", {"query_expansion": {"strategy": "some", "length": 8}}),
        ("pylate", {"document_length": 0.5}),
        ("stanford", {"query_maxlen": 10**9}),
        ("pylate", {"skiplist_words": [1]}),
    ],
)
def test_what_cannot_be_followed_is_named(
    golden, encoder, tmp_path: Path, form: str, stated: dict
) -> None:
    folder = late.write(encoder, tmp_path / "model", form, **stated)
    with golden.raises(ModelError):
        task, tokenizer = opened(folder)
        task.encode(tokenizer, [("a", "query"), ("a", "document")])


def test_a_model_without_a_projection_is_refused(golden, encoder, tmp_path: Path) -> None:
    recipe = recipe_of(encoder, "late-interaction", rows_in(tmp_path / "data"))
    with golden.raises(OctobertError):
        runner.run(recipe, tmp_path / "out", executor=inline.run)
    sentences = write_modules(
        shutil.copytree(encoder, tmp_path / "sentences"), [("Pooling", {"pooling_mode": "mean"})]
    )
    with golden.raises(OctobertError):
        runner.run(recipe.replaced(model=str(sentences)), tmp_path / "out", executor=inline.run)


@pytest.mark.slow
def test_a_run_writes_packages_that_answer(encoder, tmp_path: Path) -> None:
    folder = late.write(encoder, tmp_path / "model", "stanford")
    recipe = recipe_of(
        folder,
        "late-interaction",
        rows_in(tmp_path / "data"),
        targets=["ort-cpu", "openvino-cpu"],
        baselines=["ort-f32"],
        benchmark=FAST,
    )
    report = runner.run(recipe, tmp_path / "out", executor=inline.run)
    figures = report.of("ort-cpu")
    assert figures.against_float is not None
    assert figures.against_float.fidelity_name == "mean cosine of tokens"
    assert figures.against_float.fidelity > 0.98
    # Of a document's vectors: as many bytes in float32 as in int8 times 4.
    sizes = {score.type: score.size_bytes for score in figures.stored}
    assert sizes["float32"] == pytest.approx(4 * sizes["int8"], abs=4)
    for target in recipe.targets:
        model = octobert.load(tmp_path / "out" / target)
        query, document = model([{"text": "a.", "prompt": "query"}, "a."])
        assert np.shape(query["embeddings"]) == (late.QUERY_TOKENS, late.WIDTH)
        assert np.shape(document["embeddings"]) == (4, late.WIDTH)
    corpus = tmp_path / "corpus.parquet"
    pq.write_table(pa.table({"text": list(TEXTS)}), corpus)
    for kind, value in (("float32", pa.float32()), ("int8", pa.int8())):
        out = tmp_path / f"{kind}.parquet"
        octobert.embed(tmp_path / "out" / "ort-cpu", corpus, out, vectors=kind)
        written = pq.read_table(out)["embedding"]
        assert written.type.value_type.value_type == value
        assert [len(each) for each in written.to_pylist()] == [
            len(answer["embeddings"])
            for answer in octobert.load(tmp_path / "out" / "ort-cpu")(list(TEXTS))
        ]
    with pytest.raises(DataError, match="fewer dimensions"):
        octobert.embed(tmp_path / "out" / "ort-cpu", corpus, tmp_path / "x.parquet", dimensions=100)
