"""Answers to rows of a data set, beside what is expected of them: for one row, or written to files for all.

Question answering is written in the form of the official SQuAD scripts, everything else as one line of JSON for each row.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, cast

from octobert.core.errors import DataError, RecipeError
from octobert.core.files import atomic_write, storage_errors
from octobert.data.sampling import ROW_NUMBER, Row
from octobert.data.tokenization import EncodedTexts
from octobert.inference.opened import Opened
from octobert.inference.predictor import Predictor
from octobert.tasks import Outputs, Task

ANSWERING = "question-answering"


def check(model: Opened, predictions: Path | None, nbest: Path | None) -> None:
    """Check that a model's predictions can be written, before they are made.

    Raises:
        RecipeError: n-best answers of a model that answers no questions, or both in one file.
        StorageError: there is no folder for a file.
    """
    if nbest is not None and model.head != ANSWERING:
        got, fix = f"a model for {model.facts().name}", "use --predictions"
        raise RecipeError(
            "only answers to questions have n-best lists", where="--nbest", got=got, fix=fix
        )
    if nbest is not None and nbest == predictions:
        raise RecipeError(
            "both files have the same name", where="--nbest", got=str(nbest), fix="give two names"
        )
    for path in (predictions, nbest):
        if path is not None and not path.parent.is_dir():
            raise RecipeError(
                "there is no such folder",
                where=str(path.parent),
                fix="make it, or choose another file",
            )


def write(
    task: Task,
    rows: Sequence[Row],
    gold: Sequence[Any],
    encoded: EncodedTexts,
    outputs: Outputs,
    *,
    predictions: Path | None,
    nbest: Path | None,
) -> None:
    """Write what a model predicts for rows.

    Args:
        task: of the model.
        rows: of the data set.
        gold: what is expected of them; may be empty.
        encoded: their texts.
        outputs: of the model.
        predictions: the file. Questions: id → answer, and for data with unanswerable questions also FILE.null_odds.json.
        nbest: for questions: id → the best answers with probability, score and place.

    Raises:
        StorageError: a file cannot be written.
    """
    if task.head != ANSWERING:
        if predictions is not None:
            lines = answered(task, rows, gold, encoded, outputs)
            _write(
                predictions, "".join(f"{json.dumps(line, ensure_ascii=False)}\n" for line in lines)
            )
        return
    ids = [
        str(row["id"]) if row.get("id") not in (None, "") else str(row.get(ROW_NUMBER, i + 1))
        for i, row in enumerate(rows)
    ]
    answers, odds, best = cast(Any, task).official(outputs, encoded)
    if predictions is not None:
        _write_json(predictions, dict(zip(ids, answers, strict=True)))
        if odds is not None:
            _write_json(
                predictions.with_name(f"{predictions.stem}.null_odds.json"),
                dict(zip(ids, odds, strict=True)),
            )
    if nbest is not None:
        _write_json(nbest, dict(zip(ids, best, strict=True)))


def answered(
    task: Task, rows: Sequence[Row], gold: Sequence[Any], encoded: EncodedTexts, outputs: Outputs
) -> Iterable[dict[str, Any]]:
    """What a model predicts for rows, as plain data, with their numbers and what is expected of them.

    Raises:
        DataError: the task reads the rows of a data set together, as retrieval does.
    """
    each = len(encoded.texts) // max(len(rows), 1)
    if each * len(rows) != len(encoded.texts):
        got = f"{len(encoded.texts)} texts of {len(rows)} rows"
        raise DataError(
            "the task reads its rows together, so there is no prediction for each",
            got=got,
            fix="give texts",
        )
    for index, row in enumerate(rows):
        places = range(index * each, (index + 1) * each)
        answers = [task.answer(outputs, encoded, place, encoded.texts[place]) for place in places]
        texts = [
            " ⇄ ".join(encoded.texts[place]) if each > 1 else list(encoded.texts[place])
            for place in places
        ]
        yield {
            "row": row.get(ROW_NUMBER, index + 1),
            "input": texts if each > 1 else texts[0],
            "gold": task.expected(gold[index]) if len(gold) else None,
            **({"answers": answers} if each > 1 else answers[0]),
        }


def of_rows(
    model: Predictor, where: str, rows: Sequence[Row], numbers: Sequence[int]
) -> list[dict[str, Any]]:
    """What a model predicts for some rows of a data set.

    Args:
        where: the data set, for errors.
        rows: all its rows.
        numbers: of the rows, from 1.

    Raises:
        DataError: there is no such row, or it does not fit the task.
    """
    for number in numbers:
        if not 1 <= number <= len(rows):
            fix = "rows are counted from 1, without the header"
            raise DataError(
                "there is no such row",
                where=where,
                got=str(number),
                expected=f"1 to {len(rows)}",
                fix=fix,
            )
    task, chosen = model.task, [rows[number - 1] for number in numbers]
    try:
        gold = task.gold(chosen, where=where)
    except DataError:
        # Test sets often have no labels.
        gold = []
    encoded = task.encode(model.opened.tokenizer(task), task.inputs(chosen, where=where))
    return list(answered(task, chosen, gold, encoded, model.outputs(encoded.flat)))


def _write_json(path: Path, content: Any) -> None:
    _write(path, json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def _write(path: Path, text: str) -> None:
    with storage_errors(path.parent), atomic_write(path) as partial:
        partial.write_text(text, encoding="utf-8")
