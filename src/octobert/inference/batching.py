"""Rows of different lengths through a session: which rows form a batch, and outputs in the order of the rows.

The time of a batch grows with its tokens, padding included, and has a constant part, because weights are read once for all its
rows. Rows are sorted by length and cut where padding would take as long as another inference. Batches follow from lengths
alone, so that answers repeat. Some runtimes compile kernels for each new shape, and keep them. With them lengths and numbers
of rows are rounded, so that shapes, and with them time and memory, stay bounded.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from octobert.core.errors import DataError
from octobert.core.session import MAX_RUN_TOKENS, Feeds, Session
from octobert.data.encoded import Encoded, FeedRow, feeds_of

MAX_ROWS = 64
# Most numbers of one output of a batch: 128 MiB of float32. Only outputs over a vocabulary come near.
MAX_NUMBERS = 2**25
# Tokens of padding in a batch, at most: about what the constant part of an inference takes, and what it takes where the runtime
# prepares its shape.
_MOST_PADDING, _MOST_PADDING_SHARED = 16, 64


@dataclass(frozen=True)
class Batch:
    """Rows that run together.

    Args:
        rows: indices of the rows.
        length: tokens to which each row is padded.
    """

    rows: list[int]
    length: int

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
    *,
    max_length: int,
    shared: bool = False,
    streams: int = 1,
    tokens: int = MAX_RUN_TOKENS,
) -> list[Batch]:
    """Cut rows, sorted by length, into batches with little padding; longest rows first.

    Args:
        lengths: tokens of each row.
        max_length: most tokens that a row may have.
        shared: take few shapes, for a runtime that prepares each: the lengths are `shared_length`s, and the numbers of rows
            powers of two.
        streams: batches that run at the same time; no batch gets more than its share of all tokens.
        tokens: most tokens of a batch, padding included. A single longer row still forms a batch.

    Example:
        >>> [batch.rows for batch in make_batches([5, 90, 6], max_length=128)]
        [[1], [2, 0]]
    """
    if shared:
        lengths = [min(shared_length(length), max_length) for length in lengths]
    order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    most = min(tokens, -(-sum(lengths) // streams))
    most_padding = _MOST_PADDING_SHARED if shared else _MOST_PADDING
    batches = []
    while order:
        length = max(lengths[order[0]], 1)
        fitting = order[: max(1, min(MAX_ROWS, most // length))]
        padding = itertools.accumulate(length - lengths[index] for index in fitting)
        count = sum(total <= most_padding for total in padding)
        if shared:
            count = 1 << (count.bit_length() - 1)
        batches.append(Batch(order[:count], length))
        order = order[count:]
    return batches


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

    def run(batch: Batch) -> Mapping[str, np.ndarray]:
        try:
            return session.run(batch.feeds(rows, pad_id))
        except DataError as error:
            error.where = error.where or f"row {batch.rows[0] + 1}"
            raise

    def outputs() -> Iterator[tuple[Batch, Mapping[str, np.ndarray]]]:
        done = 0
        batches = make_batches(
            lengths,
            max_length=max(lengths, default=0),
            shared=session.prepares_shapes,
            tokens=most_tokens(rows),
        )
        with ThreadPoolExecutor(session.streams) as pool:
            # One stream is run on this thread, which runtimes can use.
            results = pool.map(run, batches) if session.streams > 1 else map(run, batches)
            for batch, result in zip(batches, results, strict=True):
                yield batch, result
                done += len(batch.rows)
                if on_done:
                    on_done(done)

    return collected(session.outputs, rows, outputs(), per_token=per_token)
