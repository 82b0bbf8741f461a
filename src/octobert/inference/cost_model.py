"""The time that one inference takes on this machine, by its number of rows and its padded length.

A cost model is measured once for a model, a machine and a setting, in about a second. It is then stored in the user's cache
folder. Batching uses it to decide which rows run together.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from octobert.core.environment import cache_folder
from octobert.core.files import atomic_write, canonical_digest
from octobert.core.frozen import FrozenModel
from octobert.core.session import Feeds, Session
from octobert.inference.tuned_file import machine_id

# Shapes that are timed, as (rows, tokens of a row): small ones for the constant cost of an inference, then full ones.
_WIDTH = 64
_CURVE = ((1, 8), (1, 32), (1, _WIDTH), (4, _WIDTH), (16, _WIDTH))
# One long row, for the time of attention.
_LONG = 384
_REPEATS, _SECONDS = 3, 2.0


class CostModel(FrozenModel):
    """The time of one inference, as a function of its shape.

    Args:
        tokens: tokens of an inference (rows times padded length), ascending.
        ms: milliseconds at each of these; interpolated linearly in between, extrapolated beyond the last.
        square_ms: milliseconds for each row, times its length squared: the part of attention that linear layers lack.
        new_shape_ms: extra milliseconds of the first inference with a shape.
    """

    tokens: tuple[int, ...]
    ms: tuple[float, ...]
    square_ms: float
    new_shape_ms: float = 0.0

    def batch_ms(self, rows: np.ndarray, length: int) -> np.ndarray:
        """Return the milliseconds of batches with these numbers of rows, all padded to one length.

        Args:
            rows: [N] numbers of rows.
            length: tokens of each row.

        Example:
            >>> cost = CostModel(tokens=(0, 100), ms=(5.0, 15.0), square_ms=0.0)
            >>> cost.batch_ms(np.array([1, 2]), 50).tolist()
            [10.0, 15.0]
        """
        tokens, ms = np.array(self.tokens, dtype=float), np.array(self.ms)
        total = rows * float(length)
        beyond = np.maximum(total - tokens[-1], 0.0) * (ms[-1] - ms[-2]) / (tokens[-1] - tokens[-2])
        batch_ms: np.ndarray = np.interp(total, tokens, ms) + beyond + self.square_ms * rows * float(length) ** 2
        return batch_ms


def default_cost_model(session: Session) -> CostModel:
    """Return a cost model for a session that was not measured.

    Its unit is not a millisecond but the cost of a token: an inference costs 16 on top of its tokens, and attention costs as
    much as the linear layers at a length of 4,096.
    """
    new_shape_ms = 64.0 if session.prepares_shapes else 0.0
    return CostModel(tokens=(0, 1024), ms=(16.0, 1040.0), square_ms=1 / 4096, new_shape_ms=new_shape_ms)


def measure_cost_model(session: Session, max_length: int) -> CostModel:
    """Time a session on a few shapes, for about a second.

    Args:
        max_length: most tokens that a row may have.
    """
    first_extra: list[float] = []

    def ms(rows: int, length: int) -> float:
        ids = np.zeros((rows, length), dtype=np.int64)
        feeds: Feeds = {"input_ids": ids, "attention_mask": ids + 1, "token_type_ids": ids}
        times = []
        for _ in range(1 + _REPEATS):
            started = time.perf_counter()
            session.run(feeds)
            times.append(1e3 * (time.perf_counter() - started))
        first_extra.append(times[0] - min(times[1:]))
        return min(times[1:])

    started = time.perf_counter()
    total_ms: dict[int, float] = {}
    squares: dict[int, int] = {}
    for rows, width in _CURVE:
        length = min(width, max_length)
        if rows * length in total_ms:
            continue
        total_ms[rows * length], squares[rows * length] = ms(rows, length), rows * length**2
        if time.perf_counter() - started > _SECONDS and len(total_ms) > 1:
            break
    tokens = sorted(total_ms)
    long, square = min(_LONG, max_length), 0.0
    if tokens[-1] > long > _WIDTH:
        # A long row takes more time than short rows with as many tokens; the difference is attention.
        apart = long**2 - np.interp(long, tokens, [squares[n] for n in tokens])
        square = max(0.0, (ms(1, long) - float(np.interp(long, tokens, [total_ms[n] for n in tokens]))) / apart)
    curve = np.maximum.accumulate([max(total_ms[n] - square * squares[n], 0.0) for n in tokens])
    # The very first inference also reads the weights, so it does not count.
    new_shape = max(0.0, statistics.median(first_extra[1:])) if session.prepares_shapes else 0.0
    return CostModel(
        tokens=tuple(tokens), ms=tuple(float(t) for t in curve), square_ms=float(square), new_shape_ms=float(new_shape)
    )


def read_cost_model(identity: Sequence[Any], session: Session) -> CostModel | None:
    """Read the cost model of a model. None if it was not measured with these streams and threads on this machine.

    Args:
        identity: what the model is, as plain data.
    """
    return _read(_path(identity, session))


def read_or_measure_cost_model(identity: Sequence[Any], session: Session, max_length: int) -> CostModel:
    """Read the cost model of a model, or measure it and store it.

    Args:
        identity: what the model is, as plain data.
        max_length: most tokens that a row may have.
    """
    path = _path(identity, session)
    cost = _read(path)
    if cost is None:
        cost = measure_cost_model(session, max_length)
        # Without a writable cache folder, the model is measured again next time.
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            with atomic_write(path) as partial:
                partial.write_text(cost.model_dump_json(), encoding="utf-8")
    return cost


def _read(path: Path) -> CostModel | None:
    try:
        return CostModel.model_validate_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _path(identity: Sequence[Any], session: Session) -> Path:
    depends_on = [*identity, machine_id(), session.streams, session.threads]
    return cache_folder() / f"cost-{canonical_digest(depends_on)[:16]}.json"
