"""BEIR folders: `corpus.jsonl` {_id, title, text}, `queries.jsonl` {_id, text}, `qrels/SPLIT.tsv` {query-id, corpus-id, score}.

A split is read as one row for each query, with its judged documents; the corpus as rows with a document and no query.
Source: Thakur et al., BEIR: A Heterogenous Benchmark for Zero-shot Evaluation of Information Retrieval Models, 2021.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from octobert.core.errors import DataError
from octobert.core.origin import listed
from octobert.core.plain import preview
from octobert.data import formats
from octobert.data.sampling import Row

# Columns of rows beside those of every data set for ranking: the _id of the query, and the document that has the same one.
QUERY_ID, OWN_DOCUMENT = "query-id", "own-document"
_CORPUS, _QUERIES, _QRELS = "corpus.jsonl", "queries.jsonl", "qrels"


def splits_of(folder: Path) -> list[Path]:
    """The files of judgements and the corpus of a folder; none of any other folder."""
    files = listed(folder, f"{_QRELS}/*.tsv", _QUERIES, _CORPUS, kind=DataError)
    judged = [file for file in files.values() if file.suffix == ".tsv"]
    return [*judged, files[_CORPUS]] if judged and files.keys() >= {_CORPUS, _QUERIES} else []


def files_of(place: Path) -> list[Path]:
    """The files that the rows of a place are read from: of judgements, also the texts; of a saved data set and of parts, all.

    Raises:
        DataError: a part is missing.
    """
    if tables := formats.tables_in(place):
        return tables
    if formats.PARTS in place.name and not place.exists():
        return formats.parts_of(place)
    folder = place.parent.parent
    if place.parent.name != _QRELS or place not in splits_of(folder):
        return [place]
    return [place, folder / _QUERIES, folder / _CORPUS]


def is_corpus(place: Path) -> bool:
    """Return whether a file is the corpus of a folder."""
    return place.name == _CORPUS and place in splits_of(place.parent)


def documents(place: Path) -> list[Row]:
    """The rows of a corpus; documents without text are left out, as some of BEIR's have none."""
    texts = _texts(place, ("title", "text")).values()
    return [{"query": None, "document": text} for text in texts if text]


def queries(place: Path, asked_in: Path, found_in: Path) -> list[Row]:
    """The rows of a file of judgements, as `files_of` gives it: {query-id, query, document: [texts], relevance: [numbers]}.

    The `own-document` of a query has its _id: BEIR leaves it out of what the query finds.

    Raises:
        DataError: a line cannot be read, or names a query or a document that is not there, or judges one in another way.
    """
    asked, found = _texts(asked_in, ("text",)), _texts(found_in, ("title", "text"))
    rows: dict[str, dict[str, Any]] = {}
    judged: dict[tuple[str, str], str] = {}
    # Not splitlines(): an _id may hold separators (U+2028, NEL) that end a line in Python only.
    lines = formats.decoded(place, formats.read(place)).split("\n")
    for number, line in enumerate(lines, start=1):
        cells = line.rstrip("\r").split("\t")
        if (number == 1 and cells[0] == "query-id") or not line.strip():
            continue
        where = f"{place}, line {number}"
        if len(cells) != 3:
            raise DataError(
                "the line is no judgement",
                where=where,
                got=preview(line),
                expected="query-id, corpus-id and score with tabs between them",
                fix="correct the line",
            )
        query, document, score = cells
        for name, known, file in ((query, asked, asked_in), (document, found, found_in)):
            if not known.get(name):
                raise DataError(
                    f'{file.name} has no text with the _id "{name}"',
                    where=where,
                    fix="remove the line, or use the files of one data set",
                )
        if (query, document) in judged:
            _check_same(judged[query, document], score, f"the document {preview(document)}", where)
            continue
        judged[query, document] = score
        row = rows.setdefault(
            query,
            {
                QUERY_ID: query,
                "query": asked[query],
                "document": [],
                "relevance": [],
                OWN_DOCUMENT: found.get(query),
            },
        )
        row["document"].append(found[document])
        row["relevance"].append(score)
    return list(rows.values())


def _texts(file: Path, keys: tuple[str, ...]) -> Mapping[str, str]:
    """_id → the texts of these keys, joined by a blank, as BEIR's models read them.

    Raises:
        DataError: a line has no _id, or that of another text, or a value that is no text.
    """
    texts: dict[str, str] = {}
    lines = formats.json_lines(file, formats.decoded(file, formats.read(file)))
    for number, row in lines.items():
        where = f"{file}, line {number}"
        for key in ("_id", *keys):
            if isinstance(row.get(key), list | dict):
                raise DataError(
                    f"{key} is not a text",
                    where=where,
                    got=preview(row[key]),
                    fix="correct the line",
                )
        if row.get("_id") is None:
            raise DataError(
                "the row has no _id",
                where=where,
                got=preview(row),
                fix="remove the row or fill it in",
            )
        text = " ".join(str(row.get(key) or "") for key in keys).strip()
        name = str(row["_id"])
        _check_same(texts.setdefault(name, text), text, f"the _id {preview(name)}", where)
    return texts


def _check_same(first: str, now: str, what: str, where: str) -> None:
    """Make sure that a second line says what the first one said.

    Raises:
        DataError: it does not.
    """
    if first != now:
        raise DataError(
            f"{what} was there with another value",
            where=where,
            got=preview(now),
            expected=preview(first),
            fix="remove one of the two lines",
        )
