"""The limits of a run, checked on its final figures: on rows that no search has seen, with their intervals.

A limit is `kept` where the interval of the figure is within it: a model that is beyond it is taken for one that keeps it in at
most 2.5 % of runs, whatever the number of rows. It is `missed` where the figure itself is beyond it, and `unclear` otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from octobert.config.choosing import UNITS, Limit, objective_named
from octobert.config.words import Phrasing
from octobert.core.estimate import Estimate, geometric_mean, quantile
from octobert.core.measurements import (
    Comparison,
    at_first_shape,
    first_of,
    in_order,
    score_named,
)
from octobert.core.results import Report
from octobert.core.selection import Check
from octobert.core.wording import rows_text

# Of the exponential distribution: 2.5 % lie above.
_EXPONENTIAL = 3.69
# Differences below this are rounding.
EXACT = 1e-9


def check(limits: Sequence[Limit], words: Phrasing, report: Report, name: str) -> tuple[Check, ...]:
    """Check everything that limits say on the final figures of a model. What was not measured is `unclear`.

    Args:
        words: of the run; its reference has the metrics of the float model.
        name: the model, as reports name it.
    """
    checks, compared = [], first_of(name, report.comparisons)
    reference = compared.reference if compared else ""
    for limit in limits:
        figure, theirs = (figure_of(report, model, words, limit.of) for model in (name, reference))
        drop = None if compared is None else _drop(compared, words.key(limit.of))
        rows = None if objective_named(limit.of).name in UNITS else report.data.evaluation_rows
        for part in limit.parts:
            value = None if theirs is None else theirs.value
            bound = bound_of(part, words, figure, drop, value)
            # Of a gain in time or size no number of rows decides.
            checks.append(_check(words, part, bound, rows if part.min_gain is None else None))
    return tuple(checks)


@dataclass(frozen=True)
class Bound:
    """A part of a limit, turned so that less is better.

    Args:
        figure: of a model.
        most: that it may be.
        scale: what an excess is divided by, to be compared with that of other limits.
        misses: the sentence about a model that is beyond it.
    """

    figure: Estimate
    most: float
    scale: float
    misses: str

    @property
    def excess(self) -> float:
        """How far the figure is beyond it; negative where it is within."""
        return self.figure.value - self.most


def bound_of(
    part: Limit,
    words: Phrasing,
    figure: Estimate | None,
    drop: Estimate | None,
    theirs: float | None,
) -> Bound | None:
    """What a part of a limit says; None where a figure that it is about is not known.

    Args:
        figure: the limited one of a model.
        drop: of a metric below the float model's.
        theirs: the figure of the float model.
    """
    if part.max_drop is not None:
        if drop is None:
            return None
        scale = max(abs(theirs or 0.0), EXACT)
        return Bound(drop, words.accepted_drop(part), scale, words.misses_drop(part, drop))
    if figure is None:
        return None
    for value, sign in ((part.at_least, -1), (part.at_most, 1)):
        if value is not None:
            scale, text = max(abs(value), EXACT), words.misses_value(part, figure)
            return Bound(figure.times(sign), sign * value, scale, text)
    if part.min_gain is None or theirs is None:
        return None
    share = 100 / max(abs(theirs), EXACT)
    ends = {end: share * (value - theirs) for end, value in figure}
    gain = Estimate(**ends).times(1 if part.objective.more_is_better else -1)
    return Bound(gain.times(-1), -part.min_gain, 100, words.misses_gain(part, gain))


def figure_of(report: Report, name: str, words: Phrasing, of: str) -> Estimate | None:
    """A figure of a model in the final measurement, with its interval; None where it was not measured."""
    figure = objective_named(of)
    if figure.name not in UNITS:
        score = score_named(words.key(of), report.scores.get(name, ()))
        if score is None or score.low is None or score.high is None:
            return None
        return Estimate(value=score.value, low=score.low, high=score.high)
    if figure.name == "speedup":
        shape = next(iter(in_order(report.latencies)), None)
        speedups = [
            speedup
            for speedup in report.speedups
            if speedup.candidate == name and speedup.shape == shape
        ]
        return speedups[0].ratio if speedups else None
    if figure.name == "throughput":
        measured = [throughput for throughput in report.throughputs if throughput.candidate == name]
        measured.sort(key=lambda throughput: (throughput.sequence != "data", throughput.batch))
        if not measured:
            return None
        return geometric_mean([turn.rows / turn.seconds for turn in measured[0].turns])
    if figure.name == "latency":
        timed = first_of(name, at_first_shape(report.latencies))
        if timed is None:
            return None
        share = (figure.percentile or 50) / 100
        found = quantile(timed.samples_ms, share)
        # All of a few rounds may be below the percentile, which then has no upper end.
        too_few = len(timed.samples_ms) < rounds_needed(share)
        return found.replaced(high=math.inf) if too_few else found
    footprint = first_of(name, report.footprints)
    if footprint is None:
        return None
    figures = {
        "load": footprint.load_ms,
        "size": footprint.size_bytes / 1e6,
        "memory": footprint.peak_memory_bytes / 1e6,
    }
    return Estimate.exactly(figures[figure.name])


def _drop(compared: Comparison, metric: str) -> Estimate | None:
    """How far a metric is below that of the float model, with its interval."""
    if metric != compared.metric:
        difference = compared.differences.get(metric)
        return None if difference is None else difference.times(-1)
    if (
        compared.difference is None
        or compared.low is None
        or compared.high is None
        or math.isnan(compared.difference)
    ):
        return None
    return Estimate(value=compared.difference, low=compared.low, high=compared.high).times(-1)


def _check(words: Phrasing, part: Limit, bound: Bound | None, rows: int | None) -> Check:
    """The record of a check.

    Args:
        part: of a limit.
        bound: what it says; None where the figure was not measured.
        rows: that the figure is of; None for times and sizes.
    """
    text, needed = words.limit(part), None
    if bound is None:
        reason = "the final measurement does not have this figure"
    elif bound.excess > EXACT:
        clear = bound.figure.low > bound.most
        reason = f"{bound.misses}{'' if clear else ' (the interval includes the limit)'}"
        return Check(limit=text, state="missed", clear=clear, reason=reason)
    elif bound.figure.high - bound.most <= EXACT:
        return Check(limit=text, state="kept")
    elif math.isinf(bound.figure.high):
        least = rounds_needed((part.objective.percentile or 50) / 100)
        reason = f"too few rounds to tell; set benchmark.repeats to {least} or more"
    elif rows is None:
        reason = "the interval of the measurement reaches beyond it"
    else:
        needed = rows_needed(rows, bound.figure.high - bound.figure.value, -bound.excess)
        enough = (
            "the figure is at the limit"
            if needed is None
            else f"about {needed:,} such rows would do"
        )
        reason = f"{rows_text(rows)} are too few to tell; {enough}"
    return Check(limit=text, state="unclear", reason=reason, rows=needed)


def rounds_needed(share: float) -> int:
    """The fewest rounds of which all are below a quantile of times in at most 2.5 % of runs.

    Example:
        >>> rounds_needed(0.5), rounds_needed(0.9), rounds_needed(0.99)
        (6, 36, 368)
    """
    return math.ceil(math.log(0.025) / math.log(share))


def rows_needed(rows: int, reach: float, room: float) -> int | None:
    """About how many rows would show that a limit is kept, if further rows are like those that were evaluated.

    The reach of an interval has two parts: of a mean, which falls with the square root of the rows, and of the one unseen row,
    which falls with their number.

    Args:
        rows: that were evaluated.
        reach: from the figure to the end of its interval.
        room: from the figure to the limit.

    Returns:
        None where there is no room, or where the figures say nothing.

    Example:
        >>> rows_needed(40, 0.088, 0.01), rows_needed(408, 0.012, 0.01)
        (370, 520)
    """
    if rows < 1 or not (EXACT < room < math.inf and reach * reach < math.inf):
        return None
    seen = max(reach**2 - (_EXPONENTIAL / rows) ** 2, 0.0) * rows
    # room² = seen / N + (3.69 / N)², solved for 1 / N.
    inverse = (-seen + math.sqrt(seen**2 + 4 * (_EXPONENTIAL * room) ** 2)) / (2 * _EXPONENTIAL**2)
    needed = max(1.0 / inverse, rows + 1.0)
    unit = 10 ** max(int(math.log10(needed)) - 1, 0)
    return int(math.ceil(needed / unit) * unit)
