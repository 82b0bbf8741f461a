"""Whether the answer to a text depends on what runs together with it: a measurement on rows of many lengths."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from octobert import targets
from octobert.core.closeness import BatchEffect
from octobert.core.session import Session, SessionOptions
from octobert.data.encoded import Encoded, feeds_of
from octobert.inference.opened import FinishedModel

# Lengths in tokens: one word, ends of the blocks of kernels and one beyond, and long rows.
_LENGTHS = (1, 3, 5, 9, 16, 17, 31, 33, 64, 66, 127, 129, 255, 258)
# Token ids where nothing states the size of the vocabulary.
_VOCABULARY = 1000
# Rows of batches that are drawn at random.
_BATCHES = (2, 2, 3, 3, 4, 5, 7, 8)


def batch_effect(model: FinishedModel) -> BatchEffect | None:
    """Run rows alone, padded, and in batches, and compare their outputs; None for a graph whose rows run alone.

    Raises:
        TargetError: the target does not run here.
        ModelError: the model has other outputs than its task reads.
    """
    model.check_runs()
    if not model.reads_texts:
        return None
    session, longest = model.session(SessionOptions()), model.longest or max(_LENGTHS)
    generator = np.random.default_rng(0)
    most = model.vocabulary or _VOCABULARY
    rows = []
    for length in sorted({min(length, longest) for length in _LENGTHS}):
        ids = generator.integers(min(5, most - 1), most, length)
        rows.append(Encoded(ids, np.zeros_like(ids), truncated=False))
    alone = [_outputs(session, [row], len(row))[0] for row in rows]
    # Numbers of rows, and the length that they are padded to.
    every, last = range(len(rows)), len(rows[-1])
    ways: list[tuple[Sequence[int], int]] = [
        (every, last),
        (every[::3], longest),
        (every[: len(rows) // 2], last),
    ]
    ways += [([i], min(len(rows[i]) + more, longest)) for i in every for more in (1, 7)]
    for count in _BATCHES:
        drawn = generator.permutation(len(rows))[:count].tolist()
        ways.append((drawn, max(len(rows[i]) for i in drawn)))
    worst = scale = 0.0
    for together, length in ways:
        results = _outputs(session, [rows[i] for i in together], length)
        for i, outputs in zip(together, results, strict=True):
            for one, other in zip(alone[i], outputs, strict=True):
                # Outputs of tokens also have those of padding.
                worst = max(worst, float(np.abs(other[: len(one)] - one).max()))
                scale = max(scale, float(np.abs(one).max()))
    return BatchEffect(state=_state(model, worst), difference=worst / scale if worst else 0.0)


def _state(model: FinishedModel, worst: float) -> Literal["exact", "bounded", "depends"]:
    """Rows that were tried cannot show alone that no others differ: the target must say so, too."""
    if not model.ignores_padding:
        return "depends"
    manifest = model.manifest
    static = manifest is not None and not any(q.dynamic for _, q in manifest.plan.quantized)
    exact = static and targets.load(model.target).capabilities.exact_rows
    return "exact" if exact and not worst else "bounded"


def _outputs(session: Session, rows: list[Encoded], length: int) -> list[list[np.ndarray]]:
    """The outputs of each row."""
    results = session.run(feeds_of(rows, 0, length)).values()
    return [[np.atleast_1d(array[i]) for array in results] for i in range(len(rows))]
