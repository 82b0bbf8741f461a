"""Rows of a file: what both models answer, how often they agree, and how many rows a second they answer."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from octobert.core.errors import DataError
from octobert.core.heads import head_of
from octobert.data import readers
from octobert.data.encoded import Encoded
from octobert.data.sampling import ROW_NUMBER, Row
from octobert.data.tokenization import EncodedTexts, Text
from octobert.tasks import Outputs, Result, Table
from octobert_compare.asking import fidelity_of
from octobert_compare.models import FLOAT, INT8, Event, Models, Pair, Work

# Rows of a step, and how long a step should take, so that the page moves and other work gets its turn.
_FIRST, _MOST, _SHORT_MS, _LONG_MS = 8, 64, 250.0, 800.0


def compare_rows(models: Models, name: str, file: str, content: bytes | bytearray) -> Work:
    """Answer the rows of a file with both models.

    Args:
        models: of the folder.
        name: of the package.
        file: name of the file; its suffix is the format.
        content: of the file.

    Yields:
        {"rows", "labelled", "metric"}: what will be answered; then after each step {"done", "seconds", "timed", "agreement",
        "likeness", "metrics", "changed"}. `changed` are the rows of the step with different answers. Seconds are those of rows
        that are timed: the first step is answered once before, and not counted.

    Raises:
        DataError: the rows cannot be read, or do not fit the task.
    """
    pair = models.pair(name)
    read = readers.numbered(readers.rows_in(Path(file), content))
    del content
    rows = pair.task.grouped(Table(read, file))
    gold: list[Any] = []
    with contextlib.suppress(DataError):
        gold = pair.task.gold(rows, where=file)
    if len(gold) != len(rows) and not pair.task.together:
        # The file does not say what is expected of each row.
        gold = []
    # All rows are looked at before the first is answered, so that a wrong one is named now.
    inputs = pair.task.inputs(rows, where=file)
    primary = pair.facts.primary
    metric = (primary if primary in pair.task.metrics else pair.task.primary) if gold else None
    yield {**pair.summary(), "rows": len(rows), "labelled": bool(gold), "metric": metric}
    job = _Job(pair, rows, inputs, gold, metric)
    size = _FIRST
    while job.done < len(inputs):
        took = job.step(size)
        if took < _SHORT_MS:
            size = min(2 * size, _MOST)
        elif took > _LONG_MS:
            size = max(1, size // 2)
        yield job.event(last=job.done >= len(inputs))


@dataclass
class _Job:
    """The results on the rows so far.

    Args:
        pair: the models.
        rows: of the file.
        inputs: their texts; one for each row, unless rows are answered together.
        gold: what is expected.
        metric: to compute; None for none.
    """

    pair: Pair
    rows: Sequence[Row]
    inputs: Sequence[Text]
    gold: Sequence[Any]
    metric: str | None
    done: int = 0
    weight: int = 0
    agreed: float = 0.0
    likeness: str = ""
    correlates: bool = False
    seconds: dict[str, float] = field(default_factory=dict)
    steps: int = 0
    changed: list[Event] = field(default_factory=list)
    outputs: dict[str, list[Outputs]] = field(default_factory=dict)
    items: dict[str, list[np.ndarray]] = field(default_factory=dict)

    @property
    def together(self) -> bool:
        """True for tasks whose texts are compared with each other, once all are there."""
        return self.pair.task.together or head_of(self.pair.facts.head).pooled

    def step(self, size: int) -> float:
        """Answer some texts. Returns milliseconds of the slower model."""
        task, pair = self.pair.task, self.pair
        part = slice(self.done, self.done + size)
        encoded, gold = task.encode(pair.tokenizer, self.inputs[part]), self.gold[part]
        if self.steps == 0:
            pair.timed(0, lambda predictor: predictor.outputs(encoded.flat))
        results = pair.timed(self.steps, lambda predictor: predictor.outputs(encoded.flat))
        for name, (_, ms) in results.items():
            self.seconds[name] = self.seconds.get(name, 0.0) + ms / 1e3
        outputs: dict[str, Outputs] = {name: output for name, (output, _) in results.items()}
        self.changed = self._compared(outputs, encoded, gold) if len(outputs) > 1 else []
        if not self.together and self.metric is not None:
            for name, output in outputs.items():
                self.items.setdefault(name, []).append(task.items(Result(output, encoded, gold)))
        if not task.per_token:
            for name, output in outputs.items():
                self.outputs.setdefault(name, []).append(output)
        self.done, self.steps = self.done + len(encoded.texts), self.steps + 1
        return max(ms for _, ms in results.values())

    def event(self, *, last: bool) -> Event:
        """The event for the page after a step."""
        if last and self.together:
            self._compare_all()
        task, metrics = self.pair.task, {}
        for name, items in self.items.items():
            if self.metric is not None:
                metrics[name] = _finite(float(task.metrics[self.metric](np.concatenate(items))))
        agreement = self.agreed / max(self.weight, 1)
        if self.correlates:
            whole = self._whole(EncodedTexts([], []))
            agreement = task.fidelity(whole[INT8], whole[FLOAT]).agreement
        return {
            "done": self.done * len(self.rows) // len(self.inputs),
            "seconds": dict(self.seconds),
            "likeness": self.likeness,
            "agreement": _finite(agreement),
            "metrics": metrics,
            "changed": self.changed,
        }

    def _compared(
        self,
        outputs: dict[str, Outputs],
        encoded: EncodedTexts,
        gold: Sequence[Any],
    ) -> list[Event]:
        """Count agreement, and return the rows with different answers."""
        task = self.pair.task
        fidelity = fidelity_of(self.pair, outputs, encoded)
        self.likeness, self.correlates = fidelity.name, fidelity.kind == "correlation"
        weight = task.compared(encoded)
        self.agreed += (fidelity.agreement if math.isfinite(fidelity.agreement) else 1.0) * weight
        self.weight += weight
        if self.together:
            return []
        events = []
        for index, before, after in fidelity.changed:
            text = encoded.texts[index]
            answers = {
                name: task.answer(Result(output, encoded), index, text)
                for name, output in outputs.items()
            }
            expected = task.expected(gold[index]) if len(gold) else None
            place = self.done + index
            number = self.rows[place].get(ROW_NUMBER, place + 1)
            scores = {name: answer.get("score") for name, answer in answers.items()}
            shown = (" ".join(text),) if head_of(self.pair.facts.head).input == "words" else text
            events.append(_changed(number, shown, expected, before, after, scores))
        return events

    def _whole(self, encoded: EncodedTexts, gold: Sequence[Any] = ()) -> dict[str, Result]:
        """What each model answered to all texts so far."""
        return {
            name: Result(
                {key: np.concatenate([part[key] for part in parts]) for key in parts[0]},
                encoded,
                gold,
            )
            for name, parts in self.outputs.items()
        }

    def _compare_all(self) -> None:
        """Compare all texts with each other: ranks of documents, and metrics."""
        task, nothing = self.pair.task, [list[Encoded]() for _ in self.inputs]
        encoded = EncodedTexts(self.inputs, nothing)
        whole = self._whole(encoded, self.gold)
        if len(whole) > 1:
            for index, before, after in task.fidelity(whole[INT8], whole[FLOAT]).changed:
                row = task.changed_row((whole[FLOAT], whole[INT8]), index, (before, after))
                self.changed.append(
                    _changed(index + 1, row.texts, row.expected or None, before, after, {})
                )
        if self.metric is not None:
            self.items = {name: [task.items(result)] for name, result in whole.items()}


def _changed(
    number: int, text: Text, expected: str | None, before: str, after: str, scores: dict[str, Any]
) -> Event:
    return {
        "row": number,
        "texts": list(text),
        "expected": expected,
        "float": before,
        "int8": after,
        "float_score": scores.get(FLOAT),
        "int8_score": scores.get(INT8),
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
