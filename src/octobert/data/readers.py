"""Readers: the rows of one file, of a folder of texts, or of one split of a data set on the hub.

CSV and TSV are read with `csv`, JSON with `json`, Parquet and Arrow with `pyarrow`, the hub with `datasets`; `formats` has
the others. `huggingface_hub` says which data set a name means. All cells of CSV and TSV files are text: "NA" is a text, and
"007" is not a number. The name of a file is its path, never a pattern: `v[1].csv` is that file.
"""

from __future__ import annotations

import csv
import io
import itertools
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from octobert.core import environment
from octobert.core.errors import DataError, each, hub_error, not_there, reason
from octobert.core.files import content_of
from octobert.core.frozen import FrozenModel
from octobert.data import beir, formats, sampling
from octobert.data.sampling import ROW_NUMBER, Row

FORMATS = {".csv": "csv", ".tsv": "tsv", ".jsonl": "json", ".json": "json"}
FORMATS |= {".parquet": "table", ".arrow": "table"}
FORMATS |= dict.fromkeys(formats.COLUMN_SUFFIXES, "columns")
# Columns of two official files without a header, CoLA and the STS benchmark.
_COLA = ("source", "label", "original_label", "sentence")
_STSB = ("genre", "file", "year", "id", "score", "sentence1", "sentence2")
# What a row takes in memory besides its values.
_ROW_BYTES = 200
# Rows of a Parquet file that are decoded at once.
_BATCH = 128
# Follows the last line of a file while it is read.
_END = "\0end\0"


class HubData(FrozenModel):
    """A data set on the hub.

    Args:
        name: `namespace/name`; the name alone where the hub could not be asked.
        config: its configuration, such as `mrpc` of GLUE.
        commit: of the revision that was asked for; None where nobody knows.
    """

    name: str
    config: str | None
    commit: str | None


def read(
    place: str, *, hub: HubData | None, revision: str | None, columns: Sequence[str]
) -> tuple[str, list[Row]]:
    """Read the rows of one place that `sources.places` found.

    Args:
        place: a file or a folder of texts; with `hub`, the name of a split. A slice of it may follow: `train[:10]`.
        hub: the data set on the hub; None for local files.
        revision: branch, tag or commit on the hub.
        columns: column names for a file without a header.

    Returns:
        (the place in words for messages, the rows with their numbers).

    Raises:
        DataError: the rows cannot be read.
    """
    # The name of a file is its path, with whatever brackets.
    base, span = (place, "") if hub is None and os.path.exists(place) else sampling.split_of(place)
    if hub is not None:
        rows = read_hub(hub.name, hub.config, base, revision)
        place = f"{hub.name} {place}"
    else:
        rows = read_file(Path(base), columns)
    return place, sampling.sliced(numbered(rows), span, where=place)


def numbered(rows: Sequence[Row]) -> list[Row]:
    """Add each row's place in its file, so that errors can name it after sampling.

    Example:
        >>> numbered([{"text": "a"}])
        [{'text': 'a', '__row__': 1}]
    """
    return [{**row, ROW_NUMBER: number} for number, row in enumerate(rows, start=1)]


def read_file(path: Path, columns: Sequence[str] = ()) -> list[Row]:
    """Read all rows of a file, or of a folder with a folder of texts for each class.

    Args:
        path: the file or folder.
        columns: column names, for a file without a header.

    Raises:
        DataError: the file is missing, empty, malformed or of an unknown format.
    """
    # `os.path` does not raise for names that no file system takes.
    if os.path.isdir(path) and not formats.tables_in(path):
        feeds = formats.feeds_in(path)
        return formats.feed_folder(feeds) if feeds else formats.text_folder(path)
    files = beir.files_of(path)
    if not all(map(os.path.isfile, files)):
        raise not_there(DataError, path)
    _format(files[0])
    size = sum(file.stat().st_size for file in files)
    _refuse_large(path, size, size)
    if files[1:] and files[0] == path:
        return beir.queries(*files)
    if beir.is_corpus(path):
        return beir.documents(path)
    parts = [rows_in(file, formats.read(file), columns) for file in files]
    return [row for rows in parts for row in rows]


def rows_in(path: Path, content: bytes | bytearray, columns: Sequence[str] = ()) -> list[Row]:
    """Read all rows of a file's content.

    Args:
        path: of the file, which need not be there: its suffix is the format, and errors name it.
        content: of the file.
        columns: column names, for a file without a header.

    Raises:
        DataError: the content is empty, malformed or of an unknown format.
    """
    form = _format(path)
    if not content:
        raise DataError(
            "the file is empty", where=str(path), expected="rows", fix="check how it was written"
        )
    if form in ("csv", "tsv"):
        rows = _delimited(path, content, "," if form == "csv" else "\t", tuple(columns))
    elif form == "columns":
        rows = formats.column_file(path, content, columns)
    else:
        rows = formats.json_rows(path, content) if form == "json" else _table(path, content)
    if not rows:
        raise DataError(
            "the file has no rows", where=str(path), expected="at least one row below the header"
        )
    names = {name: name.strip() or name for name in rows[0]}
    if len(set(names.values())) < len(names):
        raise _twice(path, list(names))
    return [{names[name]: cell for name, cell in row.items()} for row in rows]


def _twice(path: Path, names: Sequence[str]) -> DataError:
    return DataError(
        "two columns have the same name",
        where=str(path),
        got=", ".join(names)[:200],
        fix="rename one in the header",
    )


def _format(path: Path) -> str:
    form, unpack = FORMATS.get(path.suffix.lower()), formats.PACKED.get(path.suffix.lower())
    if form is None:
        raise DataError(
            "the format is not known",
            where=str(path),
            got=path.suffix or "no suffix",
            expected=", ".join(FORMATS),
            fix=f"unpack it: {unpack} {path.name}" if unpack else None,
        )
    return form


def read_hub(name: str, config: str | None, split: str, revision: str | None) -> list[Row]:
    """Read all rows of a split of a data set on the hub, with class labels as names.

    Raises:
        DataError: the split could not be downloaded.
    """
    import datasets

    try:
        dataset = datasets.load_dataset(name, config, split=split, revision=revision)
    except Exception as error:  # datasets and the hub client raise many unrelated types
        raise hub_error(DataError, error, name) from error
    return with_names(dataset.features, dataset.to_list())


def _table(path: Path, content: bytes | bytearray) -> list[Row]:
    """The rows of a Parquet or Arrow file, in parts, as a small file may hold more than fits in memory."""
    import pyarrow
    from datasets import Features
    from pyarrow import ipc, parquet

    rows: list[Row] = []
    source = pyarrow.BufferReader(content)
    try:
        held = 0
        if path.suffix.lower() == ".parquet":
            file = parquet.ParquetFile(source)
            held, schema = file.metadata.num_rows * _ROW_BYTES, file.schema_arrow
            _refuse_large(path, held, len(content))
            batches = file.iter_batches(batch_size=_BATCH)
        elif content.startswith(b"ARROW1"):
            file = ipc.open_file(source)
            schema, batches = file.schema, map(file.get_batch, range(file.num_record_batches))
        else:
            batches = ipc.open_stream(source)
            schema = batches.schema
        # What `datasets` wrote about the columns; nothing in other files.
        stated = b"huggingface" in (schema.metadata or {})
        features = Features.from_arrow_schema(schema) if stated else {}
        for batch in batches:
            # A column with a dictionary is small until it is decoded.
            plain = [
                f.with_type(f.type.value_type) if pyarrow.types.is_dictionary(f.type) else f
                for f in batch.schema
            ]
            table = pyarrow.Table.from_batches([batch]).cast(pyarrow.schema(plain))
            held += table.nbytes
            _refuse_large(path, held, len(content))
            rows += table.to_pylist()
        return with_names(features, rows)
    except DataError:
        raise
    except Exception as error:  # pyarrow raises its own types, OSError, and those of the values that it cannot convert
        raise DataError(
            "the file cannot be read",
            where=str(path),
            got=reason(error, longest=200),
            fix="download or write it again",
        ) from error


def _refuse_large(path: Path, held: int, size: int) -> None:
    """Refuse rows, `held` bytes of a file of `size` bytes, that would not fit in memory with what is made of them.

    Raises:
        DataError: they are larger than octobert reads at once.
    """
    most = min(formats.MOST_BYTES, environment.memory().free // 2)
    if held > most:
        raise DataError(
            "the rows take too much memory",
            where=str(path),
            got=f"{held / 2**20:,.0f} MiB or more in a file of {size / 2**20:,.1f} MiB",
            expected=f"at most {most / 2**20:,.0f} MiB (4 GiB, or half of the free memory)",
            fix="write a file with fewer rows, or with the columns of the task only",
        )


def with_names(features: Mapping[str, Any], rows: Sequence[Row]) -> list[Row]:
    """Rows with class labels by name, alone or in lists."""
    from datasets import ClassLabel

    inner = {key: getattr(feature, "feature", None) for key, feature in features.items()}
    names = {
        key: feature.names for key, feature in features.items() if isinstance(feature, ClassLabel)
    }
    lists = {
        key: feature.names for key, feature in inner.items() if isinstance(feature, ClassLabel)
    }

    def plain(key: str, value: Any) -> Any:
        if key in lists and value is not None:
            return [lists[key][index] for index in value]
        return names[key][value] if key in names and value is not None and value >= 0 else value

    return [{key: plain(key, value) for key, value in row.items()} for row in rows]


def _delimited(
    path: Path, content: bytes | bytearray, delimiter: str, columns: tuple[str, ...]
) -> list[Row]:
    """The rows of a CSV or TSV file.

    Official MRPC and GLUE files hold quotation marks that quote nothing, and some have no header.
    """
    text = formats.decoded(path, content)
    # A document may be longer than the 131,072 characters that `csv` allows by default.
    csv.field_size_limit(2**31 - 1)
    # Not splitlines(): texts may hold separators (U+2028, NEL) that end a line in Python but not in these formats.
    lines = [line.rstrip("\r") for line in text.split("\n") if line.strip()]
    if not lines:
        return []
    columns = columns or _official_columns(
        [line.split(delimiter) for line in lines[:1000]], delimiter
    )
    usual, delimiter = delimiter, delimiter if columns else _delimiter_of(lines[0], delimiter)
    quoted = delimiter != "\t" or _quotes_fields(lines, delimiter)
    records = list(_records(path, text, delimiter, quoted=quoted))
    if not records:
        return []
    if columns:
        width = max((len(record) for _, record in records), default=0)
        if len(columns) > width:
            raise DataError(
                "more columns are named than the file has",
                where=str(path),
                got=f"{len(columns)} names",
                expected=f"at most {width}",
            )
        names = [*columns, *(f"extra_{i}" for i in range(width - len(columns)))]
    else:
        names = records.pop(0)[1]
        if len(set(names)) < len(names):
            raise _twice(path, names)

    def row(number: int, record: list[str]) -> Row:
        if len(record) != len(names) and not columns:
            raise DataError(
                "the line has another number of columns than the header",
                where=f"{path}, line {number}",
                got=str(len(record)),
                expected=str(len(names))
                if delimiter == usual
                else f"{len(names)}, as {delimiter!r} divides the header",
                fix="correct the line",
            )
        return dict(zip(names, [*record, *[""] * (len(names) - len(record))], strict=True))

    return each(row, records)


def _delimiter_of(header: str, usual: str) -> str:
    """The delimiter of a file: the one of its format, unless only another one divides the header. Excel writes `;` in Europe.

    Example:
        >>> _delimiter_of("text;label", ","), _delimiter_of("text,a;b", ","), _delimiter_of('"a;b"', ",")
        (';', ',', ',')
    """
    divides = set()
    for delimiter in (",", "\t", ";"):
        with suppress(csv.Error):
            divides |= (
                {delimiter}
                if len(next(csv.reader([header], delimiter=delimiter), [])) > 1
                else set()
            )
    return divides.pop() if len(divides) == 1 else usual


def _records(
    path: Path, text: str, delimiter: str, *, quoted: bool
) -> Iterator[tuple[int, list[str]]]:
    """(line number, fields) of every line that is not empty."""
    # `csv` takes the rest of a file for one field where a quotation mark is not closed; the end mark is then a part of it.
    stream = itertools.chain(io.StringIO(text, newline="\n"), [_END])
    reader = csv.reader(
        stream, delimiter=delimiter, quoting=csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE
    )
    first = 1
    try:
        for record in reader:
            ends = bool(record) and record[-1].endswith(_END)
            if ends and (record != [_END] or reader.line_num > first):
                raise csv.Error("a quotation mark that is not closed")
            if not ends and (len(record) > 1 or any(field.strip() for field in record)):
                yield reader.line_num, record
            first = reader.line_num + 1
    except csv.Error as error:
        raise DataError(
            "the line cannot be read",
            where=f"{path}, line {first}",
            got=str(error),
            fix="correct the line",
        ) from error


def _quotes_fields(lines: list[str], delimiter: str) -> bool:
    """Check whether quotation marks in tab-separated text quote fields (RFC 4180); in the official MRPC files they are text."""
    quoted = [field for line in lines for field in line.split(delimiter) if field.startswith('"')]
    proper = [
        f for f in quoted if len(f) > 1 and f.endswith('"') and '"' not in f[1:-1].replace('""', "")
    ]
    return bool(quoted) and len(proper) == len(quoted)


def _official_columns(fields: list[list[str]], delimiter: str) -> tuple[str, ...]:
    """Column names of CoLA and of the STS benchmark, whose files have no header; none for other files."""
    if delimiter != "\t":
        return ()
    if all(len(f) == 4 and f[1] in ("0", "1") and re.fullmatch(r"[*?#% ]*", f[2]) for f in fields):
        return _COLA
    if all(len(f) >= 7 and re.fullmatch(r"[0-5](\.\d+)?", f[4]) for f in fields):
        return _STSB
    return ()


def find_on_hub(source: str, config: str | None, revision: str | None) -> HubData:
    """The data set that a name means: `nyu-mll/glue` or its old name `glue`, with a configuration behind it or without.

    Where the hub cannot be asked, the data sets in its cache are.

    Raises:
        DataError: it is the name of a format, and of no data set.

    Args:
        source: name, or name and configuration: `glue/mrpc`, `nyu-mll/glue/mrpc`.
        config: the configuration; then it is not in the name.
        revision: branch, tag or commit.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError

    readings = list(_readings(source, config))
    for name, configuration in readings:
        try:
            info = HfApi().dataset_info(name, revision=revision)
            return HubData(name=info.id, config=configuration, commit=info.sha)
        except (RepositoryNotFoundError, HFValidationError):
            continue
        except Exception:  # noqa: BLE001  # no network, or one of many types: reading the rows will say what is wrong
            break
    for name, configuration in readings:
        for folder in _cached(name):
            full_name = folder.name.removeprefix("datasets--").replace("--", "/", 1)
            return HubData(name=full_name, config=configuration, commit=_ref(folder, revision))
    name, configuration = readings[0]
    # `datasets` reads what lies in the working directory for these names.
    from datasets import packaged_modules

    if name in packaged_modules._PACKAGED_DATASETS_MODULES:
        raise DataError(
            "the hub has no data set of that name",
            where="data.source",
            got=name,
            fix="give a file, a folder, or a data set with its owner: OWNER/NAME",
        )
    return HubData(name=name, config=configuration, commit=None)


def _readings(source: str, config: str | None) -> Iterator[tuple[str, str | None]]:
    """(name, configuration): with two parts the second may be either."""
    if config is not None or source.count("/") < 2:
        yield source, config
    if config is None and "/" in source:
        name, _, last = source.rpartition("/")
        yield name, last


def _cached(name: str) -> list[Path]:
    """The folders of a data set in the hub's cache; of an old name, those of any namespace."""
    from huggingface_hub.constants import HF_HUB_CACHE

    pattern = f"datasets--{name.replace('/', '--')}" if "/" in name else f"datasets--*--{name}"
    return sorted(Path(HF_HUB_CACHE).glob(pattern))


def _ref(folder: Path, revision: str | None) -> str | None:
    """The commit that a revision stood for when it was last asked for."""
    path = folder / "refs" / (revision or "main")
    return content_of(path).decode().strip() if path.is_file() else revision
