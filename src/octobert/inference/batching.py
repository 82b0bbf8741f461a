"""Rows through a session: which rows run together, and outputs in the order of the rows.

A run costs what its tokens cost, padding included, and something of its own: weights are read once for all its rows. Which
rows share a run is therefore decided by a cost model of the machine: rows are sorted by length, and of all ways to cut the
sorted list into runs the cheapest is taken. Runtimes that make kernels for every shape take longer on one that they have not
seen; with them fewer shapes are used, and those that were used are preferred.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np

from octobert.core.frozen import FrozenModel
from octobert.core.session import Feeds, Session
from octobert.data.tokenization import Encoded, feeds_of
from octobert.inference.settings import TOKENS

ROWS_PER_BATCH = 64
_COUNTS = np.arange(1, ROWS_PER_BATCH + 1)
# Where shapes are dear: any number of rows is made of these, and lengths are multiples of that where it pays.
_SHARED_COUNTS = np.array([1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, ROWS_PER_BATCH])
_STEP = 8
# Shapes that are timed: short runs for what a run costs whatever is in it, full ones, and a long row for attention.
_WIDTH = 64
_CURVE = ((1, 8), (1, 32), (1, _WIDTH), (4, _WIDTH), (16, _WIDTH))
_LONG = 384
_REPEATS, _SECONDS = 3, 2.0


class Cost(FrozenModel):
    """What a run takes.

    Args:
        tokens: of a whole run, ascending.
        ms: time at each; straight lines between them, and on beyond the last.
        square_ms: more for each row, times its length squared: what attention takes beyond the linear layers.
        new_shape_ms: more for the first run of a shape.
    """

    tokens: tuple[int, ...]
    ms: tuple[float, ...]
    square_ms: float
    new_shape_ms: float = 0.0

    def of(self, rows: np.ndarray, length: int) -> np.ndarray:
        """Milliseconds of runs of so many rows of one length."""
        tokens, ms = np.array(self.tokens, dtype=float), np.array(self.ms)
        total = rows * float(length)
        beyond = np.maximum(total - tokens[-1], 0.0) * (ms[-1] - ms[-2]) / (tokens[-1] - tokens[-2])
        return np.interp(total, tokens, ms) + beyond + self.square_ms * rows * float(length) ** 2


@dataclass(frozen=True)
class Run:
    """What runs together.

    Args:
        rows: their indices.
        length: to which they are padded.
    """

    rows: list[int]
    length: int

    @property
    def shape(self) -> tuple[int, int]:
        """[B, S] of its feeds."""
        return len(self.rows), self.length

    def feeds(self, rows: Sequence[Encoded], pad_id: int) -> Feeds:
        """What the model is given.

        Args:
            rows: all of them, of which these are some.
        """
        return feeds_of([rows[index] for index in self.rows], pad_id, self.length)


def assumed_cost(session: Session) -> Cost:
    """What runs cost on no machine in particular, in tokens: a run 16 more, attention as much as the linear layers at 4,096."""
    return Cost(tokens=(0, 1024), ms=(16.0, 1040.0), square_ms=1 / 4096, new_shape_ms=64.0 if session.prepares_shapes else 0.0)


def measure_cost(session: Session, longest: int) -> Cost:
    """Time a session on a few shapes, for about a second.

    Args:
        longest: row that the model takes.
    """

    def ms(rows: int, length: int) -> float:
        ids = np.zeros((rows, length), dtype=np.int64)
        feeds: Feeds = {"input_ids": ids, "attention_mask": ids + 1, "token_type_ids": ids}
        times = []
        for _ in range(1 + _REPEATS):
            started = time.perf_counter()
            session.run(feeds)
            times.append(1e3 * (time.perf_counter() - started))
        first.append(times[0] - min(times[1:]))
        return min(times[1:])

    first: list[float] = []
    started, found, squares = time.perf_counter(), {}, {}
    for rows, length in _CURVE:
        length = min(length, longest)
        if rows * length in found:
            continue
        found[rows * length], squares[rows * length] = ms(rows, length), rows * length**2
        if time.perf_counter() - started > _SECONDS and len(found) > 1:
            break
    tokens = sorted(found)
    times = [found[n] for n in tokens]
    long, square = min(_LONG, longest), 0.0
    if tokens[-1] > long > _WIDTH:
        # One row of that many tokens takes longer than several short ones, by what attention takes.
        apart = long**2 - np.interp(long, tokens, [squares[n] for n in tokens])
        square = max(0.0, (ms(1, long) - float(np.interp(long, tokens, times))) / apart)
    curve = np.maximum.accumulate([max(found[n] - square * squares[n], 0.0) for n in tokens])
    # The very first run brings in the weights too.
    new_shape = max(0.0, statistics.median(first[1:])) if session.prepares_shapes else 0.0
    return Cost(tokens=tuple(tokens), ms=tuple(float(t) for t in curve), square_ms=float(square), new_shape_ms=float(new_shape))


def runs_of(
    lengths: Sequence[int],
    cost: Cost,
    *,
    longest: int,
    parts: int = 1,
    tokens: int = TOKENS,
    seen: Collection[tuple[int, int]] = (),
) -> list[Run]:
    """The cheapest runs that the list of rows, sorted by length, can be cut into; longest first.

    Args:
        longest: row that the model takes.
        parts: runs that go on at the same time; none takes more than its share of all tokens.
        tokens: the most of a run, padding included, unless one row alone has more.
        seen: shapes that have been run before.
    """
    order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    most = min(tokens, -(-sum(lengths) // parts))
    best = np.full(len(order) + 1, np.inf)
    best[0] = 0.0
    came_from = np.zeros((len(order) + 1, 2), dtype=np.int64)
    for start, index in enumerate(order):
        exact = max(lengths[index], 1)
        counts = _SHARED_COUNTS if cost.new_shape_ms else _COUNTS
        counts = counts[counts <= max(1, min(most // exact, len(order) - start))]
        for length in {exact, max(exact, min(-(-exact // _STEP) * _STEP, longest))} if cost.new_shape_ms else {exact}:
            reached = best[start] + cost.of(counts, length)
            if cost.new_shape_ms:
                # A new shape that other lengths will share is half as dear.
                new = cost.new_shape_ms / (2 if length % _STEP == 0 else 1)
                reached += [0.0 if (int(n), length) in seen else new for n in counts]
            ends = start + counts
            better = reached < best[ends]
            best[ends[better]], came_from[ends[better]] = reached[better], (start, length)
    found, end = [], len(order)
    while end:
        start, length = (int(n) for n in came_from[end])
        found.append(Run(order[start:end], length))
        end = start
    return found[::-1]


class Outputs:
    """Outputs of rows, put in run by run.

    Args:
        per_token: outputs have one entry a token; those of padding are left out.
    """

    def __init__(self, names: Sequence[str], rows: Sequence[Encoded], *, per_token: bool) -> None:
        self._rows, self._per_token = rows, per_token
        self._slots: dict[str, list[np.ndarray]] = {name: [np.zeros(0)] * len(rows) for name in names}

    def put(self, run: Run, result: dict[str, np.ndarray]) -> None:
        """What a run gave."""
        for name, array in result.items():
            for position, index in enumerate(run.rows):
                own = array[position]
                # A copy, or the whole batch with its padding would stay in memory.
                self._slots[name][index] = own[: len(self._rows[index])].copy() if self._per_token else own

    def joined(self) -> dict[str, np.ndarray]:
        """[rows, …], or [tokens of all rows, …]."""
        join = np.concatenate if self._per_token else np.stack
        return {name: join(slots) if slots else np.zeros((0,)) for name, slots in self._slots.items()}


def run_rows(
    session: Session,
    rows: Sequence[Encoded],
    pad_id: int,
    on_done: Callable[[int], None] | None = None,
    *,
    per_token: bool = False,
    cost: Cost | None = None,
) -> dict[str, np.ndarray]:
    """Outputs of all rows in their order: [rows, …].

    Args:
        on_done: called with the number of rows done after each run.
        per_token: the outputs have one entry a token; those of padding are left out: [tokens of all rows, …].
        cost: by which rows are put together; None assumes one.
    """
    collected, done = Outputs(session.outputs, rows, per_token=per_token), 0
    lengths = [len(row) for row in rows]
    for run in runs_of(lengths, cost or assumed_cost(session), longest=max(lengths, default=0)):
        collected.put(run, session.run(run.feeds(rows, pad_id)))
        done += len(run.rows)
        if on_done:
            on_done(done)
    return collected.joined()
