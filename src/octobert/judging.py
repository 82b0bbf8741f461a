"""Outputs of models against gold, and against each other: what evaluation runs and what the report compares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from octobert.measure import Comparison, Score, mcnemar, paired, score
from octobert.task import Task
from octobert.texts import Text

Outputs = Mapping[str, np.ndarray]


def scores(task: Task, outputs: Outputs, inputs: Sequence[Text], gold: np.ndarray, *, seed: int) -> tuple[Score, ...]:
    """Every metric of a task with its interval; none where the data has no gold.

    Raises:
        DataError: a metric is undefined on these rows.
    """
    if not len(gold):
        return ()
    items = task.items(outputs, inputs)
    return tuple(score(name, metric, items, gold, seed=seed) for name, metric in task.metrics.items())


def compare(
    task: Task, names: tuple[str, str], outputs: tuple[Outputs, Outputs], inputs: Sequence[Text], gold: np.ndarray, *, seed: int
) -> Comparison:
    """One model against another on the same rows.

    Args:
        names: (candidate, reference).
        outputs: of the two.
        inputs: the texts that both read.
        gold: what was expected; may be empty.
    """
    fidelity = task.fidelity(*outputs, inputs)
    ours, theirs = (task.items(one, inputs) for one in outputs)
    difference = low = high = p_value = None
    if task.primary is not None and len(gold):
        difference, low, high, p_value = paired(task.metrics[task.primary], ours, theirs, gold, seed=seed)
        if task.primary == "accuracy":
            p_value = mcnemar(ours, theirs, gold)
    changed = [(i, float(gold[i]) if len(gold) else 0.0, float(theirs[i]), float(ours[i])) for i in fidelity.changed]
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
        changed=tuple(changed),
    )
