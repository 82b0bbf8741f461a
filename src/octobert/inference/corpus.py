"""A corpus: the rows of Parquet files with the answers of a model, written so that a run that was killed can go on.

    .OUT.octobert/lock, process   of the run that is at work
    .OUT.octobert/run.json        what the answers depend on: a run of something else does not go on here
    .OUT.octobert/*.parquet       parts: rows with answers, each file renamed when it is whole
    .OUT.octobert/*.part          of each part its run, number, first row, rows and digest; without it a part is made again

At the end OUT is made of the parts, their vectors in the form that is asked for, a row group for each, and renamed. Batches
follow from the lengths of the texts of one part, not from times, so that the bytes are those of an undisturbed run.
"""

from __future__ import annotations

import itertools
import json
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from octobert.core.errors import (
    ColumnError,
    DataError,
    ModelError,
    StorageError,
    TokenError,
    TokenWarning,
    reason,
    unreadable,
)
from octobert.core.files import (
    atomic_write,
    canonical_digest,
    digest_or_none,
    file_digest,
    files_in,
    opened,
    read_sealed,
    remove,
    rename_to_new,
    storage_errors,
    sync,
    write_sealed,
)
from octobert.core.lock import locked
from octobert.core.model_config import READ, TABLE_FILES
from octobert.core.origin import check_inside, listed
from octobert.core.plain import parsed_json
from octobert.core.stored_vectors import NOTED, StoredVectors
from octobert.core.version import __version__
from octobert.inference import columns
from octobert.inference.embedder import VECTORS, Embedder, check_columns, values_of, with_vectors
from octobert.inference.package_files import files_of

# Key of a file's metadata: what it was made of.
_RUN = b"octobert"
_BUFFER = 1 << 20
PART = "{:08}.parquet"
# Rows that a warning names.
_NAMED = 10
# Of files in a folder that Spark, Dask and Arrow leave out: markers, logs, and what is not finished.
_HIDDEN = (".", "_")


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
        DataError: a file cannot be read, or changes; a row has no text, or vectors have fewer dimensions than asked for.
        ColumnError: a column is missing, or there are two of its name.
        StorageError: something else is at `out`, or a run of something else began there, or the disk is full.
        BusyError: another process is at work there.
    """
    if out.is_dir():
        raise StorageError(
            "a folder is there", where=str(out), fix="name a file, such as vectors.parquet"
        )
    files = [file for path in paths for file in _files(path, out)]
    stamps = {file: _stamp(file) for file in files}
    total, digests, refused = 0, list[str](), list[TokenError]()
    schemas: list[pa.Schema] = []
    for file in files:
        with _readable(file):
            schema = pq.ParquetFile(file).schema_arrow
            keep = tuple(dict.fromkeys(keep or schema.names))
            check_columns((*keep, embedder.column), schema, str(file))
            digests.append(file_digest(file))
        schemas.append(pa.schema([schema.field(name) for name in keep]))
        if schemas[-1] != schemas[0]:
            raise ColumnError(
                f"the columns have other types than in {files[0]}",
                where=str(file),
                fix="write them alike",
            )
        # Nothing is made of rows of which one cannot be read.
        for first, table in _tables(file, stamps[file], [embedder.column], rows):
            parsed = embedder.parsed(values_of(table, embedder.column), f"{file}, ", first)
            refused += [text for text in parsed if isinstance(text, TokenError)]
            total += len(table)
    if not total:
        raise DataError("there are no rows", where=", ".join(map(str, paths)))
    if len(refused) == total:
        raise refused[0]
    if refused:
        others = ", ".join(str(error.where) for error in refused[1:_NAMED])
        warnings.warn(
            f"{refused[0]} Of {total:,} rows {len(refused):,} get no embedding, but null"
            + (f"; the next are {others}" if others else ""),
            TokenWarning,
            stacklevel=3,
        )
    run, work = _run(embedder, digests, keep, form, rows), out.with_name(f".{out.name}.octobert")
    with storage_errors(out):
        if os.path.lexists(out):
            with _readable(out):
                noted = pq.read_metadata(out).metadata or {}
            _check_run(noted.get(_RUN, b""), run, out)
        else:
            # As above. What is refused leaves no folder.
            column = embedder.column_of([""])
            with_vectors(schemas[0].empty_table(), column[:0])
            columns.check_form(column, form)
            with locked(work):
                began, whole = work / "run.json", work / "whole"
                if (there := read_sealed(began)) and any(work.glob("[0-9]*.parquet")):
                    _check_run(there, run, work)
                for own in (began, whole):
                    remove(own)
                write_sealed(began, run)
                read = {*keep, embedder.column}
                parts, form = _make_parts(
                    embedder,
                    (t for file in files for _, t in _tables(file, stamps[file], read, rows)),
                    work,
                    keep,
                    form,
                    canonical_digest(run.decode()),
                    lambda done: on_progress("rows", done, total),
                )
                tables = (_stored(part, digest, form) for part, digest in parts.items())
                _write(whole, tables, {_RUN: run, NOTED: form.model_dump_json().encode()})
                rename_to_new(whole, out)
                sync(out.parent)
        remove(work)
    return total


def _make_parts(
    embedder: Embedder,
    tables: Iterator[pa.Table],
    work: Path,
    keep: Sequence[str],
    form: StoredVectors,
    run: str,
    on_done: Callable[[int], None],
) -> tuple[dict[Path, str | None], StoredVectors]:
    """Write the rows with their embeddings, in files of a limited size, those that are not there as this run wrote them.

    Returns:
        (the files and their digests, the form fitted to the vectors of all).
    """
    done, fitted, parts = 0, form, dict[Path, str | None]()
    ends: list[np.ndarray] = []
    for table in tables:
        part = work / PART.format(len(parts))
        seal, place = part.with_suffix(".part"), [run, len(parts), done, len(table)]
        digest = digest_or_none(part)
        if read_sealed(seal) == json.dumps([*place, digest]).encode():
            (column,) = pq.ParquetFile(part).read([VECTORS])[VECTORS].chunks
        else:
            remove(seal)
            remove(part)
            column = embedder.column_of(values_of(table, embedder.column))
            _write(part, iter([with_vectors(table.select(keep), column)]), {})
            digest = file_digest(part)
            write_sealed(seal, json.dumps([*place, digest]).encode())
        # The intervals of all vectors are those of their least and greatest numbers.
        seen = np.concatenate([*ends, columns.numbers(column)])
        if not np.isfinite(seen).all():
            raise ModelError(
                "the model's vectors have numbers that are not finite, and int8 no interval for them",
                where=f"rows {done + 1} to {done + len(table)}",
                fix="check these texts and the model",
            )
        if len(seen) and not columns.is_sparse(column):
            fitted, ends = form.fitted(seen), [np.stack([seen.min(axis=0), seen.max(axis=0)])]
        parts[part], done = digest, done + len(table)
        on_done(done)
    return parts, fitted


def _stored(part: Path, digest: str | None, form: StoredVectors) -> pa.Table:
    """The rows of a part with their vectors in a form.

    Raises:
        StorageError: the part is not as it was written.
    """
    if digest_or_none(part) != digest:
        raise StorageError(
            "the file changed while the run was at work",
            where=str(part),
            fix="run the same command again, which makes it again",
        )
    table = pq.ParquetFile(part).read()
    (column,) = table[VECTORS].chunks
    return with_vectors(table.drop_columns(VECTORS), columns.encoded(column, form))


def _tables(
    file: Path, stamp: tuple[int, ...], columns: Iterable[str], rows: int
) -> Iterator[tuple[int, pa.Table]]:
    """The rows of a file, with the number of the first one, from 1. No whole row group is in memory.

    Raises:
        DataError: the file cannot be read, or is not what it was.
    """
    first = 1
    with _readable(file):
        batches = pq.ParquetFile(file, buffer_size=_BUFFER, pre_buffer=False)
        for batch in itertools.chain(batches.iter_batches(rows, columns=list(columns)), [None]):
            if _stamp(file) != stamp:
                raise DataError(
                    "the file changed while the run read it",
                    where=str(file),
                    fix="run the command again when nothing writes the file",
                )
            if batch is not None:
                yield first, pa.Table.from_batches([batch])
                first += len(batch)


def _stamp(file: Path) -> tuple[int, ...]:
    """What changes when a file is written or replaced, but not when somebody links it."""
    with _readable(file):
        status = file.stat()
    return status.st_size, status.st_mtime_ns, status.st_dev, status.st_ino


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
    embedder: Embedder, digests: Sequence[str], keep: Sequence[str], form: StoredVectors, rows: int
) -> bytes:
    """What the answers depend on, by name, as JSON. The numbers of threads and streams are not among it."""
    model, opened = embedder.model, embedder.model.opened
    # The task, the tokenizer, the pooling, and the settings of a package.
    beside = listed(opened.folder, *READ, "*_Pooling/config.json", *TABLE_FILES).values()
    facts = {
        "model": [
            opened.facts().model_dump(),
            *map(file_digest, [*files_of(opened.file), *beside]),
        ],
        "input": [*digests],
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
    now = json.loads(run)
    try:
        there = parsed_json(noted)
    except ValueError:
        there = {}
    there = there if isinstance(there, dict) else {}
    if others := [name for name in now if there.get(name) != now[name]]:
        raise StorageError(
            "what is there is not of this run",
            where=str(where),
            got=f"another {' and another '.join(others)}" if there else "a file of other origin",
            fix="choose another name, or remove it",
        )


def _files(path: Path, out: Path) -> list[Path]:
    """A file, or the Parquet files of a folder and of the folders in it, without hidden ones.

    Raises:
        DataError: the folder cannot be read, or has none.
        StorageError: `out` would be one of them.
    """
    if not path.is_dir():
        return [path]

    def taken(file: Path) -> bool:
        names = file.relative_to(path).parts
        return file.suffix == ".parquet" and not any(name.startswith(_HIDDEN) for name in names)

    try:
        found = [file for file in files_in(path) if taken(file)]
    except OSError as error:
        raise unreadable(DataError, error, error.filename) from error
    for file in found:
        check_inside(path, file.relative_to(path).as_posix(), DataError)
    folder, place = Path(os.path.realpath(path)), Path(os.path.realpath(out.parent), out.name)
    if folder in place.parents and taken(path / place.relative_to(folder)):
        raise StorageError(
            "the file would be one of those that are read",
            where=str(out),
            expected=f"a place outside of {path}",
        )
    if not found:
        raise DataError("there is no Parquet file", where=str(path), fix="check the path")
    return found


@contextmanager
def _readable(file: Path) -> Iterator[None]:
    """Turn errors of a Parquet file of unknown origin into sentences. A pipe is not waited for."""
    try:
        opened(file).close()
        yield
    except (pa.ArrowException, OSError, ValueError) as error:
        raise DataError(
            "the file cannot be read as Parquet",
            where=str(file),
            got=reason(error, longest=200),
            fix="check the path",
        ) from error
