"""`octobert embed` on what is damaged, changes, or is of unknown origin: parts, records, input, and what is at OUT."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import octobert
from octobert.core.errors import ColumnError, DataError, RecipeError, StorageError
from octobert.core.stored_vectors import NOTED
from octobert.inference import corpus as module
from tests.support.cli import octobert as command
from tests.support.corpora import ROWS, passages, write_corpus

DEEP = b"[" * 100_000


def with_vectors(change: Callable[[np.ndarray], np.ndarray]) -> Callable[[Path], None]:
    """Write a part again with other vectors."""

    def write(part: Path) -> None:
        table = pq.read_table(part)
        vectors = change(np.stack(table["embedding"].to_numpy()))
        column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), vectors.shape[1])
        pq.write_table(table.set_column(table.num_columns - 1, "embedding", column), part)

    return write


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 1
    path.write_bytes(content)


def swap(path: Path) -> None:
    """Exchange a file and that of the first part."""
    other, spare = path.with_stem("00000000"), path.with_name("spare")
    for one, two in ((path, spare), (other, path), (spare, other)):
        one.rename(two)


def swap_with_records(part: Path) -> None:
    swap(part)
    swap(part.with_suffix(".part"))


def replaced(make: Callable[[Path], object]) -> Callable[[Path], None]:
    def replace(path: Path) -> None:
        content = path.read_bytes()
        path.unlink()
        path.with_name("elsewhere").write_bytes(content)
        make(path)

    return replace


DAMAGE = {
    "empty": lambda path: path.write_bytes(b""),
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-9]),
    "flipped": flip,
    "swapped": swap,
    "swapped with records": swap_with_records,
    "half": lambda path: pq.write_table(pq.read_table(path)[: ROWS // 2], path),
    "no vectors": lambda path: pq.write_table(pq.read_table(path).drop_columns("embedding"), path),
    "nan": with_vectors(lambda vectors: vectors * np.float32("nan")),
    "wider": with_vectors(lambda vectors: np.concatenate([vectors, vectors], axis=1)),
    "pipe": replaced(os.mkfifo),
    "link": replaced(lambda path: path.symlink_to("elsewhere")),
    "folder": replaced(Path.mkdir),
    "absent": Path.unlink,
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_part_is_made_again(damage, begun, embedding_package, corpus, out) -> None:
    damage(begun / "00000002.parquet")
    octobert.embed(embedding_package, corpus, out, rows=ROWS)
    assert out.read_bytes() == out.with_name("undisturbed").read_bytes()
    assert not begun.exists()


def test_what_is_whole_is_taken(begun, embedding_package, corpus, out, monkeypatch) -> None:
    flip(begun / "00000001.parquet")
    made, vectors = [], octobert.Embedder._vectors
    counted = lambda self, texts: made.append(1) or vectors(self, texts)  # noqa: E731
    whole = len(list(begun.glob("[0-9]*.parquet")))
    monkeypatch.setattr(octobert.Embedder, "_vectors", counted)
    octobert.embed(embedding_package, corpus, out, rows=ROWS)
    # 10 parts of the first file, 5 of the second; one more, for the width.
    assert len(made) == 15 - whole + 1 + 1


@pytest.mark.parametrize(
    "change",
    [
        Path.unlink,
        flip,
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(b"[1]"),
        lambda path: path.write_bytes(DEEP),
        replaced(os.mkfifo),
        replaced(Path.mkdir),
        replaced(lambda path: path.symlink_to("elsewhere")),
    ],
)
@pytest.mark.parametrize("name", ["run.json", "00000001.part", "whole", "partial-00000009.parquet"])
def test_a_damaged_record_is_written_again(
    name: str, change, begun, embedding_package, corpus, out
) -> None:
    path = begun / name
    if not path.exists():
        path.write_bytes(b"left by a run that was killed")
    change(path)
    if path.is_dir() and name.startswith("partial"):
        path.rmdir()
    octobert.embed(embedding_package, corpus, out, rows=ROWS)
    assert out.read_bytes() == out.with_name("undisturbed").read_bytes()


@pytest.mark.parametrize("record", ["kept", "removed"])
def test_parts_of_another_run_are_not_taken(
    record, begun, embedding_package, corpus, out, tmp_path
) -> None:
    """Also where the first part is missing."""
    other = write_corpus(tmp_path / "other.parquet", passages(220, 5))
    (begun / "00000000.parquet").unlink()
    if record == "kept":
        with pytest.raises(StorageError, match=r"not of this run .*got another input"):
            octobert.embed(embedding_package, other, out, rows=ROWS)
        return
    (begun / "run.json").unlink()
    octobert.embed(embedding_package, other, out, rows=ROWS)
    assert pq.read_table(out)["text"].to_pylist() == passages(220, 5)


def test_a_part_that_changes_after_it_was_taken_is_named(
    embedding_package, corpus, out, monkeypatch
) -> None:
    def change(event: octobert.ProgressEvent) -> None:
        if event.done == 220:
            flip(out.with_name(f".{out.name}.octobert") / "00000001.parquet")

    with pytest.raises(StorageError, match=r"00000001\.parquet: the file changed .*same command"):
        octobert.embed(embedding_package, corpus, out, rows=ROWS, progress=change)
    octobert.embed(embedding_package, corpus, out, rows=ROWS)
    octobert.embed(embedding_package, corpus, out.with_name("again"), rows=ROWS)
    assert out.read_bytes() == out.with_name("again").read_bytes()


@pytest.mark.parametrize("noted", [b"[]", b"7", b"no JSON", b"\xff", DEEP], ids=lambda n: n[:8])
def test_an_out_with_another_note_is_of_other_origin(
    noted, embedding_package, corpus, out, golden
) -> None:
    table = pq.read_table(corpus / "a.parquet").replace_schema_metadata({b"octobert": noted})
    pq.write_table(table, out)
    with pytest.raises(StorageError, match="a file of other origin"):
        octobert.embed(embedding_package, corpus, out)


def test_a_place_that_is_no_file_is_refused(embedding_package, corpus, tmp_path) -> None:
    for out in (Path(), Path("/"), tmp_path, corpus):
        with pytest.raises(StorageError, match="a folder is there; name a file"):
            octobert.embed(embedding_package, corpus, out)
    assert command("embed", embedding_package, corpus, "").returncode == StorageError.exit_code
    os.mkfifo(pipe := tmp_path / "pipe")
    with pytest.raises(DataError, match="not a regular file"):
        octobert.embed(embedding_package, corpus, pipe)


def test_out_is_not_one_of_the_files_that_are_read(
    embedding_package, corpus, tmp_path, monkeypatch
) -> None:
    (tmp_path / "link").symlink_to(corpus)
    monkeypatch.chdir(corpus)
    for data in (corpus, tmp_path / "link", "."):
        for out in ("vectors.parquet", corpus / "b" / "vectors.parquet"):
            with pytest.raises(StorageError, match="one of those that are read"):
                octobert.embed(embedding_package, data, out)
    assert octobert.embed(embedding_package, corpus, corpus / ".vectors" / ".." / "vectors") == 220
    assert octobert.embed(embedding_package, corpus, corpus / "_vectors.parquet") == 220


def test_a_file_that_appears_at_out_stays(
    embedding_package, corpus, out, monkeypatch, tmp_path
) -> None:
    def appear(event: octobert.ProgressEvent) -> None:
        if event.done == 220 and not out.exists():
            out.write_text("notes")

    for links in (True, False):
        if not links:
            monkeypatch.setattr(os, "link", lambda *_: (_ for _ in ()).throw(OSError(95, "no")))
        with pytest.raises(StorageError, match=r"something else was put there .*move it away"):
            octobert.embed(embedding_package, corpus, out, rows=ROWS, progress=appear)
        assert out.read_text() == "notes"
        out.unlink()
    assert octobert.embed(embedding_package, corpus, out, rows=ROWS) == 220
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == [out.name]


def test_hidden_is_what_is_hidden_inside_of_the_folder(
    embedding_package, tmp_path, out, monkeypatch
) -> None:
    """And folders of Spark and Dask have the names of files."""
    data = tmp_path / ".cache" / "_hub" / "corpus"
    write_corpus(data / "first.parquet" / "part-00000.snappy.parquet", passages(3))
    write_corpus(data / "first.parquet" / "part-00001.snappy.parquet", passages(3, 3), 3)
    write_corpus(data / "second.parquet" / "part.0.parquet", passages(3, 6), 6)
    for name in (".a.parquet", "_b.parquet", "_delta_log/1.parquet", ".hidden/c.parquet"):
        write_corpus(data / "first.parquet" / name, passages(1))
    (data / "first.parquet" / "_SUCCESS").touch()
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert octobert.embed(embedding_package, "../.cache/_hub/corpus", out) == 9
    assert pq.read_table(out)["text"].to_pylist() == passages(9)


@pytest.mark.parametrize("kind", ["pipe", "link to nothing", "link to a folder", "device"])
def test_what_is_no_file_is_refused(kind, embedding_package, corpus, out, tmp_path) -> None:
    path = corpus / "c.parquet"
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to({"device": "/dev/zero", "link to a folder": "b"}.get(kind, "nothing"))
    for data in (corpus, path)[: 1 if kind == "link to a folder" else 2]:
        with pytest.raises(
            DataError,
            match=r"c\.parquet: (the file cannot be read as Parquet|the link leads to nothing|the file is a link)",
        ):
            octobert.embed(embedding_package, data, out)
    with pytest.raises(DataError, match="form of the vectors is unknown"):
        octobert.StoredVectors.read(path)


@pytest.mark.parametrize("way", ["replaced", "written into", "removed"])
def test_input_that_changes_stops_the_run(
    way, embedding_package, corpus, out, tmp_path, monkeypatch
) -> None:
    """While the first file is embedded, the second one changes."""
    file = corpus / "b" / "a.parquet"
    kept = shutil.copy2(file, tmp_path / "kept")

    def change(event: octobert.ProgressEvent) -> None:
        if event.done == ROWS:
            other = write_corpus(tmp_path / "other", passages(30, 9))
            if way == "replaced":
                other.rename(file)
            elif way == "written into":
                file.write_bytes(other.read_bytes())
            else:
                file.unlink()

    with pytest.raises(DataError, match=r"a\.parquet: the file (changed while|cannot be read)"):
        octobert.embed(embedding_package, corpus, out, rows=ROWS, progress=change)
    assert not out.exists()
    shutil.copy2(kept, file)
    octobert.embed(embedding_package, corpus, out, rows=ROWS)
    assert pq.read_table(out)["text"].to_pylist() == passages(220)


def test_input_that_somebody_links_is_the_same(embedding_package, corpus, out, tmp_path) -> None:
    def link(event: octobert.ProgressEvent) -> None:
        if event.done == ROWS:
            os.link(corpus / "a.parquet", tmp_path / "backup")

    assert octobert.embed(embedding_package, corpus, out, rows=ROWS, progress=link) == 220


def test_columns_of_one_name_are_refused(embedding_package, tmp_path, out) -> None:
    data = tmp_path / "data.parquet"
    twice = pa.table([["a"], ["b"], ["c"]], names=["id", "text", "id"])
    pq.write_table(twice, data)
    with pytest.raises(ColumnError, match=r'2 columns have the name "id"; rename all but one'):
        octobert.embed(embedding_package, data, out)
    assert octobert.embed(embedding_package, data, out, keep=["text", "text"]) == 1
    assert pq.read_schema(out).names == ["text", "embedding"]
    with pytest.raises(ColumnError, match='the batch: 2 columns have the name "id"'):
        octobert.Embedder(embedding_package, column="id")(twice)


def test_a_text_that_is_not_utf_8_is_named(embedding_package, tmp_path, out) -> None:
    offsets, bad = pa.py_buffer(np.array([0, 1, 3], np.int32)), pa.py_buffer(b"a\xff\xfe")
    data, texts = (
        tmp_path / "data.parquet",
        pa.Array.from_buffers(pa.string(), 2, [None, offsets, bad]),
    )
    pq.write_table(pa.table({"text": texts}), data)
    with pytest.raises(DataError, match=r"data\.parquet, row 2: the text is not UTF-8"):
        octobert.embed(embedding_package, data, out)
    with pytest.raises(DataError, match="row 2: the text is not UTF-8"):
        octobert.Embedder(embedding_package)(pa.table({"text": texts}))


def test_rows_have_a_limit(embedding_package, corpus, out) -> None:
    for rows in (10**30, 2**31):
        with pytest.raises(
            RecipeError, match=r"rows: .*too large .*expected at most 2,147,483,647"
        ):
            octobert.embed(embedding_package, corpus, out, rows=rows)
    assert octobert.embed(embedding_package, corpus, out, rows=2**31 - 1) == 220


def test_a_refused_call_leaves_nothing(embedding_package, corpus, out, tmp_path) -> None:
    before = sorted(tmp_path.iterdir())
    with pytest.raises(DataError, match="fewer dimensions"):
        octobert.embed(embedding_package, corpus, out, dimensions=33)
    write_corpus(tmp_path / "taken.parquet", passages(3))
    table = pq.read_table(tmp_path / "taken.parquet")
    pq.write_table(table.append_column("embedding", [[1, 2, 3]]), tmp_path / "taken.parquet")
    with pytest.raises(ColumnError, match='there is a column "embedding" already'):
        octobert.embed(embedding_package, tmp_path / "taken.parquet", out)
    (tmp_path / "taken.parquet").unlink()
    assert sorted(tmp_path.iterdir()) == before
    assert octobert.embed(embedding_package, corpus, out, dimensions=32) == 220


def test_a_run_that_wrote_no_part_hinders_no_other(
    embedding_package, corpus, out, monkeypatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "_write", fail)
    with pytest.raises(StorageError, match="the disk is full"):
        octobert.embed(embedding_package, corpus, out, rows=ROWS)
    monkeypatch.undo()
    assert octobert.embed(embedding_package, corpus, out, rows=8) == 220


def test_int8_has_no_interval_for_what_is_not_finite(
    embedding_package, corpus, out, monkeypatch
) -> None:
    vectors = octobert.Embedder._vectors
    nan = np.float32("nan")
    monkeypatch.setattr(
        octobert.Embedder, "_vectors", lambda self, texts: vectors(self, texts) * nan
    )
    with pytest.raises(octobert.ModelError, match=r"rows 1 to 16: .*not finite"):
        octobert.embed(embedding_package, corpus, out, rows=ROWS, vectors="int8")


@pytest.mark.parametrize(
    "noted",
    [
        {"type": "binary", "dimensions": 10**9},
        {"type": "int8", "dimensions": 3, "low": [0, 0], "high": [1, 1]},
        {"type": "int8", "dimensions": 2, "low": [0, 0], "high": [1]},
        {"type": "int8", "low": [0, 0], "high": [1, 1]},
        {"type": "int8", "dimensions": 2, "low": [0, 2], "high": [1, 1]},
        {"type": "int8", "dimensions": 1, "low": [float("nan")], "high": [1]},
        {"type": "int8", "dimensions": 1, "low": [0], "high": [float("inf")]},
        {"type": "int4"},
        [],
    ],
    ids=str,
)
def test_a_form_of_unknown_origin_has_limits(noted, tmp_path) -> None:
    file = tmp_path / "vectors.parquet"
    table = pa.table({"embedding": [[1, 2]]})
    pq.write_table(table.replace_schema_metadata({NOTED: json.dumps(noted).encode()}), file)
    with pytest.raises(DataError, match=r"vectors\.parquet: the form of the vectors is unknown"):
        octobert.StoredVectors.read(file)
