"""The rows that quantized models answer otherwise than float: what people need to judge them, and what they have in common."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from octobert.core.evidence import Answer, ChangedRow, ChangedRows, Mark, Transition
from octobert.core.measurements import Comparison
from octobert.core.plain import Span, excerpt
from octobert.core.wording import probability
from octobert.data.tokenization import EncodedTexts
from octobert.evaluation.statistics import CONFIDENCE, sign_test
from octobert.tasks import Explains, Explanation, Outputs, Pair, Task, unmeasured

# Rows of a model that are kept, and the transitions of all of its rows.
MOST, _TRANSITIONS = 5_000, 50
# Characters of a text, at most; and of all texts together: a page with that much stays below 3 MB.
_LONGEST, _SHORTEST, _ALL = 2_000, 200, 3_500_000


def changed_rows(
    task: Task,
    comparisons: Sequence[Comparison],
    outputs: Mapping[str, Outputs],
    encoded: EncodedTexts,
    gold: Sequence[Any],
) -> tuple[ChangedRows, ...]:
    """Gather the rows that changed, model by model.

    Args:
        task: of the run.
        comparisons: of quantized models with their float baselines.
        outputs: model → outputs by name.
        encoded: the evaluation rows.
        gold: expected value of each item; empty without labels.

    Returns:
        One entry for each comparison; none for tasks whose outputs are no answers, such as token states.
    """
    task = unmeasured(task)
    if task.head == "feature-extraction":
        return ()
    pairs = [Pair(outputs[c.reference], outputs[c.candidate], encoded, gold) for c in comparisons]
    found = [
        _compared(task, comparison, pair)
        for comparison, pair in zip(comparisons, pairs, strict=True)
    ]
    texts = sum(len(row.texts) for _, rows in found for row, _ in rows)
    length = min(_LONGEST, max(_SHORTEST, _ALL // max(texts, 1)))
    return tuple(
        made.model_copy(update={"rows": tuple(_cut(*each, length) for each in rows)})
        for made, rows in found
    )


def _compared(
    task: Task, comparison: Comparison, pair: Pair
) -> tuple[ChangedRows, list[tuple[ChangedRow, Explanation]]]:
    """What is said of all rows that changed; and those that are kept, with whole texts."""
    quality = _qualities(task, pair)
    explanations = _explanations(
        task, pair, [(index, before, after) for index, _, before, after in comparison.changed]
    )
    rows = [
        (_row(index, expected, explanation, quality), explanation)
        for (index, expected, _, _), explanation in zip(
            comparison.changed, explanations, strict=True
        )
    ]
    outcomes = Counter(row.outcome for row, _ in rows)
    every = Counter((move, row.outcome) for row, _ in rows for move in row.transitions)
    counts = Counter(move for row, _ in rows for move in row.transitions)
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
    most = sorted(rows, key=lambda each: (-abs(each[0].change), each[0].row))[:MOST]
    kept = sorted(most, key=lambda each: (-each[0].change, each[0].row))
    made = ChangedRows(
        candidate=comparison.candidate,
        reference=comparison.reference,
        total=len(rows),
        rows=tuple(row for row, _ in kept),
        lost=outcomes["lost"],
        gained=outcomes["gained"],
        transitions=tuple(transitions[:_TRANSITIONS]),
        sentence=sentence(counts, outcomes["lost"], outcomes["gained"]),
    )
    return made, kept


def _explanations(
    task: Task, pair: Pair, changed: Sequence[tuple[int, str, str]]
) -> Iterable[Explanation]:
    """Of a task that explains nothing, the answers as text."""
    if isinstance(task, Explains):
        return task.explain(pair, changed)
    return [
        Explanation(pair.encoded.texts[i], [Answer(text=b), Answer(text=a)], transitions=((b, a),))
        for i, b, a in changed
    ]


def _qualities(task: Task, pair: Pair) -> np.ndarray | None:
    """[items, 2] the task's measure on each item alone, of both models; None where it has none."""
    if not len(pair.gold) or not isinstance(task, Explains):
        return None
    before, after = (
        task.quality(task.items(outputs, pair.encoded, pair.gold)) for outputs in pair.sides
    )
    return None if before is None or after is None else np.stack([before, after], axis=1)


def _row(
    index: int, expected: str, explanation: Explanation, quality: np.ndarray | None
) -> ChangedRow:
    lost = 0.0 if quality is None else float(quality[index, 0] - quality[index, 1])
    # Rows that lose as much are ordered by their scores.
    tie = explanation.shift if quality is None else math.tanh(explanation.shift) / 1000
    return ChangedRow(
        row=index,
        texts=explanation.texts,
        expected=expected if explanation.expected is None else explanation.expected,
        before=explanation.answers[0],
        after=explanation.answers[1],
        outcome="lost" if lost > 0 else "gained" if lost < 0 else "other",
        marks=explanation.marks,
        change=lost + tie,
        transitions=explanation.transitions,
    )


def _cut(row: ChangedRow, explanation: Explanation, length: int) -> ChangedRow:
    """A row whose long texts are cut around their marks."""
    sides = [row.marks, row.before.marks, row.after.marks]
    texts, places = list(row.texts), dict[tuple[int, int, int], Span | None]()
    for index, text in enumerate(row.texts):
        if len(text) <= length or index in explanation.questions:
            continue
        # What the models say comes before what is expected, of which there may be several places.
        spans: list[Span] = list(
            dict.fromkeys(
                (m.start, m.end) for m in (*sides[1], *sides[2], *sides[0]) if m.text == index
            )
        )
        texts[index], kept = excerpt(text, spans, length)
        places |= {(index, *span): place for span, place in zip(spans, kept, strict=True)}
    if not places and texts == list(row.texts):
        return row
    marks, before, after = (_placed(side, places) for side in sides)
    return row.model_copy(
        update={
            "texts": tuple(texts),
            "whole": False,
            "marks": marks,
            "before": row.before.model_copy(update={"marks": before}),
            "after": row.after.model_copy(update={"marks": after}),
        }
    )


def _placed(
    marks: Sequence[Mark], places: Mapping[tuple[int, int, int], Span | None]
) -> tuple[Mark, ...]:
    """Marks in texts that were cut, without those whose part was left out."""
    spans = [
        places.get((mark.text, mark.start, mark.end), (mark.start, mark.end)) for mark in marks
    ]
    placed = [(mark, span) for mark, span in zip(marks, spans, strict=True) if span is not None]
    return tuple(
        mark.model_copy(update={"start": start, "end": end}) for mark, (start, end) in placed
    )


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
    way = min(tested, key=lambda each: (tested[each], -counts[each]), default=None)
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
