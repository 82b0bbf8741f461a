"""Any ONNX graph with encoder layers in it: rows are its inputs, and every output is compared with float.

A row has a column for each input of the graph, an array or nested lists: of `.npz` files, of JSON, or of the user's function.
Nothing else is known of such a graph, so that rows run alone, and a function of the user says what is right or wrong.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from pydantic import Field

from octobert.core import budget
from octobert.core.closeness import Measure, OutputCloseness
from octobert.core.errors import DataError, each
from octobert.core.evidence import Answer, ChangedRow
from octobert.core.frozen import Count
from octobert.core.model_config import Config
from octobert.core.plain import beginning, parsed_json, preview
from octobert.core.results import ModelMetadata
from octobert.data import formats
from octobert.data.encoded import FeedRow, size_of
from octobert.data.sampling import ROW_NUMBER
from octobert.data.tokenization import EncodedTexts, NoTokenizer, Text, Tokenizer
from octobert.tasks._metrics import output_error, unit
from octobert.tasks._rows import Table
from octobert.tasks._task import (
    NOTHING,
    Change,
    Fidelity,
    Pair,
    Predictions,
    Result,
    TaskOptions,
    UserAnswer,
    objects,
)
from octobert.tasks._texts import Unscored

# Types of numbers in JSON, which has no others; whole ones beyond int64 have uint64.
_PLAIN = {"i": np.int64, "u": np.uint64, "f": np.float32, "b": np.bool_}
# Bytes that a number takes while it is made JSON and read again, and those of the largest type that ONNX has.
_NUMBER, _LARGEST = 100, 8
# Characters of a row that people are shown.
_SHOWN = 200
Named = Mapping[str, np.ndarray]


class GraphOptions(TaskOptions):
    """Args:
    references: columns that are no inputs of the graph; a metric of your own gets them as references.
    scores: outputs whose largest number on the last axis is an answer.
    axes: sizes of free axes of the inputs, by their names in the file: fixed for targets that take files of one shape. All rows
        have these sizes.
    """

    description: ClassVar[str] = (
        "any ONNX graph with encoder layers in it; every output beside float, or a metric of your own"
    )

    references: tuple[str, ...] = ()
    scores: tuple[str, ...] = ()
    axes: dict[str, Count] = Field(default_factory=dict)

    def build(self, metadata: ModelMetadata = NOTHING) -> GraphTask:
        """Return the task for any graph."""
        return GraphTask(references=self.references, scores=self.scores)


@dataclass(frozen=True, kw_only=True)
class GraphTask(Unscored):
    """Inputs of a graph. A text is one row of them, as JSON.

    Args:
        references: columns that are no inputs.
        scores: outputs whose largest number is an answer.
    """

    head: str = "graph"
    per_token: bool = True
    references: tuple[str, ...] = ()
    scores: tuple[str, ...] = ()

    def tokenizer(self, folder: Path, config: Config | None = None) -> Tokenizer:
        """None: nothing is text."""
        return NoTokenizer()

    def read_inputs(self, table: Table) -> list[Text]:
        table.need(*self.references)
        return each(
            self._text,
            (
                (row, f"{table.where}, row {row.get(ROW_NUMBER, i)}")
                for i, row in enumerate(table.rows, 1)
            ),
        )

    def read_gold(self, table: Table) -> list[Any]:
        """The references of each row."""
        if not self.references:
            return []
        return [{name: _plain(row[name]) for name in self.references} for row in table.rows]

    def parse(self, user_input: Any, *, where: str) -> Text:
        """Input → array or nested lists, the same as JSON, or the path of an `.npz` file.

        Raises:
            DataError: it is neither.
        """
        if isinstance(user_input, (str, Path)) and str(user_input).endswith(".npz"):
            path = Path(user_input)
            user_input = formats.arrays_of(path, formats.read(path))
        elif isinstance(user_input, str):
            with suppress(ValueError):
                user_input = parsed_json(user_input)
        if not isinstance(user_input, Mapping):
            raise DataError(
                "the input is not a feed of the graph",
                where=where,
                got=preview(user_input),
                expected='{"input": array, …}, or the path of an .npz file',
            )
        return self._text(user_input, where)

    def _text(self, row: Mapping[Any, Any], where: str) -> Text:
        left_out = {ROW_NUMBER, *self.references}
        feeds = {
            str(name): _array(cell, f'{where}, "{name}"')
            for name, cell in row.items()
            if name not in left_out
        }
        return (
            json.dumps(
                {name: [a.dtype.name, a.shape, a.reshape(-1).tolist()] for name, a in feeds.items()}
            ),
        )

    def encode(self, tokenizer: Tokenizer, texts: Sequence[Text]) -> EncodedTexts:
        """A row for each feed."""
        return EncodedTexts(texts, [[_row(text[0])] for text in texts], tokenizer)

    def items(self, result: Result) -> np.ndarray:
        """[rows, 0]: what is right a function of the user says."""
        return np.empty((len(result.gold), 0))

    def judged(self, result: Result) -> Predictions:
        """The outputs of each row by name, and its references by name."""
        return Predictions(objects(result.by_row), objects(list(result.gold)))

    def fidelity(self, ours: Result, reference: Result) -> Fidelity:
        """The mean cosine of outputs; changed are rows where the largest of some scores is another one."""
        after, before = ours.by_row, reference.by_row
        changed: list[Change] = []
        for index, pair in enumerate(zip(before, after, strict=True)):
            old, new = map(self._answers, pair)
            if old != new:
                changed.append((index, old, new))
        cosines = _cosines(after, before)
        numbers = ({name: each.outputs[name] for name in before[0]} for each in (ours, reference))
        return Fidelity(
            "mean cosine of outputs",
            float(_of_rows(cosines).mean()),
            output_error(*numbers),
            tuple(changed),
            kind="cosine",
            outputs=tuple(
                OutputCloseness(
                    output=name,
                    relative_error=_relative(ours.outputs[name], reference.outputs[name]),
                    cosine=None if np.isnan(each).all() else float(np.nanmean(each)),
                    same_largest=self._same(name, after, before) if name in self.scores else None,
                )
                for name, each in cosines.items()
            ),
        )

    def closeness(self, ours: Result, reference: Result) -> tuple[Measure, np.ndarray]:
        """The mean cosine of the outputs of each row."""
        return "cosine", _of_rows(_cosines(ours.by_row, reference.by_row))

    def answer(self, result: Result, index: int, user_input: Any) -> UserAnswer:
        """All outputs."""
        return {name: array.tolist() for name, array in result.by_row[index].items()}

    def line(self, answer: Mapping[str, Any]) -> str:
        return ", ".join(f"{name} {list(np.shape(values))}" for name, values in answer.items())

    def changed_row(self, pair: Pair, index: int, answers: Sequence[str]) -> ChangedRow:
        """With the beginning of the row."""
        shown = [Answer(text=text) for text in answers]
        texts = (beginning(pair[0].texts[index][0], _SHOWN),)
        return self.row_of(pair, index, shown, texts=texts, transitions=(tuple(answers),))

    def _answers(self, outputs: Named) -> str:
        shown = {name: _largest(outputs[name]).tolist() for name in self.scores}
        return ", ".join(f"{name} {largest}" for name, largest in shown.items())

    def _same(self, name: str, ours: Sequence[Named], reference: Sequence[Named]) -> float:
        """The share of the largest numbers of scores that are the same ones."""
        pairs = zip(ours, reference, strict=True)
        same = [np.ravel(_largest(a[name]) == _largest(b[name])) for a, b in pairs]
        return float(np.mean(np.concatenate(same)))


def _largest(scores: np.ndarray) -> np.ndarray:
    """Places of the largest numbers of the last axis; none where it is empty."""
    return scores.argmax(axis=-1) if scores.size else np.zeros(scores.shape[:-1], np.int64)


def _relative(ours: np.ndarray, reference: np.ndarray) -> float:
    before = reference.astype(np.float64)
    scale = float(np.sqrt(np.mean(np.square(before)))) if before.size else 0.0
    error = float(np.sqrt(np.mean(np.square(ours - before)))) if before.size else 0.0
    return error / max(scale, 1e-30)


def _cosines(ours: Sequence[Named], reference: Sequence[Named]) -> dict[str, np.ndarray]:
    """Output → [rows] its cosine with the other model's; NaN for whole numbers, and for one, whose cosine is its sign."""
    found = {name: np.full(len(reference), np.nan) for name in reference[0]}
    for index, (after, before) in enumerate(zip(ours, reference, strict=True)):
        for name, other in before.items():
            array = after[name]
            if array.shape != other.shape:
                raise DataError(
                    f'the output "{name}" has another shape than that of the float model',
                    where=f"row {index + 1}",
                    got=str(list(array.shape)),
                    expected=str(list(other.shape)),
                    fix="take outputs whose shapes follow from the inputs, not from scores",
                )
            # Class numbers have no angle between them.
            if array.size > 1 and array.dtype.kind == "f":
                both = (each.reshape(-1).astype(np.float64) for each in (array, other))
                equal = np.array_equal(array, other)
                found[name][index] = 1.0 if equal else np.sum(np.multiply(*map(unit, both)))
    return found


def _of_rows(cosines: Mapping[str, np.ndarray]) -> np.ndarray:
    """[rows] the mean over the outputs; 1 where all of them are one number."""
    columns = np.stack(list(cosines.values()))
    known = ~np.isnan(columns)
    sums = np.where(known, columns, 0.0).sum(axis=0)
    return np.where(known.any(axis=0), sums / np.maximum(known.sum(axis=0), 1), 1.0)


def _array(cell: Any, where: str) -> np.ndarray:
    """A cell as an array of numbers; nested lists have int64, float32 or bool.

    Raises:
        DataError: it is none, or is larger than the memory. Of an array without elements each axis counts by itself.
    """
    try:
        # The mask of an array would be lost.
        array = np.asarray(None if np.ma.isMaskedArray(cell) else cell)
    except Exception:  # noqa: BLE001  # arrays of other libraries raise what they like
        array = np.asarray(None)
    if array.dtype.kind not in "iufb" or array.dtype.itemsize > _LARGEST:
        raise DataError(
            "the cell is not an array of numbers",
            where=where,
            got=preview(cell),
            expected="an array, or nested lists of one length each",
        )
    sizes = math.prod(max(size, 1) for size in array.shape)
    budget.check(
        DataError,
        f"an array of the shape {[*array.shape]}",
        _NUMBER * sizes,
        where=where,
        fix="give a smaller one",
    )
    if isinstance(cell, (np.ndarray, np.generic)):
        return array
    with np.errstate(over="ignore"):
        plain: np.ndarray = array.astype(_PLAIN[array.dtype.kind])
    # What float32 has no room for is said of the input that it is for.
    return plain if np.array_equal(np.isfinite(plain), np.isfinite(array)) else array


def _plain(cell: Any) -> Any:
    return cell.tolist() if isinstance(cell, (np.ndarray, np.generic)) else cell


def _row(text: str) -> FeedRow:
    feeds = {
        name: np.array(numbers, dtype=dtype).reshape(shape)
        for name, (dtype, shape, numbers) in json.loads(text).items()
    }
    ids = np.zeros(size_of(feeds)[1], np.int64)
    return FeedRow(ids, ids, truncated=False, feeds=feeds)
