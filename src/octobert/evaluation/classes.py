"""What quantization does to single classes, to probabilities, and to decisions at a threshold that the user names.

All of it is read from `Task.judged`: which classes each text is given, which it has, and how likely the model says each is.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from octobert.core.closeness import ClassChange, Crossed
from octobert.tasks import Result, Task, unmeasured
from octobert.tasks._classification import Classification
from octobert.tasks._texts import LabelledTexts
from octobert.tasks.text_classification import MultiLabel

# Bins of confidence, as Guo et al. (2017) have them.
_BINS = 15
# A class is rare where it has less than this part of an equal share of the rows; of very many, the rarest are told.
_RARE, _MOST = 0.5, 50


@dataclass(frozen=True)
class _Decisions:
    """What a model decides.

    Args:
        given, right: [texts, classes] whether a text is given a class, and has it.
        likely: [texts, classes] its probability.
    """

    given: np.ndarray
    right: np.ndarray
    likely: np.ndarray


def _decisions(task: Task, result: Result) -> _Decisions | None:
    """The decisions of a model about texts with labels; None of tasks without classes of texts."""
    if not isinstance(task, (Classification, MultiLabel)) or not len(result.gold):
        return None
    judged = task.judged(result)
    assert judged.scores is not None
    if isinstance(task, MultiLabel):
        return _Decisions(judged.predictions > 0, judged.references > 0, judged.scores)
    classes = np.arange(judged.scores.shape[1])
    given, right = (of[:, None] == classes for of in (judged.predictions, judged.references))
    return _Decisions(given, right, judged.scores)


def class_changes(task: Task, ours: Result, reference: Result) -> tuple[ClassChange, ...]:
    """Compare the decisions of two models class by class, the rarest first; none where no class is rare.

    Args:
        ours, reference: of the quantized model, and of its float model.
    """
    task = unmeasured(task)
    after, before = (_decisions(task, result) for result in (ours, reference))
    if after is None or before is None:
        return ()
    rows = before.right.sum(axis=0)
    if not (rows < _RARE * rows.mean()).any():
        return ()
    return tuple(
        ClassChange(
            label=task.label_of(index),
            rows=int(rows[index]),
            precision=_share(after, index, after.given),
            recall=_share(after, index, after.right),
            reference_precision=_share(before, index, before.given),
            reference_recall=_share(before, index, before.right),
            lost=int((before.given & ~after.given)[:, index].sum()),
            gained=int((after.given & ~before.given)[:, index].sum()),
        )
        for index in map(int, np.argsort(rows, kind="stable")[:_MOST])
    )


def _share(decisions: _Decisions, index: int, among: np.ndarray) -> float:
    """The share of right decisions for a class; 0 where there are none."""
    right = (decisions.given & decisions.right)[:, index].sum()
    return float(right / max(among[:, index].sum(), 1))


def calibration_error(task: Task, result: Result) -> float | None:
    """Return the expected calibration error (ECE) of a model's probabilities; None where it has none, or there are no labels.

    Of one label for a text, it is about the probability of the class that is given; of several, about that of every label.
    """
    task = unmeasured(task)
    decided = _decisions(task, result)
    if decided is None:
        return None
    among = slice(None) if isinstance(task, MultiLabel) else decided.given
    confidence, right = decided.likely[among].ravel(), decided.right[among].ravel()
    bins = np.ceil(confidence * _BINS).astype(np.int64)
    return float(np.abs(np.bincount(bins, right - confidence)).sum() / len(right))


def crossed(task: Task, ours: Result, reference: Result) -> Crossed | None:
    """Count the rows that cross the threshold of the task; None where it has none.

    A row crosses where a class's probability, or its score, is at the threshold or above in one of the models only.

    Args:
        ours, reference: of the quantized model, and of its float model.
    """
    task = unmeasured(task)
    if not isinstance(task, LabelledTexts) or task.threshold is None:
        return None
    after, before = (
        task.values(result).reshape(len(result.texts), -1) >= task.threshold
        for result in (ours, reference)
    )
    fell, rose = (change.any(axis=1) for change in (before & ~after, after & ~before))
    return Crossed(
        threshold=task.threshold,
        rows=int((fell | rose).sum()),
        fell=int(fell.sum()),
        rose=int(rose.sum()),
    )
