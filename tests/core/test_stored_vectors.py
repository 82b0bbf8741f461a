"""Smaller forms of vectors: what is stored, what comes back, and how retrieval is judged with them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from octobert.core.errors import DataError
from octobert.core.stored_vectors import StoredVectors
from octobert.data.tokenization import EncodedTexts
from octobert.evaluation.stored import stored_scores
from octobert.tasks import Result
from octobert.tasks._vectors import similarities
from tests.support.tasks import build


def vectors(count: int, size: int = 24, seed: int = 0) -> np.ndarray:
    drawn = np.random.default_rng(seed).standard_normal((count, size))
    return (drawn / np.linalg.norm(drawn, axis=1, keepdims=True)).astype(np.float32)


def test_int8_is_within_half_a_step_of_each_dimension() -> None:
    kept = vectors(500)
    form = StoredVectors(type="int8").fitted(kept)
    codes = form.encode(kept)
    step = (kept.max(axis=0) - kept.min(axis=0)) / 255
    assert codes.dtype == np.int8
    assert (codes.min(), codes.max()) == (-128, 127)
    # Float32 rounds what is stored by a millionth of a step.
    assert np.all(np.abs(form.decode(codes) - kept) <= 0.5001 * step)


def test_values_beyond_the_intervals_are_clipped() -> None:
    form = StoredVectors(type="int8").fitted(np.array([[0.0, -1.0], [1.0, 1.0]]))
    codes = form.encode(np.array([[9.0, -9.0]]))
    np.testing.assert_array_equal(codes, [[127, -128]])
    np.testing.assert_allclose(form.decode(codes), [[1.0, -1.0]], atol=1e-6)


def test_a_form_without_intervals_says_so() -> None:
    with pytest.raises(DataError, match=r"no intervals yet; form\.fitted\(vectors\) has them"):
        StoredVectors(type="int8").encode(vectors(3))


def test_a_constant_dimension_is_kept() -> None:
    form = StoredVectors(type="int8").fitted(np.full((4, 3), 0.25))
    np.testing.assert_allclose(form.decode(form.encode(np.full((1, 3), 0.25))), 0.25)


@pytest.mark.parametrize("kind", ["float32", "float16", "int8", "binary"])
def test_vectors_of_another_width_are_refused(kind: str) -> None:
    form = StoredVectors(type=kind).fitted(vectors(9))
    with pytest.raises(DataError, match=r"fewer dimensions .*got 24, expected at most 15"):
        form.encode(vectors(3, 15))
    assert form.encode(vectors(3, 33)).shape == form.encode(vectors(3)).shape
    width = form.encode(vectors(3)).shape[-1]
    for codes in (np.zeros((2, width - 1), np.uint8), np.zeros((2, 33), np.uint8), np.uint8(1)):
        with pytest.raises(DataError, match=rf"not as wide .*shape .*expected \[n, {width}\]"):
            form.decode(np.asarray(codes))


@pytest.mark.parametrize("size", [8, 12, 24])
def test_bits_are_signs(size: int) -> None:
    kept = vectors(20, size)
    form = StoredVectors(type="binary").fitted(kept)
    codes = form.encode(kept)
    assert (codes.dtype, codes.shape) == (np.uint8, (20, -(-size // 8)))
    np.testing.assert_array_equal(form.decode(codes), np.where(kept > 0, 1, -1))


def test_dimensions_are_the_first() -> None:
    kept = vectors(5)
    assert StoredVectors(dimensions=8).encode(kept).tolist() == kept[:, :8].tolist()
    half = StoredVectors(type="float16", dimensions=8).encode(kept)
    np.testing.assert_array_equal(half, kept[:, :8].astype(np.float16))


def retrieval(count: int, noise: float, **options: object):
    """As many queries as documents, whose vectors differ by noise."""
    task = build("embedding", {"query": "q", "document": "d", **options})
    rows = [{"q": f"q{i}", "d": f"d{i}"} for i in range(count)]
    encoded = EncodedTexts(task.inputs(rows, where="rows"), [])
    found = vectors(count)
    asking = found + noise * vectors(count, seed=1)
    outputs = {"sentence_embedding": np.concatenate([asking, found]).astype(np.float32)}
    return task, Result(outputs, encoded, task.gold(rows, where="rows"))


def test_forms_are_scored_against_float_vectors() -> None:
    task, result = retrieval(600, 0.8, dimensions=(12,))
    scores = list(stored_scores(task, ("ort-cpu", "ort-f32"), result, result, seed=0))
    sizes = {(score.type, score.dimensions): score.size_bytes for score in scores}
    assert sizes == {
        ("float32", 24): 96,
        ("float16", 24): 48,
        ("int8", 24): 24,
        ("binary", 24): 3,
        ("float32", 12): 48,
        ("float16", 12): 24,
        ("int8", 12): 12,
        ("binary", 12): 2,
    }
    values = {(score.type, score.dimensions): score for score in scores}
    whole = values["float32", 24]
    assert whole.difference.value == 0.0
    assert values["int8", 24].value == pytest.approx(whole.value, abs=0.01)
    assert values["binary", 24].value < values["float16", 24].value
    assert values["int8", 12].value < values["int8", 24].value
    assert values["binary", 12].difference.high < 0.0


def test_an_index_of_the_float_model_stays() -> None:
    """Queries of the quantized model find documents by the float model's vectors."""
    task, float_model = retrieval(200, 0.8)
    asking, found = np.split(float_model.outputs["sentence_embedding"], 2)
    worse = np.concatenate([asking, found + 2 * vectors(200, seed=2)]).astype(np.float32)
    eight = replace(float_model, outputs={"sentence_embedding": worse})
    stays, own, *_ = stored_scores(task, ("ort-cpu", "ort-f32"), eight, float_model, seed=0)
    assert (stays.documents, own.documents) == ("ort-f32", "ort-cpu")
    assert (stays.type, stays.dimensions, stays.size_bytes) == ("float32", 24, 96)
    # The queries are the same here, so nothing is lost; the worse documents are not read.
    assert stays.difference is not None
    assert stays.difference.value == 0.0
    unit = [each / np.linalg.norm(each, axis=1, keepdims=True) for each in (asking, found)]
    ranks = [1 + int((row > row[i]).sum()) for i, row in enumerate(unit[0] @ unit[1].T)]
    gains = [1 / np.log2(1 + rank) if rank <= 10 else 0.0 for rank in ranks]
    assert stays.value == pytest.approx(np.mean(gains), abs=1e-9)
    assert own.value < stays.value


def test_bits_find_four_hundred_documents_that_the_query_ranks() -> None:
    """A search over all signs, and then the float query with the signs of what it found."""
    task, result = retrieval(900, 1.2)
    binary = next(
        score
        for score in stored_scores(task, ("x", "x-f32"), result, result, seed=0)
        if score.type == "binary"
    )
    asking, found = np.split(result.outputs["sentence_embedding"].astype(np.float64), 2)
    signs = np.where(found > 0, 1.0, -1.0)
    gains = []
    for i, query in enumerate(asking):
        bits = signs @ np.where(query > 0, 1.0, -1.0)
        shortlist = np.argsort(-bits, kind="stable")[:400]
        scores = similarities("cosine", query[None], signs[shortlist])[0]
        place = np.flatnonzero(shortlist == i)
        rank = 1 + int((scores > scores[place[0]] - 1e-9).sum() - 1) if len(place) else 0
        gains.append(1 / np.log2(1 + rank) if 1 <= rank <= 10 else 0.0)
    # Which of several documents with equal bits is the last of the shortlist is not defined.
    assert binary.value == pytest.approx(np.mean(gains), abs=2e-3)


def test_more_dimensions_than_vectors_have_are_refused() -> None:
    task, result = retrieval(20, 0.5, dimensions=(32,))
    with pytest.raises(
        DataError,
        match=r"task\.embedding\.dimensions: .*fewer dimensions .*got 32, expected at most 24",
    ):
        list(stored_scores(task, ("ort-cpu", "ort-f32"), result, result, seed=0))
