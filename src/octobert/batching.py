"""Rows through a session: batches of similar length, outputs in the order of the rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from octobert.session import Session
from octobert.texts import Encoded, batches, feeds_of

TOKENS_PER_BATCH = 2048


def run_rows(
    session: Session, rows: Sequence[Encoded], pad_id: int, on_done: Callable[[int], None] | None = None
) -> dict[str, np.ndarray]:
    """Outputs of all rows, stacked in their order.

    Args:
        on_done: called with the number of rows done after each batch.
    """
    collected: dict[str, list[Any]] = {name: [None] * len(rows) for name in session.outputs}
    done = 0
    for group in batches(rows, max_tokens=TOKENS_PER_BATCH):
        result = session.run(feeds_of([rows[i] for i in group], pad_id))
        for name, array in result.items():
            for position, index in enumerate(group):
                collected[name][index] = array[position]
        done += len(group)
        if on_done:
            on_done(done)
    return {name: np.stack(slots) if slots else np.zeros((0,)) for name, slots in collected.items()}
