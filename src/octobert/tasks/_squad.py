"""The metrics of SQuAD, as its evaluation scripts define them for 1.1 (Rajpurkar et al. 2016) and 2.0 (2018).

An answer is normalized (lower case, no punctuation, no English articles, single spaces) and compared with every gold answer;
the best counts. Exact match is equality; F1 is that of the two bags of words. All scores are in [0, 1].
"""

from __future__ import annotations

import functools
import random
import re
import string
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from octobert.tasks._task import Extremes

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
# Columns of the numbers of a question.
(
    EXACT,
    F1,
    ANSWERABLE,
    NULL_MINUS_BEST,
    BEST_EXACT,
    BEST_F1,
    SAYS,
    CHANCE_EXACT,
    CHANCE_F1,
    ALL_F1,
) = range(10)
# A span that is chosen by chance: words of the longest one.
_CHANCE_WORDS = 10


# The same gold answers are compared again for every model.
@functools.lru_cache(maxsize=1 << 17)
def normalized(answer: str) -> str:
    """An answer as it is compared."""
    return " ".join(_ARTICLES.sub(" ", answer.lower().translate(_NO_PUNCTUATION)).split())


def exact(answer: str, gold: str) -> float:
    """1.0 if both are the same after normalization, else 0.0."""
    return float(normalized(answer) == normalized(gold))


def f1(answer: str, gold: str, *, empty: float) -> float:
    """F1 of the words of the two.

    Args:
        empty: what two answers without words score; the scripts differ: 0 in 1.1, 1 in 2.0.
    """
    ours, theirs = normalized(answer).split(), normalized(gold).split()
    if not ours and not theirs:
        return empty
    same = sum((Counter(ours) & Counter(theirs)).values())
    if not same:
        return 0.0
    precision, recall = 1.0 * same / len(ours), 1.0 * same / len(theirs)
    return (2 * precision * recall) / (precision + recall)


def judge(answer: str, golds: Sequence[str], *, unanswerable: bool) -> tuple[float, float]:
    """(exact match, F1) of an answer to one question.

    Args:
        golds: acceptable answers; none where the question has no answer.
        unanswerable: by the rules of 2.0: golds without words do not count, and no golds means that "" is right.
    """
    if unanswerable:
        golds = [gold for gold in golds if normalized(gold)] or [""]
    empty = float(unanswerable)
    return max(exact(answer, gold) for gold in golds), max(
        f1(answer, gold, empty=empty) for gold in golds
    )


# The same for every model, too.
@functools.lru_cache(maxsize=1 << 17)
def by_chance(
    context: str, golds: tuple[str, ...], *, unanswerable: bool, seed: int
) -> tuple[float, float, float]:
    """Scores of answers that do not read the question: (exact match, F1) of a few words anywhere, F1 of the whole context."""
    words, generator = context.split(), random.Random(seed)
    first = generator.randrange(len(words))
    span = " ".join(words[first : first + generator.randint(1, _CHANCE_WORDS)])
    right, shared = judge(span, golds, unanswerable=unanswerable)
    return right, shared, judge(context, golds, unanswerable=unanswerable)[1]


def extremes(items: np.ndarray) -> Extremes:
    """A question that can be answered, and one that cannot, both answered wrong, or right."""
    kinds = np.unique(items[:, ANSWERABLE])
    wrong, right = np.zeros((2, len(kinds), items.shape[1]))
    for own in (wrong, right):
        own[:, ANSWERABLE], own[:, SAYS] = kinds, 1.0
    # Wrong: "no answer" where there is one, and an answer where there is none.
    wrong[:, NULL_MINUS_BEST] = np.where(
        kinds == 1, items[:, NULL_MINUS_BEST].max(), items[:, NULL_MINUS_BEST].min()
    )
    right[:, NULL_MINUS_BEST] = np.where(
        kinds == 1, items[:, NULL_MINUS_BEST].min(), items[:, NULL_MINUS_BEST].max()
    )
    right[:, [EXACT, F1]] = 1.0
    right[:, [BEST_EXACT, BEST_F1]] = kinds[:, None]
    return wrong, right


def _mean(column: int, where: bool | None = None) -> Callable[[np.ndarray], float]:
    def metric(items: np.ndarray) -> float:
        chosen = items if where is None else items[items[:, ANSWERABLE] == where]
        return float(np.mean(chosen[:, column])) if len(chosen) else float("nan")

    return metric


def _best(column: int, part: int) -> Callable[[np.ndarray], float]:
    return lambda items: best_threshold(items, column)[part]


def best_threshold(items: np.ndarray, column: int) -> tuple[float, float]:
    """(mean, threshold): the best that ordered threshold on these very questions could reach, and that threshold.

    Args:
        column: `BEST_EXACT` or `BEST_F1`, of the best answer that is not "no answer".

    A question is answered where its null score exceeds its best answer's by no more than the threshold.
    """
    order = np.argsort(items[:, NULL_MINUS_BEST], kind="stable")
    ordered = items[order]
    # Answering a question instead of leaving it: gains its score, or loses a right "no answer".
    gains = np.where(ordered[:, ANSWERABLE] == 1, ordered[:, column], -ordered[:, SAYS])
    reached = np.cumsum(gains)
    # Questions with equal scores are answered together.
    last = np.append(ordered[1:, NULL_MINUS_BEST] != ordered[:-1, NULL_MINUS_BEST], True)
    reached = np.where(last, reached, -np.inf)
    unanswered = float(np.sum(items[:, ANSWERABLE] == 0))
    top = int(np.argmax(reached))
    if reached[top] <= 0:
        return unanswered / len(items), float(ordered[0, NULL_MINUS_BEST]) - 1.0
    return (unanswered + float(reached[top])) / len(items), float(ordered[top, NULL_MINUS_BEST])


METRICS: Mapping[str, Callable[[np.ndarray], float]] = {"f1": _mean(F1), "exact": _mean(EXACT)}
METRICS_2_0: Mapping[str, Callable[[np.ndarray], float]] = {
    **METRICS,
    "HasAns_f1": _mean(F1, True),
    "HasAns_exact": _mean(EXACT, True),
    "NoAns_f1": _mean(F1, False),
    "NoAns_exact": _mean(EXACT, False),
    "best_f1": _best(BEST_F1, 0),
    "best_f1_threshold": _best(BEST_F1, 1),
    "best_exact": _best(BEST_EXACT, 0),
    "best_exact_threshold": _best(BEST_EXACT, 1),
}
