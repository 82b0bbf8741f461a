"""`octobert embed`: rows with their embeddings, runs that go on after a kill, and what is refused."""

from __future__ import annotations

import json
import os
import pickle
import resource
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import octobert
from octobert.core.errors import BusyError, ColumnError, DataError, ModelError, StorageError
from octobert.core.lock import locked
from tests.support.cli import PROGRAM
from tests.support.cli import octobert as command
from tests.support.corpora import ROWS, embedding, passages, write_corpus

# Sums of float32 in another order; the vectors of the tiny encoder have a length of about 1.
SAME_FLOAT = 1e-5
# Of the tiny encoder.
WIDTH = 32
# Until a process has written its first part, on a busy machine.
SECONDS = 60.0


def files_beside(out: Path) -> list[str]:
    return sorted(path.name for path in out.parent.iterdir() if path.name != "corpus")


def test_the_rows_stay_in_order_with_all_columns(embedding_package, corpus, out) -> None:
    assert octobert.embed(embedding_package, corpus, out) == 220
    table = pq.read_table(out)
    texts = passages(220)
    assert table.schema.names == ["id", "text", "tags", "embedding"]
    assert table["id"].to_pylist() == list(range(220))
    assert table["text"].to_pylist() == texts
    assert table["tags"].to_pylist() == [[i % 3] for i in range(220)]
    kind = table.schema.field("embedding").type
    assert pa.types.is_fixed_size_list(kind)
    assert (kind.value_type, kind.list_size) == (pa.float32(), WIDTH)
    assert files_beside(out) == [out.name]
    answers = octobert.load(embedding_package)(texts)
    vectors = np.stack(table["embedding"].to_numpy())
    np.testing.assert_allclose(vectors, [a["embedding"] for a in answers], atol=SAME_FLOAT)
    assert len(np.unique(vectors.round(3), axis=0)) > len(set(texts)) // 2


def test_the_same_command_has_the_same_bytes_whatever_the_row_groups(
    embedding_package, corpus, tmp_path
) -> None:
    write_corpus(tmp_path / "one.parquet", passages(150), group=1000)
    outs = [tmp_path / "first.parquet", tmp_path / "second.parquet", tmp_path / "other.parquet"]
    for data, out in zip(
        (corpus / "a.parquet",) * 2 + (tmp_path / "one.parquet",), outs, strict=True
    ):
        octobert.embed(embedding_package, data, out, rows=64)
    assert outs[0].read_bytes() == outs[1].read_bytes()
    assert pq.read_table(outs[0]).equals(pq.read_table(outs[2]))
    assert pq.read_metadata(outs[0]).num_row_groups == 3


def test_only_the_named_columns_are_kept(embedding_package, corpus, out) -> None:
    done = command(
        "embed", embedding_package, corpus, out, "--keep", "tags,id", "--rows", 50, "--json"
    )
    assert (done.returncode, json.loads(done.stdout)) == (0, {"out": str(out), "rows": 220})
    assert pq.read_schema(out).names == ["tags", "id", "embedding"]
    assert command(
        "embed", embedding_package, corpus, out, "--keep", "tags,id", "--rows", 50
    ).stdout == (f"{out}: 220 rows\n")


@pytest.mark.slow
def test_a_killed_process_goes_on_and_the_bytes_are_those_of_an_undisturbed_run(
    embedding_package, corpus, out, tmp_path
) -> None:
    """SIGKILL after a part was written, three times, at other moments."""
    write_corpus(corpus / "c.parquet", passages(3000, 220), 220)
    undisturbed = tmp_path / "undisturbed.parquet"
    octobert.embed(embedding_package, corpus, undisturbed, rows=ROWS)
    work = out.with_name(f".{out.name}.octobert")
    written: list[int] = []
    for more in (1, 3, 20):
        process = embedding(embedding_package, corpus, out, "--rows", ROWS)
        last = time.monotonic() + SECONDS
        while len(list(work.glob("0*.parquet"))) < sum(written[-1:]) + more:
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < last
        process.kill()
        process.communicate()
        assert not out.exists()
        written.append(len(list(work.glob("0*.parquet"))))
    parts = {path: path.stat().st_mtime_ns for path in work.glob("0*.parquet")}
    kept = work.parent / "kept"
    kept.mkdir()
    for path in parts:
        os.link(path, kept / path.name)
    octobert.embed(embedding_package, corpus, out, rows=ROWS)
    assert {kept / path.name: time for path, time in parts.items()} == {
        path: path.stat().st_mtime_ns for path in kept.iterdir()
    }
    assert out.read_bytes() == undisturbed.read_bytes()
    assert not work.exists()


@pytest.mark.parametrize(
    ("options", "dtype", "width"),
    [
        ({"vectors": "float16"}, np.float16, WIDTH),
        ({"vectors": "int8"}, np.int8, WIDTH),
        ({"vectors": "int8", "dimensions": 20}, np.int8, 20),
        ({"vectors": "binary", "dimensions": 20}, np.uint8, 3),
        ({"dimensions": 20}, np.float32, 20),
    ],
    ids=str,
)
def test_vectors_are_stored_in_smaller_forms(
    embedding_package, corpus, out, options, dtype, width
) -> None:
    """Intervals of int8 are those of all rows, not those of one part."""
    octobert.embed(embedding_package, corpus, whole := out.with_name("float"), rows=ROWS)
    octobert.embed(embedding_package, corpus, out, rows=ROWS, **options)
    vectors = np.stack(pq.read_table(whole)["embedding"].to_numpy())[:, : options.get("dimensions")]
    codes, form = (
        np.stack(pq.read_table(out)["embedding"].to_numpy()),
        octobert.StoredVectors.read(out),
    )
    assert (codes.dtype, codes.shape) == (dtype, (220, width))
    assert form.dimensions == vectors.shape[1]
    if form.type == "int8":
        assert (form.low, form.high) == (tuple(vectors.min(axis=0)), tuple(vectors.max(axis=0)))
        step = np.subtract(form.high, form.low) / 255
        # Float32 rounds what is stored by a millionth of a step.
        assert np.all(np.abs(form.decode(codes) - vectors) <= 0.5001 * step)
    elif form.type == "binary":
        np.testing.assert_array_equal(form.decode(codes), np.where(vectors > 0, 1, -1))
    else:
        np.testing.assert_array_equal(codes, vectors.astype(dtype))
    np.testing.assert_array_equal(form.encode(vectors), codes)


def test_a_begun_run_does_not_go_on_in_another_form(embedding_package, corpus, begun, out) -> None:
    with pytest.raises(StorageError, match="another options"):
        octobert.embed(embedding_package, corpus, out, rows=ROWS, vectors="int8")


def test_other_forms_are_refused(embedding_package, corpus, out, tmp_path) -> None:
    with pytest.raises(octobert.RecipeError, match=r"no such form of vectors .*float16"):
        octobert.embed(embedding_package, corpus, out, vectors="int4")
    with pytest.raises(octobert.RecipeError, match=r"no such form of vectors .*greater than 0"):
        octobert.embed(embedding_package, corpus, out, dimensions=0)
    with pytest.raises(DataError, match=r"fewer dimensions .*got 33, expected at most 32"):
        octobert.embed(embedding_package, corpus, out, dimensions=33)
    assert not out.exists()
    with pytest.raises(DataError, match=r"a\.parquet: the form of the vectors is unknown"):
        octobert.StoredVectors.read(corpus / "a.parquet")
    with pytest.raises(DataError, match="form of the vectors is unknown"):
        octobert.StoredVectors.read(tmp_path / "none.parquet")


def test_a_finished_run_is_not_made_again(embedding_package, corpus, out) -> None:
    """Also one that was killed after its file was renamed, before its folder was removed."""
    octobert.embed(embedding_package, corpus, out)
    before = out.stat().st_mtime_ns
    work = out.with_name(f".{out.name}.octobert")
    work.mkdir()
    assert octobert.embed(embedding_package, corpus, out) == 220
    assert out.stat().st_mtime_ns == before
    assert not work.exists()


def test_a_run_goes_on_with_what_it_began_with(begun, embedding_package, corpus, out) -> None:
    done: list[int] = []
    octobert.embed(
        embedding_package, corpus, out, rows=ROWS, progress=lambda e: done.append(e.done)
    )
    assert out.read_bytes() == out.with_name("undisturbed").read_bytes()
    assert done[-2] == 220


def other_model(package: Path, corpus: Path, tmp_path: Path) -> dict[str, object]:
    copy = shutil.copytree(package, tmp_path / "copy")
    with (copy / "onnx" / "model_quantized.onnx").open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        last = file.read(1)
        file.seek(-1, os.SEEK_END)
        file.write(bytes([last[0] ^ 1]))
    return {"package": copy}


def other_input(package: Path, corpus: Path, tmp_path: Path) -> dict[str, object]:
    write_corpus(corpus / "a.parquet", [*passages(149), "other"])
    return {}


@pytest.mark.parametrize(
    ("change", "other"),
    [
        (other_model, "another model"),
        (other_input, "another input"),
        (lambda *_: {"rows": 8}, "another options"),
        (lambda *_: {"keep": ["id"]}, "another options"),
    ],
)
@pytest.mark.parametrize("finished_run", [False, True])
def test_another_run_does_not_go_on(
    change: Callable[..., dict[str, object]],
    other: str,
    finished_run: bool,
    begun,
    embedding_package,
    corpus,
    out,
    tmp_path,
) -> None:
    arguments = {"package": embedding_package, "data": corpus, "out": out, "rows": ROWS}
    if finished_run:
        octobert.embed(**arguments)
    arguments |= change(embedding_package, corpus, tmp_path)
    where = out if finished_run else begun
    with pytest.raises(StorageError) as error:
        octobert.embed(**arguments)
    assert str(error.value) == (
        f"{where}: what is there is not of this run (got {other}); choose another name, or remove it."
    )
    assert where.exists()


def test_a_file_of_other_origin_stays(embedding_package, corpus, out, golden) -> None:
    shutil.copy(corpus / "a.parquet", out)
    with golden.raises(StorageError):
        octobert.embed(embedding_package, corpus, out)
    out.write_text("notes")
    with golden.raises(DataError):
        octobert.embed(embedding_package, corpus, out)
    assert out.read_text() == "notes"


def test_one_process_at_a_time(embedding_package, corpus, out) -> None:
    with (
        locked(out.with_name(f".{out.name}.octobert")),
        pytest.raises(BusyError, match="another octobert run is at work"),
    ):
        octobert.embed(embedding_package, corpus, out)


def test_what_cannot_be_read_is_named(embedding_package, corpus, out, tmp_path, golden) -> None:
    (tmp_path / "text.parquet").write_text("id,text\n1,he was\n")
    damaged = write_corpus(tmp_path / "damaged.parquet", passages(60))
    content = bytearray(damaged.read_bytes())
    content[4:200] = bytes(196)
    damaged.write_bytes(content)
    (tmp_path / "empty").mkdir()
    none = write_corpus(tmp_path / "none.parquet", [])
    typed = tmp_path / "typed.parquet"
    pq.write_table(pa.table({"id": ["a"], "text": ["b"], "tags": [[1]]}), typed)
    for kind, data in [
        (DataError, [tmp_path / "text.parquet"]),
        (DataError, [damaged]),
        (DataError, [tmp_path / "empty"]),
        (DataError, [tmp_path / "nowhere.parquet"]),
        (DataError, [none]),
        (ColumnError, [corpus, typed]),
    ]:
        with golden.raises(kind):
            octobert.embed(embedding_package, data, out)
    assert not out.exists()


def test_columns_that_do_not_fit_are_named(
    embedding_package, corpus, out, tmp_path, golden
) -> None:
    for options in ({"column": "txt"}, {"keep": ["id", "tag"]}, {"column": "id"}):
        with golden.raises(DataError):
            octobert.embed(embedding_package, corpus, out, **options)
    octobert.embed(embedding_package, corpus, out)
    with golden.raises(ColumnError):
        octobert.embed(embedding_package, out, tmp_path / "again.parquet")
    octobert.embed(embedding_package, out, tmp_path / "again.parquet", keep=["id"])
    assert pq.read_schema(tmp_path / "again.parquet").names == ["id", "embedding"]


def test_a_row_without_a_text_is_named(embedding_package, tmp_path, out, golden) -> None:
    """Before any other is embedded."""
    texts: list[str | None] = [*passages(50)]
    data = write_corpus(tmp_path / "data" / "b.parquet", [*texts[:40], None, *texts[41:]])
    write_corpus(tmp_path / "data" / "a.parquet", passages(30))
    with golden.raises(DataError):
        octobert.embed(embedding_package, data.parent, out, rows=ROWS)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data"]


def test_a_dictionary_of_texts_is_texts(embedding_package, tmp_path, out) -> None:
    data, texts = tmp_path / "data.parquet", ["he was", "in it", "he was"] * 20
    pq.write_table(pa.table({"text": pa.array(texts).dictionary_encode()}), data, row_group_size=7)
    octobert.embed(embedding_package, data, out, rows=ROWS)
    table = pq.read_table(out)
    assert table["text"].to_pylist() == texts
    assert len(np.unique(np.stack(table["embedding"].to_numpy()).round(4), axis=0)) == 2


def test_other_models_are_refused(finished, corpus, out, golden) -> None:
    with golden.raises(ModelError):
        octobert.embed(finished[1] / "ort-cpu", corpus, out)


def test_a_model_file_embeds_too(embedding_package, corpus, tmp_path) -> None:
    outs = [tmp_path / "package.parquet", tmp_path / "file.parquet"]
    octobert.embed(embedding_package, corpus, outs[0])
    file = embedding_package / "onnx" / "model_quantized.onnx"
    done = command("embed", file, corpus, outs[1], "--task", "{embedding: {text: text}}")
    assert done.returncode == 0, done.stderr
    first, second = (np.stack(pq.read_table(out)["embedding"].to_numpy()) for out in outs)
    np.testing.assert_allclose(first, second, atol=SAME_FLOAT)


def test_a_full_disk_is_a_sentence_and_the_command_goes_on(
    embedding_package, tmp_path, out
) -> None:
    """A limit on the size of any file stands in for the disk: the parts fit, the whole does not."""
    data = write_corpus(tmp_path / "data.parquet", passages(2000), group=1000)
    arguments = ["embed", str(embedding_package), str(data), str(out), "--rows", "500"]
    assert command(*arguments).returncode == 0
    undisturbed = out.read_bytes()
    out.unlink()

    def limit() -> None:
        size = len(undisturbed) * 2 // 3
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    failed = subprocess.run(
        [*PROGRAM, *arguments], capture_output=True, text=True, preexec_fn=limit
    )
    assert failed.returncode == StorageError.exit_code, failed.stderr
    assert "the disk is full" in failed.stderr
    assert "run the same command again" in failed.stderr
    assert not out.exists()
    assert command(*arguments).returncode == 0
    assert out.read_bytes() == undisturbed


def test_a_block_without_rows_has_vectors_of_the_same_width(embedding_package) -> None:
    embedder = octobert.Embedder(embedding_package)
    assert embedder.vectors([]).shape == (0, WIDTH)
    empty = embedder(pa.table({"text": pa.array([], pa.string())}))
    assert empty.schema == embedder(pa.table({"text": ["he had it"]})).schema


def test_an_embedder_is_pickled_without_its_model(embedding_package) -> None:
    embedder = octobert.Embedder(str(embedding_package), options={"streams": 1})
    table = pa.table({"id": [1, 2], "text": ["he was in it", "that is you"]})
    before = len(pickle.dumps(embedder))
    answered = embedder(table)
    assert answered.column_names == ["id", "text", "embedding"]
    assert len(pickle.dumps(embedder)) == before
    again = pickle.loads(pickle.dumps(embedder))
    assert again == embedder
    assert again({"text": np.array(table["text"].to_pylist())})["embedding"].equals(
        answered["embedding"]
    )
    with pytest.raises(DataError, match="row 2: the input is not a text"):
        embedder(pa.table({"text": ["a", None]}))
    # As Ray Data and Spark give a missing text with others.
    for missing in (None, float("nan")):
        with pytest.raises(DataError, match=f"row 2: the input is not a text .*got {missing}"):
            embedder.vectors(np.array(["a", missing], dtype=object))
    with pytest.raises(ColumnError, match='the batch: there is no column "text"'):
        embedder(pa.table({"body": ["a"]}))
