"""One logit is a score: similarity of pairs, relevance of a document to a query, or any number that a text has."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from octobert.core.errors import DataError
from octobert.core.results import Stated
from octobert.data.rows import Row
from octobert.data.tokenization import EncodedTexts
from octobert.tasks._common import first_column, moved, number_of, output_error, pearson, place_of, sigmoid, spearman
from octobert.tasks._task import Fidelity, Judged, Metric, Outputs
from octobert.tasks._texts import RowTexts

METRICS: Mapping[str, Metric] = {"spearman": spearman, "pearson": pearson}


def _unchanged(logits: np.ndarray) -> np.ndarray:
    return logits.astype(np.float64)


_ACTIVATIONS: Mapping[str, Callable[[np.ndarray], np.ndarray]] = {"Identity": _unchanged, "Sigmoid": sigmoid, "Tanh": np.tanh}


def activation_of(stated: Stated) -> str:
    """What makes a score from the logit, as torch.nn names it.

    The model's own statement comes first. Otherwise it is the sigmoid, as CrossEncoder and the pipelines of transformers have
    it, or nothing for a model that was trained as a regression.

    Raises:
        DataError: the model states a function that is not supported.
    """
    if stated.activation is None:
        return "Identity" if stated.problem == "regression" else "Sigmoid"
    module, _, name = stated.activation.rpartition(".")
    if not f"{module}.".startswith("torch.") or name not in _ACTIVATIONS:
        expected = ", ".join(f"torch.nn.{known}" for known in _ACTIVATIONS)
        raise DataError(
            "the model makes its score in a way that is not supported",
            where="config.json, activation_fn",
            got=stated.activation,
            expected=expected,
        )
    return name


@dataclass(frozen=True, kw_only=True)
class Scores(RowTexts):
    """One or two text columns, one column of gold scores.

    Args:
        score: candidate gold columns; the first that the data has is used.
        activation: `Identity`, `Sigmoid` or `Tanh`.
        primary: the main metric.
    """

    score: tuple[str, ...]
    activation: str
    primary: str = "spearman"
    head: str = "sequence-classification"
    labels: tuple[str, ...] = ("score",)
    metrics: Mapping[str, Metric] = field(default_factory=lambda: METRICS)

    def gold(self, rows: Sequence[Row], *, where: str) -> list[float]:
        column = first_column(rows, self.score, where=where)
        return [number_of(row[column], place_of(row, column, i, where=where)) for i, row in enumerate(rows)]

    def labels_in(self, rows: Sequence[Row], *, where: str) -> tuple[str, ...]:
        """One: a head with one logit."""
        return ("score",)

    def targets(self, encoded: EncodedTexts, gold: Sequence[float]) -> list[dict[str, Any]]:
        return [{"labels": float(score)} for score in gold]

    def items(self, outputs: Outputs, encoded: EncodedTexts, gold: Sequence[float]) -> np.ndarray:
        """[items, 2]: score, right score."""
        judged = self.judged(outputs, encoded, gold)
        return np.stack([judged.predictions, judged.references], axis=1)

    def judged(self, outputs: Outputs, encoded: EncodedTexts, gold: Sequence[float]) -> Judged:
        """Scores."""
        return Judged(self._scores(outputs), np.asarray(gold, dtype=np.float64))

    def chance(self, items: np.ndarray) -> Mapping[str, float]:
        return dict.fromkeys(self.metrics, 0.0)

    def expected(self, gold: float) -> str:
        return f"{gold:g}"

    def fidelity(self, ours: Outputs, reference: Outputs, encoded: EncodedTexts) -> Fidelity:
        """Scores that changed clearly count as changed, see `moved`."""
        after, before = self._scores(ours), self._scores(reference)
        correlation = pearson(np.stack([after, before], axis=1))
        agreement = correlation if np.isfinite(correlation) else float(np.array_equal(after, before))
        changed = tuple((i, f"{before[i]:.4g}", f"{after[i]:.4g}") for i in moved(after, before))
        return Fidelity("correlation of scores", agreement, output_error(ours, reference), changed)

    def answer(self, outputs: Outputs, encoded: EncodedTexts, index: int, given: Any) -> dict[str, Any]:
        return {"score": float(self._scores({"logits": outputs["logits"][index : index + 1]})[0])}

    def _scores(self, outputs: Outputs) -> np.ndarray:
        """[items] scores of outputs [items, 1]."""
        logits = outputs["logits"]
        if logits.shape[-1] != 1:
            raise DataError(
                "a score is made from one logit",
                where="task",
                got=f"a model with {logits.shape[-1]} logits",
                fix="leave out problem: regression",
            )
        return _ACTIVATIONS[self.activation](logits[..., 0])
