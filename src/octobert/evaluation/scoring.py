"""Outputs of models against gold, and against each other: what evaluation runs and what the report compares."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from octobert.core.errors import DataError
from octobert.core.measurements import Comparison, Score
from octobert.data.tokenization import Asked
from octobert.evaluation.statistics import mcnemar, paired, score
from octobert.tasks._task import Outputs, Task


def scores(task: Task, outputs: Outputs, asked: Asked, gold: Sequence[Any], *, seed: int) -> tuple[Score, ...]:
    """Every metric of a task with its interval; none where the data has no gold.

    Raises:
        DataError: the task's first metric is undefined on these rows; others are left out where they are.
    """
    if not len(gold):
        return ()
    items = task.items(outputs, asked, gold)
    found = {name: score(name, metric, items, seed=seed) for name, metric in task.metrics.items()}
    if task.primary is not None and found[task.primary] is None:
        raise DataError(
            f"{task.primary} is not defined on the evaluated rows",
            got=f"{len(gold)} rows, for example with gold {task.expected(gold[0])}",
            fix="evaluate more rows, or rows that differ",
        )
    return tuple(one for one in found.values() if one is not None)


def compare(
    task: Task, names: tuple[str, str], outputs: tuple[Outputs, Outputs], asked: Asked, gold: Sequence[Any], *, seed: int
) -> Comparison:
    """One model against another on the same rows.

    Args:
        names: (candidate, reference).
        outputs: of the two.
        asked: what both read.
        gold: what was expected; may be empty.
    """
    fidelity = task.fidelity(*outputs, asked)
    difference = low = high = p_value = None
    if task.primary is not None and len(gold):
        ours, theirs = (task.items(one, asked, gold) for one in outputs)
        difference, low, high, p_value = paired(task.metrics[task.primary], ours, theirs, seed=seed)
        if task.primary == "accuracy" and task.head == "sequence-classification":
            p_value = mcnemar(ours[:, 0] == ours[:, 1], theirs[:, 0] == theirs[:, 1])
    expected = [task.expected(one) for one in gold]
    return Comparison(
        candidate=names[0],
        reference=names[1],
        metric=task.primary if difference is not None else None,
        difference=difference,
        low=low,
        high=high,
        p_value=p_value,
        fidelity_name=fidelity.name,
        fidelity=fidelity.agreement,
        output_error=fidelity.error,
        changed=tuple((i, expected[i] if expected else "", before, after) for i, before, after in fidelity.changed),
    )
