"""Rows through a session: batches of similar length, outputs in the order of the rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from octobert.session import Session
from octobert.texts import Encoded, batches, feeds_of

TOKENS_PER_BATCH = 2048


def run_rows(
    session: Session,
    rows: Sequence[Encoded],
    pad_id: int,
    on_done: Callable[[int], None] | None = None,
    *,
    per_token: bool = False,
) -> dict[str, np.ndarray]:
    """Outputs of all rows in their order: [rows, …].

    Args:
        on_done: called with the number of rows done after each batch.
        per_token: the outputs have one entry a token; those of padding are left out: [tokens of all rows, …].
    """
    collected: dict[str, list[Any]] = {name: [None] * len(rows) for name in session.outputs}
    done = 0
    for group in batches(rows, max_tokens=TOKENS_PER_BATCH):
        result = session.run(feeds_of([rows[i] for i in group], pad_id))
        for name, array in result.items():
            for position, index in enumerate(group):
                own = array[position]
                # A copy, or the whole batch with its padding would stay in memory.
                collected[name][index] = own[: len(rows[index])].copy() if per_token else own
        done += len(group)
        if on_done:
            on_done(done)
    join = np.concatenate if per_token else np.stack
    return {name: join(slots) if slots else np.zeros((0,)) for name, slots in collected.items()}
