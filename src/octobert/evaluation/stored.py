"""What a smaller form of stored vectors loses in retrieval."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import get_args

import numpy as np

from octobert.core.estimate import Estimate
from octobert.core.measurements import StoredScore
from octobert.core.stored_vectors import StoredVectors, VectorType
from octobert.evaluation.statistics import paired
from octobert.tasks import Result, Retrieval, Task, unmeasured


def stored_scores(
    task: Task, candidate: str, ours: Result, reference: Result, *, seed: int
) -> Iterator[StoredScore]:
    """Score every form of a model's vectors, compared with the float model's in float32.

    Args:
        candidate: the quantized model.
        ours, reference: of it, and of the float model.
        seed: of the intervals.

    Yields:
        The forms, from the largest; nothing for tasks other than retrieval.

    Raises:
        DataError: the task names more dimensions than vectors have.
    """
    task = unmeasured(task)
    if not isinstance(task, Retrieval) or not task.form.stored:
        return
    ours = task.whole(ours)
    width, before = ours.outputs[task.form.stored].shape[-1], task.items(reference)
    metric = task.metrics[str(task.primary)]
    for dimensions in sorted({width, *task.dimensions}, reverse=True):
        for kind in get_args(VectorType):
            form = StoredVectors(type=kind, dimensions=dimensions)
            items, size = _stored(task, ours, form)
            difference, low, high, _ = paired(
                metric, items, before, task.extremes(before), seed=seed
            )
            yield StoredScore(
                candidate=candidate,
                type=kind,
                dimensions=dimensions,
                size_bytes=size,
                metric=str(task.primary),
                value=metric(items),
                difference=None
                if low is None or high is None
                else Estimate(value=difference, low=low, high=high),
            )


def _stored(task: Retrieval, result: Result, form: StoredVectors) -> tuple[np.ndarray, int]:
    """(the items of documents that are stored in a form, the bytes of one of them)."""
    rows, count, name = result.encoded.flat, len(result.gold), task.form.stored
    start = sum(row.entries for row in rows[:count]) if task.per_token else count
    asking, documents = np.split(result.outputs[name], [start])
    form = form.fitted(documents, "task.embedding.dimensions")
    codes = form.encode(documents)
    vectors = np.concatenate([form.cut(asking).astype(np.float32), form.decode(codes)])
    found = replace(result, outputs={name: vectors})
    coarse = form.type == "binary" and not task.per_token
    size = round(codes.nbytes / max(len(result.texts) - count, 1))
    return replace(task, coarse=coarse).items(found), size
