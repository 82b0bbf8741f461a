"""Formats that are not tables: JSON, also nested as SQuAD's, CoNLL's column files, folders of texts. Errors name the place."""

from __future__ import annotations

import codecs
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from octobert.core.arrays import arrays_in
from octobert.core.budget import most_bytes
from octobert.core.errors import DataError, each, reason, unreadable
from octobert.core.files import content_of
from octobert.core.origin import listed
from octobert.core.plain import parsed_json, preview
from octobert.data.sampling import Row

# Files with one token per line; in some data sets the suffix is the split's name.
COLUMN_SUFFIXES = (
    ".conll",
    ".bio",
    ".iob",
    ".iob2",
    ".txt",
    ".train",
    ".dev",
    ".valid",
    ".test",
    ".testa",
    ".testb",
)
_DOCUMENT = "-DOCSTART-"
# The share of lines with as many columns, from which a .txt file with another one is a column file with an error.
_TAGGED = 0.9
# Byte order mark → the encoding; that of UTF-32 begins with that of UTF-16.
_WIDE = {
    codecs.BOM_UTF32_LE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}
# The folder of aclImdb's reviews that have no class.
_UNLABELLED = "unsup"
# Compressed files → what unpacks them.
PACKED = {".gz": "gunzip", ".zip": "unzip", ".bz2": "bunzip2", ".xz": "unxz", ".zst": "unzstd"}
# The largest data that is read, as all of it is held in memory.
MOST_BYTES = 4 * 2**30
# Rows that each have columns of their own would fill the memory.
_MOST_COLUMNS = 10_000
# The numbers of parts of a split, in the name that stands for all: `train-?????-of-00004.parquet`.
PARTS = "-?????-of-"
_CONLL_2003 = ("tokens", "pos_tags", "chunk_tags", "ner_tags")


def read(path: Path) -> bytes:
    """The bytes of a file.

    Raises:
        DataError: it cannot be read.
    """
    try:
        return content_of(path, MOST_BYTES)
    except OSError as error:
        raise unreadable(DataError, error, error.filename) from error


def decoded(path: Path, content: bytes | bytearray) -> str:
    """The text of a file with this content, without a byte order mark.

    Raises:
        DataError: it is not UTF-8.
    """
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        wide = next((name for mark, name in _WIDE.items() if content.startswith(mark)), None)
        got, fix = str(error), "convert it to UTF-8"
        if wide is not None:
            got, fix = (
                f"{wide}, by its byte order mark",
                f"save it as UTF-8, or: iconv -f {wide} -t UTF-8 FILE > NEW",
            )
        raise DataError("the file is not UTF-8", where=str(path), got=got, fix=fix) from error


def texts_in(folder: Path) -> list[Path]:
    """The texts of a folder that holds a folder of them for each class, as `pos/1.txt`, in order; none in any other folder."""
    files = listed(folder, "[!.]*/[!.]*.txt", kind=DataError).values()
    return [file for file in files if file.parent.name != _UNLABELLED]


def rows_in(folder: Path) -> list[Path]:
    """The files of a folder that stands for a file: texts by classes, feeds of a graph (`.npz`), saved tables; else none."""
    return texts_in(folder) or feeds_in(folder) or tables_in(folder)


def tables_in(folder: Path) -> list[Path]:
    """The tables of a data set that `datasets` has saved, in order, without what it cached; none of any other folder."""
    if not os.path.isfile(folder / "state.json"):
        return []
    return list(listed(folder, "data*.arrow", kind=DataError).values())


def feeds_in(folder: Path) -> list[Path]:
    """The `.npz` files of a folder, in order."""
    return list(listed(folder, "[!.]*.npz", kind=DataError).values())


def part_name(name: str) -> str:
    """The name that stands for a file and the other parts of its split.

    Example:
        >>> part_name("train-00001-of-00004.parquet"), part_name("train.parquet")
        ('train-?????-of-00004.parquet', 'train.parquet')
    """
    return re.sub(r"-\d{5}-of-(?=\d{5})", PARTS, name)


def parts_of(place: Path) -> list[Path]:
    """The files that a name with `PARTS` stands for.

    Raises:
        DataError: one is missing.
    """
    files = list(listed(place.parent, place.name, kind=DataError).values())
    count = int(place.name.partition(PARTS)[2][:5])
    if len(files) != count:
        raise DataError(
            "parts of the split are missing",
            where=str(place),
            got=f"{len(files)} files",
            expected=str(count),
            fix="download the others",
        )
    return files


def feed_folder(files: Sequence[Path]) -> list[Row]:
    """One row for each `.npz` file, with its arrays as columns.

    Raises:
        DataError: a file cannot be read, or holds something else than arrays of numbers.
    """
    return [arrays_of(file, read(file)) for file in files]


def arrays_of(path: Path, content: bytes | bytearray) -> Row:
    """The arrays of an `.npz` file with this content; pickled objects are refused.

    Raises:
        DataError: the file cannot be read.
    """
    import io

    try:
        if not content.startswith(b"PK"):
            raise ValueError("it is no zip file")
        return dict(arrays_in(io.BytesIO(content), min(MOST_BYTES, most_bytes())))
    except Exception as error:  # zipfile, NumPy and its headers have no base class for theirs
        raise DataError(
            "the file holds no arrays of numbers",
            where=str(path),
            got=reason(error),
            expected="an .npz file, as numpy.savez writes it",
            fix="write it again, without objects",
        ) from error


def refuse_other(folder: Path) -> None:
    """Refuse a folder that holds something else than rows, in words of its own.

    Raises:
        DataError: it is the hub's cache of a model or a data set, or its files are compressed.
    """
    if cached := re.fullmatch(r"(model|dataset)s--(.+)", folder.name):
        found = [str(place) for place in sorted(folder.glob("snapshots/*"))][-1:]
        rows = " or ".join([cached[2].replace("--", "/", 1), *found])
        noun, fix = "data set", f"give {rows}"
        if cached[1] == "model":
            noun, fix = "model", "give a file or folder of rows, or the name of a data set"
        raise DataError(f"the folder is the hub's cache of a {noun}", where=str(folder), fix=fix)
    packed = sorted(file for file in folder.iterdir() if file.suffix.lower() in PACKED)
    if packed:
        raise DataError(
            "the files are compressed",
            where=str(folder),
            got=", ".join(file.name for file in packed[:8]),
            fix=f"unpack them: {PACKED[packed[0].suffix.lower()]} {packed[0].name}",
        )


def text_folder(folder: Path) -> list[Row]:
    """One row for each text: the label is the folder's name, the id is the path. aclImdb has ratings in the names.

    Raises:
        DataError: fewer than two classes have texts, or a file is empty or cannot be read.
    """
    files = texts_in(folder)
    classes = sorted({file.parent.name for file in files})
    if len(classes) < 2:
        raise DataError(
            "the folder has no texts of two classes",
            where=str(folder),
            got=f"{', '.join(classes) or 'no folder'} with .txt files in it",
            expected="a folder for each class, such as neg and pos",
            fix="put every class's texts into a folder of its name",
        )
    return [_text_row(folder.name, file) for file in files]


def _text_row(split: str, file: Path) -> Row:
    text, label = decoded(file, read(file)), file.parent.name
    if not text.strip():
        raise DataError("the text is empty", where=str(file), fix="remove the file or fill it in")
    row = {"id": f"{split}/{label}/{file.stem}", "label": label, "text": text}
    rated = re.fullmatch(r"\d+_(\d+)", file.stem)
    return {**row, "rating": int(rated[1])} if rated else row


def json_rows(path: Path, content: bytes | bytearray) -> list[Row]:
    """The rows of a JSON file with this content: an object on every line, one array of objects, or the nested form of SQuAD.

    Returns:
        rows that all have the same columns; None where an object has no such key.

    Raises:
        DataError: it is not JSON, a row is not an object, or a part of a SQuAD file is missing.
    """
    text = decoded(path, content)
    try:
        whole = parsed_json(text)
    except ValueError as error:
        if text.lstrip().startswith("["):
            raise DataError(
                "the file is not JSON",
                where=str(path),
                got=str(error),
                fix="download or write it again",
            ) from error
        return _same_columns(path, list(json_lines(path, text).values()))
    articles = whole.get("data") if isinstance(whole, dict) else None
    if isinstance(articles, list) and all(
        isinstance(a, dict) and "paragraphs" in a for a in articles
    ):
        return [
            row
            for number, article in enumerate(articles, start=1)
            for row in _questions(path, number, article)
        ]
    records = whole if isinstance(whole, list) else [whole]
    return _same_columns(
        path, [_object(record, f"{path}, row {i}") for i, record in enumerate(records, start=1)]
    )


def json_lines(path: Path, text: str) -> dict[int, Row]:
    """Number of the line → its object, of JSON Lines.

    Raises:
        DataError: a line is not JSON, or is not an object.
    """

    def row(number: int, line: str) -> tuple[int, Row]:
        where = f"{path}, line {number}"
        try:
            value = parsed_json(line)
        except ValueError as error:
            raise DataError(
                "the line is not JSON",
                where=where,
                got=f"{error}: {line[:60]!r}",
                fix="correct the line",
            ) from error
        return number, _object(value, where)

    # Not splitlines(): texts may hold separators (U+2028, NEL) that end a line in Python but not in JSON Lines.
    lines = enumerate(text.split("\n"), start=1)
    return dict(each(row, ((number, line) for number, line in lines if line.strip())))


def _object(value: Any, where: str) -> Row:
    if isinstance(value, str):
        return {"text": value}
    if not isinstance(value, dict):
        raise DataError(
            "the row is not an object",
            where=where,
            got=preview(value, 60),
            expected='{"column": value, …}',
            fix="remove the row or correct it",
        )
    return value


def _same_columns(path: Path, rows: Sequence[Row]) -> list[Row]:
    columns = list(dict.fromkeys(key for row in rows for key in row))
    if len(columns) > _MOST_COLUMNS:
        raise DataError(
            "the file has too many columns",
            where=str(path),
            got=f"{len(columns):,}",
            expected=f"at most {_MOST_COLUMNS:,}, the same in every row",
            fix="correct the file",
        )
    return [{column: row.get(column) for column in columns} for row in rows]


def _questions(path: Path, number: int, article: Mapping[str, Any]) -> Iterator[Row]:
    place = f'{path}, article {number} ("{article.get("title", "")}")'
    for index, paragraph in enumerate(_part(article, "paragraphs", list, place), start=1):
        where = f"{place}, paragraph {index}"
        context = _part(paragraph, "context", str, where)
        for count, question in enumerate(_part(paragraph, "qas", list, where), start=1):
            here = f"{where}, question {count}"
            text = _part(question, "question", str, here)
            answers = (
                _part(question, "answers", list, here)
                if question.get("answers") is not None
                else []
            )
            yield {
                "id": question.get("id"),
                "title": article.get("title"),
                "context": context,
                "question": text,
                "answers": [
                    {"text": _part(a, "text", str, here), "answer_start": a.get("answer_start")}
                    for a in answers
                ],
                "is_impossible": bool(question.get("is_impossible", False)),
            }


def _part(whole: Any, name: str, kind: type, where: str) -> Any:
    value = whole.get(name) if isinstance(whole, Mapping) else None
    if not isinstance(value, kind) or (isinstance(value, str) and not value.strip()):
        raise DataError(
            f'there is no "{name}"',
            where=where,
            got="nothing" if value is None else preview(value, 60),
            expected=f"a {kind.__name__}",
            fix="correct the file",
        )
    return value


def column_file(path: Path, content: bytes | bytearray, columns: Sequence[str] = ()) -> list[Row]:
    """The sentences of a file with one token per line, columns between tabs or spaces, an empty line after each sentence.

    The lines of a .txt file that has no such form are texts.

    Args:
        columns: names; by default `tokens`, the four of CoNLL-2003 where there are four, and `tags` for the last.

    Raises:
        DataError: a line with another number of columns.
    """
    text = decoded(path, content)
    lines = [line.rstrip("\r") for line in text.split("\n")]
    if path.suffix.lower() == ".txt" and not columns and _is_prose(lines):
        return [{"text": line} for line in lines if line.strip()]
    split = "\t" if any("\t" in line for line in lines) else None
    fields = [[f.strip() for f in line.split(split)] if line.strip() else [] for line in lines]
    widths = Counter(len(f) for f in fields if f and f[0] != _DOCUMENT)
    width = widths.most_common(1)[0][0] if widths else 0
    if width < 2 or (columns and len(columns) != width):
        raise DataError(
            "not a column file",
            where=str(path),
            got=f"{width} columns",
            expected=f"columns {', '.join(columns)}"
            if columns
            else "a word and its tag on every line, an empty line between sentences",
        )
    usual = (
        _CONLL_2003
        if width == len(_CONLL_2003)
        else ("tokens", *(f"column_{i}" for i in range(2, width)), "tags")
    )
    return list(_sentences(path, fields, tuple(columns) or usual))


def _is_prose(lines: Sequence[str]) -> bool:
    """Whether lines are texts. Lines of words have tabs, or empty lines between sentences, and most have as many columns."""
    widths = Counter(len(line.split()) for line in lines if line.strip())
    tagged = any("\t" in line for line in lines) or "" in lines[:-1]
    return (
        not tagged
        or max(widths.values(), default=0) < _TAGGED * widths.total()
        or set(widths) == {1}
    )


def _sentences(path: Path, fields: Sequence[list[str]], names: Sequence[str]) -> Iterator[Row]:
    sentence: list[list[str]] = []
    for number, cells in enumerate([*fields, []], start=1):
        if cells and cells[0] == _DOCUMENT:
            continue
        if cells and len(cells) == len(names):
            sentence.append(cells)
        elif cells and not cells[0].startswith("#"):
            raise DataError(
                "the line has another number of columns than the others",
                where=f"{path}, line {number}",
                got=str(len(cells)),
                expected=str(len(names)),
                fix="correct the line",
            )
        elif not cells and sentence:
            yield {name: [token[i] for token in sentence] for i, name in enumerate(names)}
            sentence = []
