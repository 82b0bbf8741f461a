"""A session of a model made for one shape: rows are cut into runs of it, filled up, and the filling is cut off again."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from octobert.core.errors import TargetError
from octobert.core.session import Feeds, Session

# Outputs with one value a token; those of three axes have several.
_PER_TOKEN = ("start_logits", "end_logits")


class Shaped(Session, Protocol):
    """A session that says the shape of the model's first input, with -1 for a free axis."""

    @property
    def shape(self) -> tuple[int, ...]: ...


class FixedSession:
    """A session behind which every run has the same shape.

    Args:
        session: of a model whose inputs all have its `shape`, [batch, sequence].
    """

    def __init__(self, session: Shaped) -> None:
        self._session = session
        self._batch, self._sequence = session.shape
        self.outputs, self.precision = session.outputs, session.precision
        self.threads, self.streams, self.prepares_shapes = session.threads, session.streams, False

    def run(self, feeds: Feeds) -> dict[str, np.ndarray]:
        rows, length = feeds["input_ids"].shape
        if length > self._sequence:
            raise TargetError(
                "a row is longer than what the model was made for",
                got=f"{length} tokens",
                expected=f"at most {self._sequence}",
                fix="shorten it, or make the model with a longer shape.sequence",
            )
        # Zeros in the mask hide the added tokens, whatever the id 0 stands for; added rows keep one token.
        padded = {n: np.pad(a, ((0, -rows % self._batch), (0, self._sequence - length))) for n, a in feeds.items()}
        padded["attention_mask"][rows:, 0] = 1
        starts = range(0, rows, self._batch)
        runs = [self._session.run({n: a[start : start + self._batch] for n, a in padded.items()}) for start in starts]
        return {name: _whole([run[name] for run in runs], name, rows, length) for name in self.outputs}


def _whole(parts: list[np.ndarray], name: str, rows: int, length: int) -> np.ndarray:
    array = np.concatenate(parts)[:rows]
    return array[:, :length] if array.ndim > 2 or name in _PER_TOKEN else array
