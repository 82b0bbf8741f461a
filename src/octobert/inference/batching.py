"""Rows of different lengths through a session: which rows form a batch, and outputs in the order of the rows.

The time of a batch grows with its tokens, padding included, and has a constant part, because weights are read once for all its
rows. Rows are sorted by length, and of all ways to cut the sorted list into batches the cheapest by the cost model is taken.
Where the measured times have steps, a batch, or a single row, is padded to the end of its step if that is faster beyond noise.
Some runtimes compile kernels for each new shape, and keep them. With them fewer shapes are used, so that time and memory stay
bounded, and shapes that were used before are preferred.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from octobert.core.errors import DataError
from octobert.core.session import MAX_RUN_TOKENS, Feeds, Session
from octobert.data.encoded import Encoded, FeedRow, feeds_of
from octobert.inference.cost_model import BLOCK, CostModel, default_cost_model

MAX_ROWS = 64
# Most numbers of one output of a batch: 128 MiB of float32. Only outputs over a vocabulary come near.
MAX_NUMBERS = 2**25
_COUNTS = np.arange(1, MAX_ROWS + 1)
# Where a new shape is slow, batches have one of these numbers of rows, lengths are `shared_length`s, and are rounded up to a
# multiple of 8 if it pays.
_SHARED_COUNTS = np.array([1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, MAX_ROWS])
_LENGTH_MULTIPLE = 8


@dataclass(frozen=True)
class Batch:
    """Rows that run together.

    Args:
        rows: indices of the rows.
        length: tokens to which each row is padded.
    """

    rows: list[int]
    length: int

    @property
    def shape(self) -> tuple[int, int]:
        """[B, S] of the feeds."""
        return len(self.rows), self.length

    def feeds(self, rows: Sequence[Encoded], pad_id: int) -> Feeds:
        """Return the inputs of the model, [B, S] each.

        Args:
            rows: all rows, of which this batch holds some.
        """
        return feeds_of([rows[index] for index in self.rows], pad_id, self.length)


def shared_length(tokens: int) -> int:
    """Return the length to which rows are padded where each shape takes time and memory: by a sixteenth at most.

    There are 80 such lengths up to 256, and 96 up to 512.

    Example:
        >>> [shared_length(tokens) for tokens in (7, 32, 33, 65, 200)]
        [7, 32, 34, 68, 200]
    """
    step = 1 << max(0, (tokens - 1).bit_length() - 5)
    return -(-tokens // step) * step


def most_tokens(rows: Sequence[Encoded], tokens: int = MAX_RUN_TOKENS) -> int:
    """Return the most tokens of one batch: fewer than `tokens` where each has an output over a whole vocabulary."""
    return max(1, min(tokens, MAX_NUMBERS // max((row.numbers for row in rows), default=1)))


def make_batches(
    lengths: Sequence[int],
    cost: CostModel,
    *,
    max_length: int,
    streams: int = 1,
    tokens: int = MAX_RUN_TOKENS,
    seen: Collection[tuple[int, int]] = (),
) -> list[Batch]:
    """Cut rows, sorted by length, into the cheapest batches; longest rows first.

    Args:
        lengths: tokens of each row.
        max_length: most tokens that a row may have.
        streams: batches that run at the same time; no batch gets more than its share of all tokens.
        tokens: most tokens of a batch, padding included. A single longer row still forms a batch.
        seen: shapes [B, S] that have run before.

    Example:
        >>> cost = CostModel(tokens=(0, 1024), ms=(16.0, 1040.0), square_ms=0.0)
        >>> [batch.rows for batch in make_batches([5, 90, 6], cost, max_length=128)]
        [[1], [2, 0]]
    """
    order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    ways = functools.cache(functools.partial(_ways, cost, max_length))
    most = min(tokens, -(-sum(lengths) // streams))
    best = np.full(len(order) + 1, np.inf)
    best[0] = 0.0
    came_from = np.zeros((len(order) + 1, 2), dtype=np.int64)
    for start, index in enumerate(order):
        exact, counts = max(lengths[index], 1), _COUNTS
        if cost.new_shape_ms:
            exact, counts = min(shared_length(exact), max_length), _SHARED_COUNTS
        counts = counts[counts <= max(1, min(most // exact, len(order) - start))]
        for length, ms in ways(exact):
            reached = best[start] + ms[counts - 1]
            if cost.new_shape_ms:
                # A new shape that other lengths will share counts half.
                new = cost.new_shape_ms / (2 if length % _LENGTH_MULTIPLE == 0 else 1)
                reached += [0.0 if (int(n), length) in seen else new for n in counts]
            ends = start + counts
            better = reached < best[ends]
            best[ends[better]], came_from[ends[better]] = reached[better], (start, length)
    batches, end = [], len(order)
    while end:
        start, length = (int(n) for n in came_from[end])
        batches.append(Batch(order[start:end], length))
        end = start
    return batches[::-1]


def _ways(cost: CostModel, max_length: int, exact: int) -> list[tuple[int, np.ndarray]]:
    """The lengths to which rows of one length may be padded.

    Returns:
        (length, milliseconds of 1, 2, …, `MAX_ROWS` rows): not padded first. Infinite where the padding does not pay.
    """
    exact_ms = cost.batch_ms(_COUNTS, exact)
    ways = {exact: exact_ms}
    for length in cost.lengths:
        if exact < length <= min(exact + BLOCK - 1, max_length):
            padded = cost.batch_ms(_COUNTS, length)
            pays = padded * (1 + cost.margin) < exact_ms
            if pays.any():
                ways[length] = np.where(pays, padded, np.inf)
    rounded = min(-(-exact // _LENGTH_MULTIPLE) * _LENGTH_MULTIPLE, max_length)
    if cost.new_shape_ms and rounded > exact:
        ways[rounded] = cost.batch_ms(_COUNTS, rounded)
    return list(ways.items())


def collected(
    names: Sequence[str],
    rows: Sequence[Encoded],
    outputs: Iterable[tuple[Batch, Mapping[str, np.ndarray]]],
    *,
    per_token: bool,
) -> dict[str, np.ndarray]:
    """Outputs in the order of the rows, batch by batch.

    Args:
        names: names of the outputs.
        rows: all rows.
        outputs: each batch with its outputs.
        per_token: each row keeps parts of its outputs, such as those of its tokens, and not those of padding.

    Returns:
        Output name to [rows, …], or to [tokens of all rows, …] with `per_token`.
    """
    slots: dict[str, list[np.ndarray]] = {}
    for batch, arrays in outputs:
        for position, index in enumerate(batch.rows):
            row, row_outputs = rows[index], dict(arrays)
            if not isinstance(row, FeedRow):
                row_outputs = {name: array[position] for name, array in arrays.items()}
            if per_token:
                parts = row.kept(row_outputs)
                # Copied, because a view would keep the whole padded batch in memory.
                row_outputs = {name: array.copy() for name, array in parts.items()}
            for name, array in row_outputs.items():
                slots.setdefault(name, [array] * len(rows))[index] = array
    if not rows:
        return {name: np.zeros((0,)) for name in names}
    join = np.concatenate if per_token else np.stack
    return {name: join(arrays) for name, arrays in slots.items()}


def run_rows(
    session: Session,
    rows: Sequence[Encoded],
    pad_id: int,
    on_done: Callable[[int], None] | None = None,
    *,
    per_token: bool = False,
) -> dict[str, np.ndarray]:
    """Run all rows and return their outputs in order.

    Batches follow from the lengths alone, not from times on this machine: scores must be the same on the next run.

    Args:
        pad_id: token id of padding.
        on_done: called after each batch with the number of rows that are done.
        per_token: outputs have one entry per token; entries of padding are dropped.

    Returns:
        Output name to [rows, …], or to [tokens of all rows, …] with `per_token`.

    Raises:
        DataError: the model does not take a row, such as one for which there is not enough memory.
    """
    lengths = [len(row) for row in rows]
    cost, most = default_cost_model(session), most_tokens(rows)

    def run(batch: Batch) -> Mapping[str, np.ndarray]:
        try:
            return session.run(batch.feeds(rows, pad_id))
        except DataError as error:
            error.where = error.where or f"row {batch.rows[0] + 1}"
            raise

    def outputs() -> Iterator[tuple[Batch, Mapping[str, np.ndarray]]]:
        done = 0
        batches = make_batches(lengths, cost, max_length=max(lengths, default=0), tokens=most)
        with ThreadPoolExecutor(session.streams) as pool:
            # One stream is run on this thread, which runtimes can use.
            results = pool.map(run, batches) if session.streams > 1 else map(run, batches)
            for batch, result in zip(batches, results, strict=True):
                yield batch, result
                done += len(batch.rows)
                if on_done:
                    on_done(done)

    return collected(session.outputs, rows, outputs(), per_token=per_token)
