"""Models with one logit, which is a score: of a text, of a pair of texts, or of a document for a query."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from octobert.core.errors import DataError
from octobert.core.results import ModelMetadata
from octobert.tasks._metrics import output_error, pearson, sigmoid
from octobert.tasks._rows import Table
from octobert.tasks._task import Change, Fidelity, Result, UserAnswer, once
from octobert.tasks._texts import RowTexts

_ACTIVATIONS: Mapping[str, Callable[[np.ndarray], np.ndarray]] = {
    "Identity": lambda logits: logits.astype(np.float64),
    "Sigmoid": sigmoid,
    "Tanh": np.tanh,
}


def activation_of(metadata: ModelMetadata) -> str:
    """The function that makes a score from the logit, as torch.nn names it.

    The model's own statement comes first. Otherwise it is the sigmoid, as CrossEncoder and the pipelines of transformers have
    it, or nothing for a model that was trained as a regression.

    Raises:
        DataError: the model states a function that is not supported.
    """
    if metadata.activation is None:
        return "Identity" if metadata.problem == "regression" else "Sigmoid"
    module, _, name = metadata.activation.rpartition(".")
    if not f"{module}.".startswith("torch.") or name not in _ACTIVATIONS:
        raise DataError(
            "the model makes its score in a way that is not supported",
            where="config.json, activation_fn",
            got=metadata.activation,
            expected=", ".join(f"torch.nn.{activation}" for activation in _ACTIVATIONS),
        )
    return name


@dataclass(frozen=True, kw_only=True)
class OneScore(RowTexts):
    """One logit is a score.

    Args:
        activation: `Identity`, `Sigmoid` or `Tanh`.
    """

    activation: str

    def read_labels(self, table: Table) -> tuple[str, ...]:
        """One: a head with one logit."""
        return ("score",)

    @once
    def scores(self, result: Result) -> np.ndarray:
        """[texts] the scores.

        Raises:
            DataError: there are more logits.
        """
        logits = result.logits
        if logits.shape[-1] != 1:
            raise DataError(
                "a score is made from one logit",
                where="task",
                got=f"a model with {logits.shape[-1]} logits",
                fix="leave out problem: regression",
            )
        return _ACTIVATIONS[self.activation](logits[..., 0])

    def fidelity(self, ours: Result, reference: Result) -> Fidelity:
        """The correlation of scores; where they are constant, 1 if they are the same."""
        after, before = self.scores(ours), self.scores(reference)
        correlation = pearson(np.stack([after, before], axis=1))
        if not np.isfinite(correlation):
            correlation = float(np.array_equal(after, before))
        error = output_error(ours.outputs, reference.outputs)
        changed = tuple(self.changes(ours, reference))
        return Fidelity("correlation of scores", correlation, error, changed, kind="correlation")

    @abstractmethod
    def changes(self, ours: Result, reference: Result) -> Iterator[Change]:
        """Yield what changed of the items, see `Fidelity`."""

    def answer(self, result: Result, index: int, user_input: Any) -> UserAnswer:
        return {"score": float(self.scores(result)[index])}

    def line(self, answer: Mapping[str, Any]) -> str:
        return f"{answer['score']:.4f}"
