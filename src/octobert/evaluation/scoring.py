"""Scores of a model's outputs, comparisons of two models on the same rows, and the rows that they answer otherwise."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from octobert.core.errors import DataError
from octobert.core.estimate import Estimate
from octobert.core.evidence import ChangedRow, ChangedRows, Mark, Transition
from octobert.core.heads import head_of
from octobert.core.measurements import Comparison, Score, score_named
from octobert.core.plain import Span, excerpt
from octobert.core.wording import probability
from octobert.evaluation.classes import class_changes, crossed
from octobert.evaluation.statistics import (
    CONFIDENCE,
    mcnemar,
    paired,
    reordered,
    scores_of,
    sign_test,
)
from octobert.tasks import Pair, Result, Task, unmeasured, unpacked
from octobert.tasks._classification import Classification

# Rows of a model that are kept, and the transitions of all of its rows.
MOST, _TRANSITIONS = 5_000, 50
# Characters of a text, at most; and of all texts together: a page with that much stays below 3 MB.
_LONGEST, _SHORTEST, _ALL = 2_000, 200, 3_500_000


def scores(task: Task, result: Result, *, seed: int) -> tuple[Score, ...]:
    """Compute every metric of a task with its confidence interval.

    Args:
        task: the task with its metrics.
        result: of the model.
        seed: of the bootstrap.

    Returns:
        The scores. Empty without gold; metrics that are undefined on these rows are left out.

    Raises:
        DataError: the task's primary metric is undefined on these rows.
    """
    gold = result.gold
    if not len(gold):
        return ()
    items = task.items(result)
    chance, extremes = task.chance(items), task.extremes(items)
    values = [
        score
        for name, metric in task.metrics.items()
        for score in scores_of(name, metric, items, extremes, seed=seed, chance=chance.get(name))
    ]
    if task.primary is not None and score_named(task.primary, values) is None:
        raise DataError(
            f"{task.primary} is not defined on the evaluated rows",
            got=f"{len(gold)} rows, for example with gold {task.expected(gold[0])}",
            fix="evaluate more rows, or rows that differ",
        )
    base = unmeasured(task)
    if isinstance(base, Classification) and (order := _order(base, base.items(result))):
        values = [score.replaced(order=order) for score in values]
    return tuple(values)


def _order(task: Classification, items: np.ndarray) -> str:
    """Say that rows seem to number the classes otherwise than the model does; empty where nothing says so."""
    order = reordered(items, max(len(task.labels), int(items.max()) + 1))
    if not order:
        return ""
    right = np.mean(np.asarray(order)[items[:, 0].astype(int)] == items[:, 1])
    seen = set(items[:, 1].astype(int))
    if 0 not in seen and all(order[label - 1] == label for label in seen):
        # They number the classes from 1; the order says nothing of classes that no row has.
        order = tuple(range(1, len(order) + 1))
    labels = str([*map(str, order)])[:_SHORTEST]
    return (
        f"its answers fit {right:.1%} of the rows if its classes are in another order. The rows seem to number them otherwise "
        f"than id2label of the model: if so, set labels: {labels} of the task text-classification, the numbers that the "
        "rows have, in the order of the logits"
    )


def compare(
    task: Task,
    names: tuple[str, str],
    results: tuple[Result, Result],
    *,
    seed: int,
) -> Comparison:
    """Compare two models on the same rows.

    Args:
        task: the task with its metrics.
        names: (candidate, reference).
        results: of the two, in this order.
        seed: of the bootstrap.
    """
    ours, theirs = results
    fidelity = task.fidelity(ours, theirs)
    difference = low = high = p_value = None
    differences: dict[str, Estimate] = {}
    if task.primary is not None and len(ours.gold):
        items, reference = task.items(ours), task.items(theirs)
        extremes = task.extremes(reference)
        for name, metric in task.metrics.items():
            value, below, above, p = paired(metric, items, reference, extremes, seed=seed)
            if name == task.primary:
                difference, low, high, p_value = value, below, above, p
            if below is not None and above is not None:
                differences[name] = Estimate(value=value, low=below, high=above)
        if task.primary == "accuracy" and head_of(task.head).shape == "classes":
            right = [
                model_items[:, 0] == model_items[:, 1]
                for model_items in map(unpacked, (items, reference))
            ]
            p_value = mcnemar(*right)
    expected = [task.expected(value) for value in ours.gold]
    return Comparison(
        candidate=names[0],
        reference=names[1],
        metric=task.primary if difference is not None else None,
        difference=difference,
        low=low,
        high=high,
        p_value=p_value,
        fidelity_name=fidelity.name,
        fidelity_kind=fidelity.kind,
        fidelity=fidelity.agreement,
        fidelity_chance=fidelity.chance,
        output_error=fidelity.error,
        divergence=fidelity.divergence,
        outputs=fidelity.outputs,
        differences=differences,
        classes=class_changes(task, ours, theirs),
        crossed=crossed(task, ours, theirs),
        changed=tuple(
            (i, expected[i] if expected else "", before, after)
            for i, before, after in fidelity.changed
        ),
    )


def changed_rows(
    task: Task, comparisons: Sequence[Comparison], results: Mapping[str, Result]
) -> tuple[ChangedRows, ...]:
    """Gather the rows that changed, model by model.

    Args:
        task: of the run.
        comparisons: of quantized models with their float baselines.
        results: model → its result.

    Returns:
        One entry for each comparison; none for tasks whose outputs are no answers, such as token states.
    """
    task = unmeasured(task)
    head = head_of(task.head)
    if head.shape == "states" and not head.pooled:
        return ()
    models = [_compared(task, c, (results[c.reference], results[c.candidate])) for c in comparisons]
    texts = sum(len(row.texts) for model in models for row in model.rows)
    length = min(_LONGEST, max(_SHORTEST, _ALL // max(texts, 1)))
    return tuple(
        model.replaced(rows=tuple(_cut(row, task.shown_whole, length) for row in model.rows))
        for model in models
    )


def _compared(task: Task, comparison: Comparison, pair: Pair) -> ChangedRows:
    """Summarize all rows that changed, and select those that are shown, with whole texts."""
    rows = [task.changed_row(pair, index, answers) for index, _, *answers in comparison.changed]
    if len(pair[0].gold):
        before, after = (task.quality(task.items(result)) for result in pair)
        if before is not None and after is not None:
            rows = [_with_outcome(row, float(before[row.row] - after[row.row])) for row in rows]
    outcomes = Counter(row.outcome for row in rows)
    every = Counter((move, row.outcome) for row in rows for move in row.transitions)
    counts = Counter(move for row in rows for move in row.transitions)
    transitions = [
        Transition(
            before=b,
            after=a,
            count=count,
            lost=every[(b, a), "lost"],
            gained=every[(b, a), "gained"],
        )
        for (b, a), count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    ]
    most = sorted(rows, key=lambda row: (-abs(row.change), row.row))[:MOST]
    return ChangedRows(
        candidate=comparison.candidate,
        reference=comparison.reference,
        total=len(rows),
        rows=tuple(sorted(most, key=lambda row: (-row.change, row.row))),
        lost=outcomes["lost"],
        gained=outcomes["gained"],
        transitions=tuple(transitions[:_TRANSITIONS]),
        sentence=sentence(counts, outcomes["lost"], outcomes["gained"]),
    )


def _with_outcome(row: ChangedRow, lost: float) -> ChangedRow:
    """Rows that lose as much of the task's measure are ordered by their scores."""
    outcome = "lost" if lost > 0 else "gained" if lost < 0 else "other"
    change = lost + math.tanh(row.change) / 1000
    return row.replaced(outcome=outcome, change=change)


def _cut(row: ChangedRow, whole: Collection[int], length: int) -> ChangedRow:
    """A row whose long texts are cut around their marks, but for those that are shown whole."""
    sides = [row.marks, row.before.marks, row.after.marks]
    texts, places = list(row.texts), dict[tuple[int, int, int], Span | None]()
    for index, text in enumerate(row.texts):
        if len(text) <= length or index in whole:
            continue
        # What the models say comes before what is expected, of which there may be several places.
        spans: list[Span] = list(
            dict.fromkeys(
                (m.start, m.end) for m in (*sides[1], *sides[2], *sides[0]) if m.text == index
            )
        )
        texts[index], new_spans = excerpt(text, spans, length)
        places |= {(index, *span): place for span, place in zip(spans, new_spans, strict=True)}
    if not places and texts == list(row.texts):
        return row
    marks, before, after = (_placed(side, places) for side in sides)
    return row.replaced(
        texts=tuple(texts),
        whole=False,
        marks=marks,
        before=row.before.replaced(marks=before),
        after=row.after.replaced(marks=after),
    )


def _placed(
    marks: Sequence[Mark], places: Mapping[tuple[int, int, int], Span | None]
) -> tuple[Mark, ...]:
    """Marks in texts that were cut, without those whose part was left out."""
    spans = [
        places.get((mark.text, mark.start, mark.end), (mark.start, mark.end)) for mark in marks
    ]
    placed = [(mark, span) for mark, span in zip(marks, spans, strict=True) if span is not None]
    return tuple(mark.replaced(start=start, end=end) for mark, (start, end) in placed)


def sentence(counts: Mapping[tuple[str, str], int], lost: int, gained: int) -> str:
    """Say what changes have in common, where it is more than chance: the exact two-sided sign test at 5 %.

    Two things are tested. Whether changes between two answers went one way: of several pairs of answers, the clearest,
    corrected for their number (Bonferroni). And whether more rows lost than gained, which is McNemar's test.

    Args:
        counts: (from, to) → how often.
        lost, gained: rows that became worse, and better.

    Returns:
        An empty text where nothing stands out.

    Example:
        >>> sentence({("equivalent", "different"): 8}, 6, 2)
        'All 8 changes went from equivalent to different (p < 0.01); 6 rows are worse and 2 better.'
    """
    ways = [
        (a, b)
        for a, b in itertools.combinations(sorted({end for move in counts for end in move}), 2)
    ]
    ways = [(a, b) if counts.get((a, b), 0) >= counts.get((b, a), 0) else (b, a) for a, b in ways]
    ways = [way for way in ways if way in counts]
    tested = {way: sign_test(counts[way], counts.get(way[::-1], 0)) * len(ways) for way in ways}
    way = min(tested, key=lambda move: (tested[move], -counts[move]), default=None)
    p_value, parts = sign_test(lost, gained), []
    if way is not None and tested[way] < 1 - CONFIDENCE:
        one, back, every = counts[way], counts.get(way[::-1], 0), sum(counts.values())
        number = f"All {one}" if not back else f"{one} of {one + back}"
        where = f"from {way[0]} to {way[1]}" if one + back == every else f"to {way[1]}"
        among = "" if one + back == every else f" between {way[0]} and {way[1]}"
        parts.append(f"{number} changes{among} went {where} ({probability(tested[way])})")
    outcome = f"{lost} {'row is' if lost == 1 else 'rows are'} worse and {gained} better"
    if p_value < 1 - CONFIDENCE:
        parts.append(f"{outcome} ({probability(p_value)})")
    elif parts and lost + gained:
        parts.append(outcome)
    return f"{'; '.join(parts)}." if parts else ""
