"""A corpus: the rows of Parquet files with the answers of a model, written so that a run that was killed can go on.

    .OUT.octobert/lock, process   of the run that is at work
    .OUT.octobert/run.json        what the answers depend on: a run of something else does not go on here
    .OUT.octobert/*.parquet       parts: rows with answers, each file renamed when it is whole

At the end OUT is made of the parts, their vectors in the form that is asked for, a row group for each, and renamed. Batches
follow from the lengths of the texts of one part, not from times, so that the bytes are those of an undisturbed run.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from octobert.core.errors import (
    ColumnError,
    DataError,
    ModelError,
    StorageError,
    did_you_mean,
    reason,
)
from octobert.core.files import (
    atomic_write,
    canonical_digest,
    file_digest,
    remove,
    storage_errors,
    sync,
)
from octobert.core.frozen import lazy
from octobert.core.lock import locked
from octobert.core.stored_vectors import NOTED, StoredVectors
from octobert.core.version import __version__
from octobert.data.tokenization import Text, Tokenizer
from octobert.inference.opened import FinishedModel, files_of
from octobert.inference.predictor import Predictor

VECTORS = "embedding"
# Key of a file's metadata: what it was made of.
_RUN = b"octobert"
_BUFFER = 1 << 20
PART = "{:08}.parquet"


@dataclass(frozen=True)
class Embedder:
    """A model that embeds a column of a table, for `map_batches` of Ray Data and `predict_batch_udf` of Spark.

    It can be pickled. Each process opens the model at its first use. The same texts together always have the same vectors.

    Args:
        package: A package, `OUT/TARGET`, at a path that all machines see.
        column: Column with the texts.
        prompt: Name of the model's prompt that is put before texts, such as passage. Default: the model's.
        options: Others of `load`: `device`, `streams`, `threads`, `cache`, …

    Example:
        >>> dataset.map_batches(octobert.Embedder, fn_constructor_args=["out/ort-cpu"])  # doctest: +SKIP
    """

    package: str | Path | FinishedModel
    column: str = "text"
    prompt: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def __reduce__(self) -> tuple[Any, ...]:
        return Embedder, (self.package, self.column, self.prompt, self.options)

    @lazy
    def model(self) -> Predictor:
        """The model of this process.

        Raises:
            ModelError: it does not embed texts.
        """
        model = Predictor(self.package, goal="throughput", measure=False, **self.options)
        if model.task.head != "embedding":
            raise ModelError(
                "the model does not embed texts",
                where=str(model.folder),
                got=f"a model for {model.opened.facts().name}",
                fix="octobert.load opens it",
            )
        return model

    @lazy
    def _tokenizer(self) -> Tokenizer:
        return self.model.opened.tokenizer(self.model.task)

    def __call__(self, batch: Mapping[str, np.ndarray] | pa.Table) -> pa.Table:
        """Return rows with the column `embedding`.

        Args:
            batch: Columns by name, or a table.

        Raises:
            DataError: A row has no text.
            ColumnError: There is no column of texts, or there is one of vectors already.
        """
        table = batch if isinstance(batch, pa.Table) else pa.table(dict(batch))
        _check([self.column], table.schema, "the batch")
        return _with_vectors(table, self.vectors(table[self.column].to_pylist()))

    def vectors(self, texts: Iterable[str]) -> np.ndarray:
        """Return the embeddings of texts, float32 [texts, width].

        Args:
            texts: Any number, which are in memory at once.

        Raises:
            DataError: A row has no text.
        """
        parsed = self.parsed(texts, "", 1)
        # Engines also give blocks without rows, whose vectors have a width too.
        rows = self.model.task.encode(self._tokenizer, parsed or self.parsed([""], "", 1)).flat
        (vectors,) = self.model.outputs(rows).values()
        return np.asarray(vectors[: len(parsed)], dtype=np.float32)

    def parsed(self, texts: Iterable[str], where: str, first: int) -> list[Text]:
        """Texts as the model takes them.

        Args:
            where: what stands before the number of a row in errors.
            first: number of the first row.
        """
        prompt, parse = self.prompt, self.model.task.parse
        return [
            parse(
                text if prompt is None else {"text": text, "prompt": prompt},
                where=f"{where}row {row}",
            )
            for row, text in enumerate(texts, first)
        ]


def _with_vectors(table: pa.Table, vectors: np.ndarray) -> pa.Table:
    """Return rows with the column of their vectors, [rows, width]."""
    if VECTORS in table.column_names:
        raise ColumnError(
            f'there is a column "{VECTORS}" already', fix="rename it, or do not keep it"
        )
    column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), vectors.shape[1])
    return table.append_column(VECTORS, column)


def _vectors(table: pa.Table) -> np.ndarray:
    """The vectors that `_with_vectors` put into a table."""
    (column,) = table[VECTORS].chunks
    vectors: np.ndarray = column.flatten().to_numpy().reshape(len(table), -1)
    return vectors


def embed(
    embedder: Embedder,
    paths: Sequence[Path],
    out: Path,
    *,
    keep: Sequence[str],
    form: StoredVectors,
    rows: int,
    on_progress: Callable[[str, int, int], None],
) -> int:
    """Write the rows of Parquet files with their answers, or go on where a run that was killed has stopped.

    Args:
        paths: files, and folders of files, which are read in the order of their names.
        out: a Parquet file.
        keep: columns that are written beside the answers; all where none are named.
        form: of the vectors. Intervals of int8 are those of all rows.
        rows: rows of a part.
        on_progress: called with what is done now, the rows done, and all rows.

    Returns:
        The number of rows.

    Raises:
        DataError: a file cannot be read, a row has no text, or vectors have fewer dimensions than asked for.
        ColumnError: a column is missing.
        StorageError: something else is at `out`, or a run of something else began there, or the disk is full.
        BusyError: another process is at work there.
    """
    files, total = [file for path in paths for file in _files(path)], 0
    schemas: list[pa.Schema] = []
    for file in files:
        with _readable(file):
            opened = pq.ParquetFile(file)
        keep = keep or opened.schema_arrow.names
        _check((*keep, embedder.column), opened.schema_arrow, str(file))
        schemas.append(pa.schema([opened.schema_arrow.field(name) for name in keep]))
        if schemas[-1] != schemas[0]:
            raise ColumnError(
                f"the columns have other types than in {files[0]}",
                where=str(file),
                fix="write them alike",
            )
        # Nothing is made of rows of which one cannot be.
        for first, table in _tables(file, [embedder.column], rows):
            embedder.parsed(table[embedder.column].to_pylist(), f"{file}, ", first)
            total += len(table)
    if not total:
        raise DataError("there are no rows", where=", ".join(map(str, paths)))
    run, work = _run(embedder, files, keep, form, rows), out.with_name(f".{out.name}.octobert")
    with storage_errors(out):
        if os.path.lexists(out):
            with _readable(out):
                noted = pq.read_metadata(out).metadata or {}
            _check_run(noted.get(_RUN, b"{}"), run, out)
        else:
            with locked(work):
                began, whole = work / "run.json", work / "whole"
                if (work / PART.format(0)).exists():
                    _check_run(began.read_bytes(), run, work)
                with atomic_write(began) as unfinished:
                    unfinished.write_bytes(run)
                count, form = _make_parts(
                    embedder,
                    files,
                    work,
                    keep,
                    form,
                    rows,
                    lambda done: on_progress("rows", done, total),
                )
                tables = (_stored(work / PART.format(number), form) for number in range(count))
                _write(whole, tables, {_RUN: run, NOTED: form.model_dump_json().encode()})
                whole.rename(out)
                sync(out.parent)
        remove(work)
    return total


def _make_parts(
    embedder: Embedder,
    files: Sequence[Path],
    work: Path,
    keep: Sequence[str],
    form: StoredVectors,
    rows: int,
    on_done: Callable[[int], None],
) -> tuple[int, StoredVectors]:
    """Write the rows with their embeddings, in files of a limited size, those that are not there.

    Returns:
        (their number, the form fitted to the vectors of all).
    """
    number = done = 0
    fitted = form
    ends: list[np.ndarray] = []
    for file in files:
        for _, table in _tables(file, {*keep, embedder.column}, rows):
            part = work / PART.format(number)
            if part.exists():
                vectors = _vectors(pq.ParquetFile(part).read([VECTORS]))
            else:
                vectors = embedder.vectors(table[embedder.column].to_pylist())
                _write(part, iter([_with_vectors(table.select(keep), vectors)]), {})
            # The intervals of all vectors are those of their least and greatest numbers.
            seen = np.concatenate([*ends, vectors])
            fitted, ends = form.fitted(seen), [np.stack([seen.min(axis=0), seen.max(axis=0)])]
            number, done = number + 1, done + len(table)
            on_done(done)
    return number, fitted


def _stored(part: Path, form: StoredVectors) -> pa.Table:
    """The rows of a part with their vectors in a form."""
    table = pq.ParquetFile(part).read()
    return _with_vectors(table.drop_columns(VECTORS), form.encode(_vectors(table)))


def _tables(file: Path, columns: Iterable[str], rows: int) -> Iterator[tuple[int, pa.Table]]:
    """The rows of a file, with the number of the first one, from 1. No whole row group is in memory."""
    first = 1
    with _readable(file):
        opened = pq.ParquetFile(file, buffer_size=_BUFFER, pre_buffer=False)
        for batch in opened.iter_batches(rows, columns=list(columns)):
            yield first, pa.Table.from_batches([batch])
            first += len(batch)


def _write(path: Path, tables: Iterator[pa.Table], noted: Mapping[bytes, bytes]) -> None:
    """Write a file with a row group for each table."""
    first = next(tables)
    # What other programs have noted about their columns is not true of these.
    schema = first.schema.with_metadata(dict(noted))
    # Numbers of vectors do not repeat.
    repeating = [field.name for field in schema if not pa.types.is_nested(field.type)]
    with atomic_write(path) as unfinished:
        with pq.ParquetWriter(unfinished, schema, use_dictionary=repeating) as writer:
            for table in itertools.chain([first], tables):
                writer.write_table(table)
        sync(unfinished)


def _run(
    embedder: Embedder, files: Sequence[Path], keep: Sequence[str], form: StoredVectors, rows: int
) -> bytes:
    """What the answers depend on, by name, as JSON. The numbers of threads and streams are not among it."""
    model, opened = embedder.model, embedder.model.opened
    # The task, the tokenizer, the pooling, and the settings of a package.
    patterns = ("*.json", "*.txt", "*_Pooling/*.json")
    beside = [file for pattern in patterns for file in sorted(opened.folder.glob(pattern))]
    facts = {
        "model": [
            opened.facts().model_dump(),
            *map(file_digest, [*files_of(opened.file), *beside]),
        ],
        "input": [*map(file_digest, files)],
        "options": [embedder.column, embedder.prompt, *keep, form.model_dump(), rows],
        "device": [model.device, model.precision],
        "version": [__version__],
    }
    return json.dumps({name: canonical_digest(fact) for name, fact in facts.items()}).encode()


def _check_run(noted: bytes, run: bytes, where: Path) -> None:
    """Make sure that what is at a place is of this run.

    Raises:
        StorageError: it is not; with what differs.
    """
    there, now = json.loads(noted), json.loads(run)
    if others := [name for name in now if there.get(name) != now[name]]:
        raise StorageError(
            "what is there is not of this run",
            where=str(where),
            got=f"another {' and another '.join(others)}" if there else "a file of other origin",
            fix="choose another name, or remove it",
        )


def _files(path: Path) -> list[Path]:
    """A file, or the Parquet files of a folder, without hidden ones."""
    if path.is_file():
        return [path]
    found = [file for file in sorted(path.rglob("*.parquet")) if "/." not in file.as_posix()]
    if not found:
        raise DataError("there is no Parquet file", where=str(path), fix="check the path")
    return found


def _check(names: Iterable[str], schema: pa.Schema, where: str) -> None:
    for name in names:
        if name not in schema.names:
            raise ColumnError(
                f'there is no column "{name}"', where=where, fix=did_you_mean(name, schema.names)
            )


@contextmanager
def _readable(file: Path) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        raise DataError(
            "the file cannot be read as Parquet",
            where=str(file),
            got=reason(error, longest=200),
            fix="check the path",
        ) from error
