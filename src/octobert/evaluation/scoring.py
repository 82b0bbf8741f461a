"""Scores of a model's outputs, and comparisons of two models on the same rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from octobert.core.errors import DataError
from octobert.core.estimate import Estimate
from octobert.core.measurements import Comparison, Score, score_named
from octobert.data.tokenization import EncodedTexts
from octobert.evaluation.statistics import mcnemar, paired, scores_of
from octobert.models.heads import head_of
from octobert.tasks import Outputs, Task, unpacked


def scores(
    task: Task, outputs: Outputs, encoded: EncodedTexts, gold: Sequence[Any], *, seed: int
) -> tuple[Score, ...]:
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
    chance, extremes = task.chance(items), task.extremes(items)
    found = [
        score
        for name, metric in task.metrics.items()
        for score in scores_of(name, metric, items, extremes, seed=seed, chance=chance.get(name))
    ]
    if task.primary is not None and score_named(task.primary, found) is None:
        raise DataError(
            f"{task.primary} is not defined on the evaluated rows",
            got=f"{len(gold)} rows, for example with gold {task.expected(gold[0])}",
            fix="evaluate more rows, or rows that differ",
        )
    return tuple(found)


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
    differences: dict[str, Estimate] = {}
    if task.primary is not None and len(gold):
        ours, theirs = (task.items(each, encoded, gold) for each in outputs)
        extremes = task.extremes(theirs)
        for name, metric in task.metrics.items():
            value, below, above, chance = paired(metric, ours, theirs, extremes, seed=seed)
            if name == task.primary:
                difference, low, high, p_value = value, below, above, chance
            if below is not None and above is not None:
                differences[name] = Estimate(value=value, low=below, high=above)
        if task.primary == "accuracy" and head_of(task.head).shape == "classes":
            right = [each[:, 0] == each[:, 1] for each in map(unpacked, (ours, theirs))]
            p_value = mcnemar(right[0], right[1])
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
        divergence=fidelity.divergence,
        differences=differences,
        changed=tuple(
            (i, expected[i] if expected else "", before, after)
            for i, before, after in fidelity.changed
        ),
    )
