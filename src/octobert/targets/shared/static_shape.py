"""Sessions of models with a static shape: batches are padded to the shape, and the padding is cut off the outputs.

A file of another tool may have one free axis: then the other one is padded.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from octobert.core.errors import TargetError
from octobert.core.session import Feeds, Session
from octobert.models.heads import HEADS

# Two-dimensional outputs with one value per token. Outputs with three dimensions always have one vector per token.
_PER_TOKEN = {name for head in HEADS.values() if head.shape == "tokens" for name in head.outputs}


class SessionWithShape(Session, Protocol):
    """A session that knows the shape of the model's inputs."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape, [batch, sequence]; -1 for a free axis."""
        ...


class StaticShapeSession:
    """A session that runs batches of any size on a model of one static shape.

    Args:
        session: a session of the model. Its token ids have its `shape`, and so have its other inputs.
    """

    def __init__(self, session: SessionWithShape) -> None:
        self._session = session
        self._batch, self._sequence = session.shape
        self.outputs, self.precision = session.outputs, session.precision
        self.threads, self.streams, self.prepares_shapes = session.threads, session.streams, False

    @property
    def device(self) -> str | None:
        """What really runs the model, where the user chose the device."""
        return self._session.device

    def run(self, feeds: Feeds) -> dict[str, np.ndarray]:
        """Return the outputs of one batch by name.

        Raises:
            TargetError: a row is longer than the static shape.
        """
        rows, length = feeds["input_ids"].shape
        if length > self._sequence >= 0:
            raise TargetError(
                "a row is longer than the model's static shape",
                got=f"{length} tokens",
                expected=f"at most {self._sequence}",
                fix="shorten the row, or make the model with a longer shape.sequence",
            )
        # Zeros in the mask hide the padding tokens, whatever the id 0 means. Padding rows attend to their first token.
        batch = self._batch if self._batch > 0 else rows
        more = max(0, self._sequence - length)
        padded = {n: np.pad(a, ((0, -rows % batch), (0, more))) for n, a in feeds.items()}
        padded["attention_mask"][rows:, 0] = 1
        starts = range(0, rows, batch)
        runs = [
            self._session.run({n: a[start : start + batch] for n, a in padded.items()})
            for start in starts
        ]
        return {
            name: _without_padding([run[name] for run in runs], name, rows, length)
            for name in self.outputs
        }


def static_if_fixed(session: SessionWithShape) -> Session:
    """Return a `StaticShapeSession`, or the session itself if both axes are free, as in float graphs."""
    return session if tuple(session.shape) == (-1, -1) else StaticShapeSession(session)


def _without_padding(parts: list[np.ndarray], name: str, rows: int, length: int) -> np.ndarray:
    array = np.concatenate(parts)[:rows]
    return array[:, :length] if array.ndim > 2 or name in _PER_TOKEN else array
