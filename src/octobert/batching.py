"""Rows through a session: which rows run together, and outputs in the order of the rows.

A run costs what its tokens cost, padding included, and something of its own: weights are read once for all its rows. Which
rows share a run is therefore decided by a cost model of the machine: rows are sorted by length, and of all ways to cut the
sorted list into runs the cheapest is taken.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence

import numpy as np

from octobert.plan import Noun
from octobert.session import Feeds, Session
from octobert.texts import Encoded, feeds_of

# Beyond this activations leave the caches of any CPU, and memory grows.
TOKENS_PER_BATCH = 2048
ROWS_PER_BATCH = 64
# Shapes that are timed: short runs for what a run costs whatever is in it, full ones, and a long row for attention.
_WIDTH = 64
_CURVE = ((1, 8), (1, 32), (1, _WIDTH), (4, _WIDTH), (16, _WIDTH))
_LONG = 384
_REPEATS, _SECONDS = 3, 2.0


class Cost(Noun):
    """What a run takes.

    Args:
        tokens: of a whole run, ascending.
        ms: time at each; straight lines between them, and on beyond the last.
        square_ms: more for each row, times its length squared: what attention takes beyond the linear layers.
    """

    tokens: tuple[int, ...]
    ms: tuple[float, ...]
    square_ms: float

    def of(self, rows: np.ndarray, length: int) -> np.ndarray:
        """Milliseconds of runs of so many rows of one length."""
        tokens, ms = np.array(self.tokens, dtype=float), np.array(self.ms)
        total = rows * float(length)
        beyond = np.maximum(total - tokens[-1], 0.0) * (ms[-1] - ms[-2]) / (tokens[-1] - tokens[-2])
        return np.interp(total, tokens, ms) + beyond + self.square_ms * rows * float(length) ** 2


# Of no machine: a run costs as much as 16 tokens more, and attention as much as the linear layers at 4,096 tokens.
ASSUMED = Cost(tokens=(0, 1024), ms=(16.0, 1040.0), square_ms=1 / 4096)


def measure_cost(session: Session, longest: int) -> Cost:
    """Time a session on a few shapes, for about a second.

    Args:
        longest: row that the model takes.
    """

    def ms(rows: int, length: int) -> float:
        ids = np.zeros((rows, length), dtype=np.int64)
        feeds: Feeds = {"input_ids": ids, "attention_mask": ids + 1, "token_type_ids": ids}
        session.run(feeds)
        times = []
        for _ in range(_REPEATS):
            started = time.perf_counter()
            session.run(feeds)
            times.append(1e3 * (time.perf_counter() - started))
        return min(times)

    started, found, squares = time.perf_counter(), {}, {}
    for rows, length in _CURVE:
        length = min(length, longest)
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
    return Cost(tokens=tuple(tokens), ms=tuple(float(t) for t in curve), square_ms=float(square))


def groups(lengths: Sequence[int], cost: Cost, parts: int = 1) -> list[list[int]]:
    """Indices of rows by run, longest first: the cheapest way to cut the list of rows sorted by length.

    Args:
        parts: runs that go on at the same time; none takes more than its share of all tokens.
    """
    order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    most = min(TOKENS_PER_BATCH, -(-sum(lengths) // parts))
    best = np.full(len(order) + 1, np.inf)
    best[0] = 0.0
    came_from = np.zeros(len(order) + 1, dtype=np.int64)
    counts = np.arange(1, ROWS_PER_BATCH + 1)
    for start, index in enumerate(order):
        length = max(lengths[index], 1)
        rows = counts[: max(1, min(most // length, ROWS_PER_BATCH, len(order) - start))]
        reached, ends = best[start] + cost.of(rows, length), start + rows
        better = reached < best[ends]
        best[ends[better]], came_from[ends[better]] = reached[better], start
    cuts = [len(order)]
    while cuts[-1]:
        cuts.append(int(came_from[cuts[-1]]))
    return [order[start:end] for start, end in itertools.pairwise(reversed(cuts))]


class Outputs:
    """Outputs of rows, put in run by run.

    Args:
        per_token: outputs have one entry a token; those of padding are left out.
    """

    def __init__(self, names: Sequence[str], rows: Sequence[Encoded], *, per_token: bool) -> None:
        self._rows, self._per_token = rows, per_token
        self._slots: dict[str, list[np.ndarray]] = {name: [np.zeros(0)] * len(rows) for name in names}

    def put(self, group: Sequence[int], result: dict[str, np.ndarray]) -> None:
        """What a run of these rows gave."""
        for name, array in result.items():
            for position, index in enumerate(group):
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
    cost: Cost = ASSUMED,
) -> dict[str, np.ndarray]:
    """Outputs of all rows in their order: [rows, …].

    Args:
        on_done: called with the number of rows done after each run.
        per_token: the outputs have one entry a token; those of padding are left out: [tokens of all rows, …].
        cost: by which rows are put together.
    """
    collected, done = Outputs(session.outputs, rows, per_token=per_token), 0
    for group in groups([len(row) for row in rows], cost):
        collected.put(group, session.run(feeds_of([rows[i] for i in group], pad_id)))
        done += len(group)
        if on_done:
            on_done(done)
    return collected.joined()
