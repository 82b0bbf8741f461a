"""Scores of a model's outputs, and comparisons of two models on the same rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from octobert.core.errors import DataError
from octobert.core.measurements import Comparison, Score
from octobert.data.tokenization import EncodedTexts
from octobert.evaluation.statistics import mcnemar, paired, score
from octobert.tasks import Outputs, Task


def scores(task: Task, outputs: Outputs, encoded: EncodedTexts, gold: Sequence[Any], *, seed: int) -> tuple[Score, ...]:
    """Compute every metric of a task with its confidence interval.

    Args:
        task: the task with its metrics.
        outputs: of the model, by name.
        encoded: the tokenized rows.
        gold: expected value of each item; empty if the data has none.
        seed: of the bootstrap.

    Returns:
        The scores. Empty without gold; metrics that are undefined on these rows are left out.

    Raises:
        DataError: the task's primary metric is undefined on these rows.
    """
    if not len(gold):
        return ()
    items = task.items(outputs, encoded, gold)
    chance = task.chance(items)
    by_name = {name: score(name, metric, items, seed=seed, chance=chance.get(name)) for name, metric in task.metrics.items()}
    if task.primary is not None and by_name[task.primary] is None:
        raise DataError(
            f"{task.primary} is not defined on the evaluated rows",
            got=f"{len(gold)} rows, for example with gold {task.expected(gold[0])}",
            fix="evaluate more rows, or rows that differ",
        )
    return tuple(value for value in by_name.values() if value is not None)


def compare(
    task: Task,
    names: tuple[str, str],
    outputs: tuple[Outputs, Outputs],
    encoded: EncodedTexts,
    gold: Sequence[Any],
    *,
    seed: int,
) -> Comparison:
    """Compare two models on the same rows.

    Args:
        task: the task with its metrics.
        names: (candidate, reference).
        outputs: of the two, by name.
        encoded: the tokenized rows.
        gold: expected value of each item; may be empty.
        seed: of the bootstrap.
    """
    fidelity = task.fidelity(*outputs, encoded)
    difference = low = high = p_value = None
    if task.primary is not None and len(gold):
        ours, theirs = (task.items(each, encoded, gold) for each in outputs)
        difference, low, high, p_value = paired(task.metrics[task.primary], ours, theirs, seed=seed)
        if task.primary == "accuracy" and task.head == "sequence-classification":
            p_value = mcnemar(ours[:, 0] == ours[:, 1], theirs[:, 0] == theirs[:, 1])
    expected = [task.expected(value) for value in gold]
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
        fidelity_chance=fidelity.chance,
        output_error=fidelity.error,
        changed=tuple((i, expected[i] if expected else "", before, after) for i, before, after in fidelity.changed),
    )
