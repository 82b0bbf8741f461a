"""Answers to rows of a data set, beside what is expected of them: for one row, or written to files for all.

Question answering is written in the form of the official SQuAD scripts, everything else as one line of JSON for each row.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np

from octobert.core.errors import DataError, RecipeError
from octobert.core.files import atomic_write, storage_errors
from octobert.data.rows import ROW_NUMBER, Row
from octobert.data.tokenization import EncodedTexts
from octobert.inference.opened import Opened
from octobert.inference.predictor import Predictor
from octobert.tasks import Outputs, Task
from octobert.tasks._common import probabilities
from octobert.tasks._spans import Prediction

ANSWERING = "question-answering"
# Answers of one question in a file of n-best answers, as the official scripts have them.
_BEST = 20


class _Answers(Protocol):
    """What question answering has beside a task."""

    unanswerable: bool

    def predictions(self, outputs: Outputs, encoded: EncodedTexts, count: int) -> list[Prediction]:
        """The best answers to every question."""
        ...

    def final_answer(self, prediction: Prediction) -> str:
        """The text of the best answer; empty for "no answer"."""
        ...


def check(model: Opened, predictions: Path | None, nbest: Path | None) -> None:
    """Check that a model's predictions can be written, before they are made.

    Raises:
        RecipeError: n-best answers of a model that answers no questions, or both in one file.
        StorageError: there is no folder for a file.
    """
    if nbest is not None and model.head != ANSWERING:
        got, fix = f"a model for {model.facts().name}", "use --predictions"
        raise RecipeError("only answers to questions have n-best lists", where="--nbest", got=got, fix=fix)
    if nbest is not None and nbest == predictions:
        raise RecipeError("both files have the same name", where="--nbest", got=str(nbest), fix="give two names")
    for path in (predictions, nbest):
        if path is not None and not path.parent.is_dir():
            raise RecipeError("there is no such folder", where=str(path.parent), fix="make it, or choose another file")


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
            _write(predictions, "".join(f"{json.dumps(line, ensure_ascii=False)}\n" for line in lines))
        return
    own = cast(_Answers, task)
    found = own.predictions(outputs, encoded, _BEST)
    ids = [_id(row, i) for i, row in enumerate(rows)]
    if predictions is not None:
        _write_json(predictions, {name: own.final_answer(each) for name, each in zip(ids, found, strict=True)})
        if own.unanswerable:
            most = float(np.finfo(np.float32).max)
            odds = {name: min(each.null_minus_best, most) for name, each in zip(ids, found, strict=True)}
            _write_json(predictions.with_name(f"{predictions.stem}.null_odds.json"), odds)
    if nbest is not None:
        _write_json(nbest, {name: _best(each, own.unanswerable) for name, each in zip(ids, found, strict=True)})


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
        raise DataError("the task reads its rows together, so there is no prediction for each", got=got, fix="give texts")
    for index, row in enumerate(rows):
        places = range(index * each, (index + 1) * each)
        answers = [task.answer(outputs, encoded, place, encoded.texts[place]) for place in places]
        texts = [" ⇄ ".join(encoded.texts[place]) if each > 1 else list(encoded.texts[place]) for place in places]
        yield {
            "row": row.get(ROW_NUMBER, index + 1),
            "input": texts if each > 1 else texts[0],
            "gold": task.expected(gold[index]) if len(gold) else None,
            **({"answers": answers} if each > 1 else answers[0]),
        }


def of_rows(model: Predictor, where: str, rows: Sequence[Row], numbers: Sequence[int]) -> list[dict[str, Any]]:
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
            raise DataError("there is no such row", where=where, got=str(number), expected=f"1 to {len(rows)}", fix=fix)
    task, chosen = model.task, [rows[number - 1] for number in numbers]
    try:
        gold = task.gold(chosen, where=where)
    except DataError:
        # Test sets often have no labels.
        gold = []
    encoded = task.encode(model.opened.tokenizer(task), task.inputs(chosen, where=where))
    return list(answered(task, chosen, gold, encoded, model.outputs(encoded.flat)))


def _id(row: Row, index: int) -> str:
    return str(row["id"]) if row.get("id") not in (None, "") else str(row.get(ROW_NUMBER, index + 1))


def _best(prediction: Prediction, unanswerable: bool) -> list[dict[str, Any]]:
    """Answers to one question with their probabilities among each other, most likely first."""
    entries: list[dict[str, Any]] = [
        {"text": span.text, "score": span.score, "start": span.start, "end": span.end} for span in prediction.spans
    ]
    if unanswerable or not entries:
        entries.append({"text": "", "score": prediction.null, "start": None, "end": None})
    entries.sort(key=lambda entry: -entry["score"])
    likely = probabilities(np.array([entry["score"] for entry in entries]))
    return [{**entry, "probability": float(each)} for entry, each in zip(entries, likely, strict=True)]


def _write_json(path: Path, content: Any) -> None:
    _write(path, json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def _write(path: Path, text: str) -> None:
    with storage_errors(path.parent), atomic_write(path) as partial:
        partial.write_text(text, encoding="utf-8")
