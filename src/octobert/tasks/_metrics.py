"""Metrics of classes, of labels, of entities and of scores, as functions of a task's items; and numbers of outputs.

Metrics are undefined (NaN) where scikit-learn's are, but 0 where a precision, a recall or an F1 has nothing to count. The tests
compare them with scikit-learn, seqeval and SciPy. Resampling calls each of them thousands of times.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Literal, TypeVar

import numpy as np

from octobert.tasks._task import Extremes, Fidelity, Metric, Outputs

T = TypeVar("T")

# Of the range of scores.
_CLEAR = 0.05
# Classes and neighbours that an explained answer has.
TOP = 5
AUROC = "auroc"
# Other names of metrics.
ALIASES = {"mcc": "matthews", "matthews_correlation": "matthews", "roc_auc": AUROC}
# Of items: right answers, predictions and expected answers of each class or label.
Counts = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray, np.ndarray]]


def of_counts(
    counts: Counts,
    name: Literal["f1", "precision", "recall"],
    average: Literal["class 1", "macro", "micro"],
) -> Metric:
    """F1, precision or recall of class 1, of all decisions, or the mean over the classes that occur in gold or predictions."""

    def metric(items: np.ndarray) -> float:
        right, predicted, expected = counts(items)
        if average == "micro":
            right, predicted, expected = (
                count.sum(keepdims=True) for count in (right, predicted, expected)
            )
        elif average == "class 1":
            right, predicted, expected = right[1:2], predicted[1:2], expected[1:2]
        total = {"f1": predicted + expected, "precision": 2 * predicted, "recall": 2 * expected}[
            name
        ]
        values = np.divide(2 * right, total, out=np.zeros(len(total)), where=total > 0)[
            predicted + expected > 0
        ]
        return float(np.mean(values)) if len(values) else 0.0

    return metric


def accuracy(items: np.ndarray) -> float:
    """Share of items whose predictions are all right: one class, or one decision for each label."""
    predicted, right = np.hsplit(items, 2)
    return float(np.mean(np.all(predicted == right, axis=1)))


def class_counts(items: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The counts of each class, from [items, 2]."""
    predicted, expected = items.astype(np.int64).T
    classes = int(items.max()) + 1
    right = expected[predicted == expected]
    return (
        np.bincount(right, minlength=classes).astype(np.float64),
        np.bincount(predicted, minlength=classes).astype(np.float64),
        np.bincount(expected, minlength=classes).astype(np.float64),
    )


def label_counts(items: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The counts of each label, from [items, 2 · labels]."""
    predicted, right = np.hsplit(items, 2)
    return (predicted * right).sum(axis=0), predicted.sum(axis=0), right.sum(axis=0)


def matthews(items: np.ndarray) -> float:
    """Matthews correlation, as GLUE scores CoLA, for any number of classes (Gorodkin 2004); 0 where it is undefined."""
    right_of_class, predicted, expected = class_counts(items)
    count, right = float(len(items)), right_of_class.sum()
    spread = (count**2 - predicted @ predicted) * (count**2 - expected @ expected)
    return float((right * count - predicted @ expected) / np.sqrt(spread)) if spread else 0.0


def pearson(items: np.ndarray) -> float:
    """Linear correlation of the two columns; undefined where one is constant."""
    scores, gold = items[:, 0] - items[:, 0].mean(), items[:, 1] - items[:, 1].mean()
    spread = np.sqrt((scores @ scores) * (gold @ gold))
    return float(scores @ gold / spread) if spread else math.nan


def spearman(items: np.ndarray) -> float:
    """Rank correlation of the two columns, ties averaged; undefined where one is constant."""
    from scipy.stats import rankdata

    return pearson(rankdata(items, axis=0))


def _error(power: int) -> Metric:
    return lambda items: float(np.mean(np.abs(items[:, 0] - items[:, 1]) ** power))


CLASSES: Mapping[str, Metric] = {
    "accuracy": accuracy,
    "f1": of_counts(class_counts, "f1", "class 1"),
    "macro_f1": of_counts(class_counts, "f1", "macro"),
    "matthews": matthews,
    "micro_f1": accuracy,
    "precision": of_counts(class_counts, "precision", "class 1"),
    "recall": of_counts(class_counts, "recall", "class 1"),
    "macro_precision": of_counts(class_counts, "precision", "macro"),
    "macro_recall": of_counts(class_counts, "recall", "macro"),
}
# Of class 1, where there are two.
OF_TWO = ("f1", "precision", "recall")
LABELS: Mapping[str, Metric] = {
    "micro_f1": of_counts(label_counts, "f1", "micro"),
    "macro_f1": of_counts(label_counts, "f1", "macro"),
    "accuracy": accuracy,
    "micro_precision": of_counts(label_counts, "precision", "micro"),
    "micro_recall": of_counts(label_counts, "recall", "micro"),
    "macro_precision": of_counts(label_counts, "precision", "macro"),
    "macro_recall": of_counts(label_counts, "recall", "macro"),
}
SCORES: Mapping[str, Metric] = {
    "spearman": spearman,
    "pearson": pearson,
    "mse": _error(2),
    "mae": _error(1),
}


def named(metrics: Mapping[str, Metric], *names: str) -> dict[str, Metric]:
    """Some of several metrics."""
    return {name: metrics[name] for name in names}


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
        defined = [area for area in map(_area, scores.T, references.T == 1) if np.isfinite(area)]
        return float(np.mean(defined)) if defined else math.nan
    if scores.ndim == 1 or scores.shape[1] == 2:
        return _area(scores if scores.ndim == 1 else scores[:, 1], references == 1)
    return float(np.mean([_area(scores[:, k], references == k) for k in range(scores.shape[1])]))


def _area(scores: np.ndarray, positive: np.ndarray) -> float:
    """The share of pairs of a positive and a negative item that the scores order rightly; ties count half (Mann-Whitney)."""
    from scipy.stats import rankdata

    count = int(positive.sum())
    pairs = count * (len(positive) - count)
    return (
        float((rankdata(scores)[positive].sum() - count * (count + 1) / 2) / pairs)
        if pairs
        else math.nan
    )


def probabilities(logits: np.ndarray) -> np.ndarray:
    """Softmax along the last axis, in float64.

    Example:
        >>> probabilities(np.array([0.0, 0.0]))
        array([0.5, 0.5])
    """
    wide = np.asarray(logits, dtype=np.float64)
    powers: np.ndarray = np.exp(wide - wide.max(axis=-1, keepdims=True))
    result: np.ndarray = powers / np.sum(powers, axis=-1, keepdims=True)
    return result


def log_probabilities(logits: np.ndarray) -> np.ndarray:
    """The logarithm of the softmax over the last axis, in float64.

    Example:
        >>> log_probabilities(np.array([0.0, 0.0])).round(4).tolist()
        [-0.6931, -0.6931]
    """
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True)))


def sigmoid(logits: np.ndarray) -> np.ndarray:
    """The logistic function, in float64.

    Example:
        >>> sigmoid(np.array([0.0]))
        array([0.5])
    """
    from scipy.special import expit

    result: np.ndarray = expit(np.asarray(logits, dtype=np.float64))
    return result


def changed_answers(before: Sequence[T], after: Sequence[T]) -> tuple[tuple[int, T, T], ...]:
    """(index, answer before, answer after) of the items with another answer.

    Example:
        >>> changed_answers(["a", "b"], ["a", "c"])
        ((1, 'b', 'c'),)
    """
    return tuple((i, b, a) for i, (b, a) in enumerate(zip(before, after, strict=True)) if b != a)


def agreement(before: Sequence[str], after: Sequence[str], error: float) -> Fidelity:
    """Fidelity of answers in words: the share of items with the same one.

    Args:
        error: of the outputs.
    """
    changed = changed_answers(before, after)
    return Fidelity(
        "agreement",
        1 - len(changed) / max(len(after), 1),
        error,
        changed,
        share_of_most_frequent(before),
    )


def share_of_most_frequent(answers: Sequence[Hashable]) -> float | None:
    """The share of the most frequent of several answers; None where there are none.

    Example:
        >>> share_of_most_frequent(["a", "b", "a", "a"])
        0.75
    """
    return Counter(answers).most_common(1)[0][1] / len(answers) if answers else None


def moved(after: np.ndarray, before: np.ndarray) -> list[int]:
    """Which scores changed clearly: by more than a twentieth of the range of nine in ten scores of the reference.

    Example:
        >>> moved(np.array([0.0, 0.9, 0.5]), np.array([0.0, 1.0, 0.51]))
        [1]
    """
    if not len(before):
        return []
    low, high = np.percentile(before, [5, 95])
    clearly: np.ndarray = (np.abs(after - before) > _CLEAR * (high - low)) & (high > low)
    return [int(index) for index in np.flatnonzero(clearly)]


def extreme_scores(items: np.ndarray) -> Extremes:
    """Scores and gold scores: each with the score of quite another row, and all scores in the order of the gold scores.

    Example:
        >>> [each[:, 0].tolist() for each in extreme_scores(np.array([[0.2, 1.0], [0.1, 2.0], [0.9, 3.0], [0.8, 4.0]]))]
        [[0.8, 0.9, 0.1, 0.2], [0.1, 0.2, 0.8, 0.9]]
    """
    wrong, right = items.copy(), items.copy()
    by_gold = np.argsort(items[:, 1], kind="stable")
    right[by_gold, 0] = np.sort(items[:, 0])
    wrong[by_gold, 0] = np.roll(np.sort(items[:, 0]), len(items) // 2)
    return wrong, right


def unit(vectors: np.ndarray) -> np.ndarray:
    """Vectors divided by their L2 norms, in float64."""
    wide = vectors.astype(np.float64)
    normalized: np.ndarray = wide / np.maximum(np.linalg.norm(wide, axis=-1, keepdims=True), 1e-12)
    return normalized


def output_error(ours: Outputs, reference: Outputs) -> float:
    """Root mean square difference of all outputs."""
    squares = [
        np.square(ours[name].astype(np.float64) - reference[name]).reshape(-1) for name in ours
    ]
    return float(np.sqrt(np.mean(np.concatenate(squares))))


def best_scores(scores: Iterable[tuple[str, float]]) -> dict[str, float]:
    """The highest of scores with their names.

    Example:
        >>> best_scores([("a", 0.1), ("b", 0.9)])
        {'b': 0.9, 'a': 0.1}
    """
    return dict(sorted(scores, key=lambda entry: -entry[1])[:TOP])


def f1_of_rows(right: np.ndarray, predicted: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """F1 of each row from its counts; 1 where there is nothing on either side."""
    return np.where(predicted + expected > 0, 2 * right / np.maximum(predicted + expected, 1), 1.0)
