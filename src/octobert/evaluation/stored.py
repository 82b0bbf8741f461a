"""What a smaller form of stored vectors loses in retrieval, and what quantized queries lose on the float model's vectors."""

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
    task: Task, names: tuple[str, str], ours: Result, reference: Result, *, seed: int
) -> Iterator[StoredScore]:
    """Score every form of a model's vectors, compared with the float model's in float32.

    Args:
        names: of the quantized model, and of its float model.
        ours, reference: of the two.
        seed: of the intervals.

    Yields:
        Queries of the quantized model on the float model's documents, then the forms, from the largest; nothing for tasks other
        than retrieval.

    Raises:
        DataError: the task names more dimensions than vectors have.
    """
    task = unmeasured(task)
    if not isinstance(task, Retrieval) or not task.form.stored:
        return
    metric, before = task.metrics[str(task.primary)], task.items(reference)
    ours, reference = task.whole(ours), task.whole(reference)
    width = ours.outputs[task.form.stored].shape[-1]
    forms = [
        (documents, StoredVectors(type=kind, dimensions=dimensions))
        for dimensions in sorted({width, *task.dimensions}, reverse=True)
        for kind in get_args(VectorType)
        for documents in (names[::-1] if (kind, dimensions) == ("float32", width) else names[:1])
    ]
    for documents, form in forms:
        items, size = _stored(task, ours, ours if documents == names[0] else reference, form)
        difference, low, high, _ = paired(metric, items, before, task.extremes(before), seed=seed)
        yield StoredScore(
            candidate=names[0],
            documents=documents,
            type=form.type,
            dimensions=form.dimensions or width,
            size_bytes=size,
            metric=str(task.primary),
            value=metric(items),
            difference=None
            if low is None or high is None
            else Estimate(value=difference, low=low, high=high),
        )


def _stored(
    task: Retrieval, result: Result, indexed: Result, form: StoredVectors
) -> tuple[np.ndarray, int]:
    """(the items of documents that are stored in a form, the bytes of one of them).

    Args:
        result: with the vectors of the queries.
        indexed: with those of the documents.
    """
    rows, count, name = result.encoded.flat, len(result.gold), task.form.stored
    start = sum(row.entries for row in rows[:count]) if task.per_token else count
    asking, documents = result.outputs[name][:start], indexed.outputs[name][start:]
    form = form.fitted(documents, "task.embedding.dimensions")
    codes = form.encode(documents)
    vectors = np.concatenate([form.cut(asking).astype(np.float32), form.decode(codes)])
    found = replace(result, outputs={name: vectors})
    coarse = form.type == "binary" and not task.per_token
    size = round(codes.nbytes / max(len(result.texts) - count, 1))
    return replace(task, coarse=coarse).items(found), size
