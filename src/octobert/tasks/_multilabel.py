"""Any number of labels for each text: every logit is a decision of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from octobert.core.errors import DataError
from octobert.data.rows import Row
from octobert.data.tokenization import EncodedTexts
from octobert.tasks._common import first_column, log_probabilities, output_error, place_of, share_of_most_frequent, sigmoid
from octobert.tasks._task import Fidelity, Judged, Metric, Outputs
from octobert.tasks._texts import RowTexts

# A label is given where its probability is at least this.
THRESHOLD = 0.5


def _counts(items: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(right decisions for each label, twice; predicted and expected ones together)."""
    predicted, right = np.split(items, 2, axis=1)
    return 2 * (predicted * right).sum(axis=0), predicted.sum(axis=0) + right.sum(axis=0)


def micro_f1(items: np.ndarray) -> float:
    """F1 over all decisions; 0 where there is no label on either side."""
    same, total = _counts(items)
    return float(same.sum() / total.sum()) if total.sum() else 0.0


def macro_f1(items: np.ndarray) -> float:
    """Mean F1 over the labels that occur in gold or predictions."""
    same, total = _counts(items)
    return float(np.mean(same[total > 0] / total[total > 0])) if total.any() else 0.0


METRICS: Mapping[str, Metric] = {"micro_f1": micro_f1, "macro_f1": macro_f1}


@dataclass(frozen=True, kw_only=True)
class MultiLabel(RowTexts):
    """One or two text columns, and the labels: a column that lists them, or one column of 0 and 1 for each label.

    Args:
        label: candidate columns of lists; the first that the data has is used.
        labels: class names in the order of the logits.
        primary: the main metric.
    """

    label: tuple[str, ...]
    labels: tuple[str, ...]
    primary: str = "micro_f1"
    head: str = "sequence-classification"
    metrics: Mapping[str, Metric] = field(default_factory=lambda: METRICS)

    def gold(self, rows: Sequence[Row], *, where: str) -> list[list[int]]:
        """Indices of the labels of each row, in order."""
        if self.labels and rows and all(name in rows[0] for name in self.labels):
            return [
                [index for index, name in enumerate(self.labels) if self._flag(row, name, place_of(row, name, i, where=where))]
                for i, row in enumerate(rows)
            ]
        column = first_column(rows, self.label, where=where)
        gold = []
        for i, row in enumerate(rows):
            place = place_of(row, column, i, where=where)
            gold.append(sorted({self._index(name, place) for name in self._names(row[column], place)}))
        return gold

    def labels_in(self, rows: Sequence[Row], *, where: str) -> tuple[str, ...]:
        """The labels that occur, in order."""
        column = first_column(rows, self.label, where=where)
        names = (self._names(row[column], place_of(row, column, i, where=where)) for i, row in enumerate(rows))
        return tuple(sorted({str(name) for own in names for name in own}))

    def targets(self, encoded: EncodedTexts, gold: Sequence[Sequence[int]]) -> list[dict[str, Any]]:
        return [{"labels": [float(index in own) for index in range(len(self.labels))]} for own in gold]

    def items(self, outputs: Outputs, encoded: EncodedTexts, gold: Sequence[Sequence[int]]) -> np.ndarray:
        """[items, 2 · labels]: 1 for each predicted label, then for each right label."""
        judged = self.judged(outputs, encoded, gold)
        return np.concatenate([judged.predictions, judged.references], axis=1)

    def judged(self, outputs: Outputs, encoded: EncodedTexts, gold: Sequence[Sequence[int]]) -> Judged:
        """[items, labels] 1 for each predicted label, and for each right label."""
        predicted = self._decided(outputs)
        right = np.zeros_like(predicted)
        for row, own in enumerate(gold):
            right[row, list(own)] = 1
        return Judged(predicted, right, sigmoid(outputs["logits"]))

    def chance(self, items: np.ndarray) -> Mapping[str, float]:
        """Of no label for any text, and of all labels for every text."""
        right = np.split(items, 2, axis=1)[1]
        constant = [np.concatenate([np.full_like(right, value), right], axis=1) for value in (0, 1)]
        return {name: max(metric(each) for each in constant) for name, metric in self.metrics.items()}

    def expected(self, gold: Sequence[int]) -> str:
        return ", ".join(self.labels[index] for index in gold) or "(no label)"

    def fidelity(self, ours: Outputs, reference: Outputs, encoded: EncodedTexts) -> Fidelity:
        """Agreement is the share of texts with the same labels."""
        after, before = ([self.expected(np.flatnonzero(row).tolist()) for row in self._decided(o)] for o in (ours, reference))
        changed = [(i, b, a) for i, (a, b) in enumerate(zip(after, before, strict=True)) if a != b]
        agreement = 1 - len(changed) / max(len(after), 1)
        return Fidelity("agreement", agreement, output_error(ours, reference), tuple(changed), share_of_most_frequent(before))

    def divergence(self, ours: Outputs, reference: Outputs) -> float:
        """Of one binary distribution for each label, which are independent."""
        # A binary distribution is a softmax over the logit and 0.
        both = (np.stack([outputs["logits"], np.zeros_like(outputs["logits"])], axis=-1) for outputs in (ours, reference))
        after, before = map(log_probabilities, both)
        return float((np.exp(before) * (before - after)).sum(axis=(-1, -2)).mean())

    def answer(self, outputs: Outputs, encoded: EncodedTexts, index: int, given: Any) -> dict[str, Any]:
        """The labels that are given, and the probability of every label."""
        likely = dict(zip(self.labels, self._likely(outputs)[index].tolist(), strict=True))
        return {"labels": [name for name, share in likely.items() if share >= THRESHOLD], "scores": likely}

    def _likely(self, outputs: Outputs) -> np.ndarray:
        logits = outputs["logits"]
        if logits.shape[-1] != len(self.labels):
            raise DataError(
                "the model has another number of logits than labels",
                where="task.labels",
                got=f"{logits.shape[-1]} logits",
                expected=f"{len(self.labels)} ({', '.join(self.labels)})",
                fix="name one label for each logit, in their order",
            )
        return sigmoid(logits)

    def _decided(self, outputs: Outputs) -> np.ndarray:
        return (self._likely(outputs) >= THRESHOLD).astype(np.float64)

    def _names(self, value: Any, place: str) -> list[Any]:
        """What a cell lists: names or indices; or from a text, the names between commas."""
        if isinstance(value, str):
            return [name.strip() for name in value.split(",") if name.strip()]
        if not isinstance(value, (list, tuple, np.ndarray)):
            raise DataError("the cell is not a list of labels", where=place, got=repr(value)[:100])
        cells = list(value)
        flags = len(cells) == len(self.labels) and set(cells) <= {0, 1}
        if not flags:
            return cells
        if all(isinstance(cell, (int, np.integer)) and not isinstance(cell, bool) for cell in cells) and len(set(cells)) == len(
            cells
        ):
            what = "the cell can be read as indices of labels and as one 0 or 1 for each label"
            raise DataError(what, where=place, got=repr(cells), fix="write names")
        return [index for index, cell in enumerate(cells) if cell]

    def _index(self, name: Any, place: str) -> int:
        if str(name) in self.labels:
            return self.labels.index(str(name))
        if str(name).isdigit() and int(name) < len(self.labels):
            return int(name)
        raise DataError("the task has no such label", where=place, got=repr(name), expected=", ".join(self.labels))

    def _flag(self, row: Row, name: str, place: str) -> bool:
        value = str(row[name]).strip().lower()
        if value not in ("0", "1", "0.0", "1.0", "true", "false"):
            raise DataError("the cell is not 0 or 1", where=place, got=repr(row[name])[:100])
        return value in ("1", "1.0", "true")
