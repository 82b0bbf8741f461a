"""Metrics that a recipe can ask for by name, beside those that a task has by default.

Those of `[items, numbers]` are functions of a task's items. AUROC needs the probabilities of classes. All are undefined (NaN)
where scikit-learn's are, but 0 where a precision, a recall or an F1 has nothing to count. The tests compare them with
scikit-learn and SciPy.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np

from octobert.tasks import _classification, text_classification
from octobert.tasks._classification import Classification
from octobert.tasks._task import Metric, Task
from octobert.tasks.embedding import Embedding
from octobert.tasks.text_classification import MultiLabel, Scores

AUROC = "auroc"
# Other names of metrics.
ALIASES = {"mcc": "matthews", "matthews_correlation": "matthews", "roc_auc": AUROC}


def _ratio(above: np.ndarray, below: np.ndarray) -> np.ndarray:
    """Ratios; 0 where there is nothing below."""
    ratios: np.ndarray = np.divide(above, below, out=np.zeros(np.shape(below)), where=np.asarray(below) > 0)
    return ratios


def _of_classes(of: Literal["precision", "recall"], average: Literal["class 1", "macro"]) -> Metric:
    """Precision or recall of class 1, or its mean over the classes that occur in gold or predictions."""

    def metric(items: np.ndarray) -> float:
        right, predicted, expected = _classification.counts(items)
        values = _ratio(right, predicted if of == "precision" else expected)
        if average == "class 1":
            return float(values[1]) if len(values) > 1 else 0.0
        return float(np.mean(values[predicted + expected > 0]))

    return metric


def _of_labels(of: Literal["precision", "recall"], average: Literal["micro", "macro"]) -> Metric:
    """Precision or recall over all decisions, or its mean over the labels that occur in gold or predictions."""

    def metric(items: np.ndarray) -> float:
        predicted, right = np.split(items, 2, axis=1)
        both = (predicted * right).sum(axis=0)
        total = (predicted if of == "precision" else right).sum(axis=0)
        if average == "micro":
            return float(_ratio(both.sum(), total.sum()))
        occurs = predicted.sum(axis=0) + right.sum(axis=0) > 0
        return float(np.mean(_ratio(both, total)[occurs])) if occurs.any() else 0.0

    return metric


def _all_labels(items: np.ndarray) -> float:
    """Share of texts with all labels right, as scikit-learn's accuracy."""
    predicted, right = np.split(items, 2, axis=1)
    return float(np.mean(np.all(predicted == right, axis=1)))


def _error(power: int) -> Metric:
    return lambda items: float(np.mean(np.abs(items[:, 0] - items[:, 1]) ** power))


_CLASSES: Mapping[str, Metric] = {
    **_classification.METRICS,
    "micro_f1": _classification.accuracy,
    "precision": _of_classes("precision", "class 1"),
    "recall": _of_classes("recall", "class 1"),
    "macro_precision": _of_classes("precision", "macro"),
    "macro_recall": _of_classes("recall", "macro"),
}
_LABELS: Mapping[str, Metric] = {
    **text_classification.LABEL_METRICS,
    "accuracy": _all_labels,
    "micro_precision": _of_labels("precision", "micro"),
    "micro_recall": _of_labels("recall", "micro"),
    "macro_precision": _of_labels("precision", "macro"),
    "macro_recall": _of_labels("recall", "macro"),
}
_NUMBERS: Mapping[str, Metric] = {**text_classification.SCORE_METRICS, "mse": _error(2), "mae": _error(1)}


def built_in(task: Task) -> Mapping[str, Metric | None]:
    """Name → metric of a task's items, of all metrics that a recipe can name; None for AUROC."""
    if isinstance(task, Classification):
        two = ("f1", "precision", "recall")
        fitting = {name: metric for name, metric in _CLASSES.items() if len(task.labels) <= 2 or name not in two}
        return {**fitting, AUROC: None}
    if isinstance(task, MultiLabel):
        return {**_LABELS, AUROC: None}
    if isinstance(task, Scores) or (isinstance(task, Embedding) and task.form == "pairs"):
        return _NUMBERS
    return task.metrics


def auroc(scores: np.ndarray, references: np.ndarray) -> float:
    """Area under the ROC curve: of class 1; of more classes or labels, the mean of each against the rest.

    Args:
        scores: [items] of class 1, or [items, classes].
        references: [items] right classes, or [items, labels] of 0 and 1.

    Returns:
        NaN where a class has no item or all items; of several labels, such labels are left out.

    Example:
        >>> auroc(np.array([0.1, 0.4, 0.35, 0.8]), np.array([0, 0, 1, 1]))
        0.75
    """
    if references.ndim == 2:
        values = [_area(scores[:, k], references[:, k] == 1) for k in range(references.shape[1])]
        defined = [value for value in values if np.isfinite(value)]
        return float(np.mean(defined)) if defined else float("nan")
    if scores.ndim == 1 or scores.shape[1] == 2:
        return _area(scores if scores.ndim == 1 else scores[:, 1], references == 1)
    return float(np.mean([_area(scores[:, k], references == k) for k in range(scores.shape[1])]))


def _area(scores: np.ndarray, positive: np.ndarray) -> float:
    """The share of pairs of a positive and a negative item that the scores order rightly; ties count half (Mann-Whitney)."""
    from scipy.stats import rankdata

    count = int(positive.sum())
    pairs = count * (len(positive) - count)
    return float((rankdata(scores)[positive].sum() - count * (count + 1) / 2) / pairs) if pairs else float("nan")
