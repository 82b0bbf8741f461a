"""One text column and nothing else: what embeds texts is judged by how near it is to float."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas
import pytest

import octobert
from octobert.config.loading import parse
from octobert.core.errors import ColumnError
from octobert.data import readers
from octobert.pipeline.resolve import resolve
from octobert.tasks import Table, check_columns
from octobert.tasks.embedding import Texts, text_alone
from tests.support.tasks import build

TASKS = ("embedding", "sparse-embedding", "late-interaction")
TEXTS = [f"the cat {index} was in it" for index in range(8)]


def table(*names: str, **others: object) -> Table:
    rows = [{**dict.fromkeys(names, text), **others} for text in TEXTS]
    return Table(rows, "dev.csv")


ALONE = {
    "text": table("text"),
    "sentence": table("sentence"),
    "content": table("content"),
    "body": table("body", id=7),
    "any name": table("was_er_sagt"),
    "id and text": table("text", id="a-7"),
    "id and any name": table("abstract", doc_id="17", year="2020", stars=4.5),
    "text among texts": table("title", "text", "url"),
    "text and label": table("text", label="positive"),
    "Text": table("Text"),
}
OTHER = {
    "two texts": table("first", "second"),
    "scored": table("sentence1", score=1.0),
    "pair": table("sentence1", "sentence2"),
    "queries": table("query", "passage"),
    "numbers": table(a=1, b=2.0),
    "nothing": Table([], "dev.csv"),
}


@pytest.mark.parametrize("kind", ALONE)
def test_a_column_of_texts_alone(kind: str) -> None:
    column = text_alone(ALONE[kind])
    assert column is not None
    assert ALONE[kind].texts(column) == TEXTS


@pytest.mark.parametrize("kind", OTHER)
def test_rows_of_another_form(kind: str) -> None:
    assert text_alone(OTHER[kind]) is None


@pytest.mark.parametrize("name", TASKS)
def test_the_sentence_for_other_tables_names_all_forms(golden, name: str) -> None:
    with golden.raises(ColumnError):
        check_columns(name, build(name, {}), OTHER["two texts"].rows, where="dev.csv")


def write(folder: Path, form: str) -> Path:
    path = folder / f"rows.{form}"
    frame = pandas.DataFrame({"id": range(len(TEXTS)), "text": TEXTS})
    if form == "parquet":
        frame.to_parquet(path)
    elif form == "csv":
        frame[["text"]].to_csv(path, index=False)
    elif form == "json":
        path.write_text(json.dumps(TEXTS))
    elif form == "jsonl":
        path.write_text("\n".join(map(json.dumps, TEXTS)))
    else:
        path.write_text("\n".join(TEXTS) + "\n")
    return path


@pytest.mark.parametrize("form", ["csv", "txt", "json", "jsonl", "parquet"])
def test_files_of_texts_alone(tmp_path: Path, form: str) -> None:
    rows = readers.read_file(write(tmp_path, form))
    column = text_alone(Table(rows, "rows"))
    assert [row[column] for row in rows] == TEXTS


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ("one line\n", ["text"]),
        ("two words\nand two\n", ["text"]),
        ("word\nword\n\nword\n", ["text"]),
        ("A paragraph of words.\n\nAnother one, which is longer.\n", ["text"]),
        ("a O\nb B-X\n\nc O\n", ["tokens", "tags"]),
        ("a\tO\nb\tB-X\n", ["tokens", "tags"]),
    ],
)
def test_lines_of_text_and_columns_of_words(tmp_path: Path, text: str, columns: list[str]) -> None:
    (tmp_path / "a.txt").write_text(text)
    assert list(readers.read_file(tmp_path / "a.txt")[0]) == columns


@pytest.mark.parametrize("form", ["csv", "txt"])
def test_a_run_says_in_one_line_that_there_are_texts_alone(
    golden, checkpoint: Any, tmp_path: Path, form: str
) -> None:
    facts = resolve(
        parse(
            {
                "model": str(checkpoint("bert", "embedding")),
                "task": "embedding",
                "data": str(write(tmp_path, form)),
                "targets": ["ort-cpu"],
            }
        ),
        tune=False,
    )
    assert facts.recipe.task.options["text"] == ["text"]
    assert isinstance(facts.scored.build(), Texts)
    golden(facts.places.how)


def test_a_run_on_texts_alone(checkpoint: Any, tmp_path: Path) -> None:
    report = octobert.quantize(
        checkpoint("bert", "embedding"),
        task="embedding",
        data=str(write(tmp_path, "json")),
        targets=["ort-cpu"],
        out=tmp_path / "out",
        quick=True,
    )
    assert report.task.primary is None
    assert "texts alone" in report.data.source
    assert report.compared[0].fidelity > 0.9
    # The package knows the column.
    again = octobert.evaluate(tmp_path / "out" / "ort-cpu", data=str(write(tmp_path, "csv")))
    assert again is not None
