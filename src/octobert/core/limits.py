"""Limits on the figures of a model, and whether a figure keeps one. Everything that decides this asks `check`.

A limit is `kept` where the whole interval of the figure is within it: a model that is beyond it is taken for one that keeps it
in at most 2.5 % of runs, whatever the number of rows. It is `missed` where the figure itself is beyond it, and `unclear`
otherwise.
"""

from __future__ import annotations

import math
import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from octobert.core.estimate import Estimate
from octobert.core.frozen import FrozenModel

# Figures of a model besides the metrics of its task, with their units. Of the first four, less is better.
UNITS = {
    "latency": "ms",
    "size": "MB",
    "memory": "MB",
    "load": "ms",
    "throughput": "rows/s",
    "speedup": "×",
}
# Figures that cost something beside time.
COSTS = ("size", "memory", "load")
# Differences below this are rounding.
EXACT = 1e-9
# Of the exponential distribution: 2.5 % lie above.
_EXPONENTIAL = 3.69
_PERCENTILE = re.compile(r"p(\d{1,2}(?:\.\d)?)")


class Objective(FrozenModel):
    """The name of a figure, taken apart.

    Args:
        name: a key of `UNITS`, or a metric of the task; `metric` is its main metric.
        percentile: of the latency; None to compare each text with itself.
    """

    name: str
    percentile: float | None = None

    def __str__(self) -> str:
        return self.name if self.percentile is None else f"{self.name}@p{self.percentile:g}"

    @property
    def more_is_better(self) -> bool:
        """Return whether a larger value is better, as of all metrics."""
        return UNITS.get(self.name) not in ("ms", "MB")


def objective_named(text: str) -> Objective:
    """Return the figure of a name.

    Args:
        text: `latency`, `latency@p90`, `throughput`, `size`, `memory`, `load`, `speedup`, or a metric, such as `mrr@10`.

    Raises:
        ValueError: it is not the name of a figure.

    Example:
        >>> objective_named("latency@p90").percentile, objective_named("mrr@10").name
        (90.0, 'mrr@10')
    """
    name, at, percentile = text.partition("@")
    if name and (not at or (name not in UNITS and percentile.isdecimal())):
        return Objective(name=text)
    match = _PERCENTILE.fullmatch(percentile)
    if name != "latency" or match is None:
        raise ValueError(f'"{text}" is not a figure; a percentile is written latency@p90')
    return Objective(name=name, percentile=float(match[1]))


# The name of a figure in a recipe.
Figure = Annotated[str, AfterValidator(lambda name: str(objective_named(name)))]


def metric_named(name: str, primary: str | None) -> str:
    """Return the name of a figure in records: that of the main metric for `metric`.

    Args:
        name: Of the figure.
        primary: The main metric; None for data without labels.

    Example:
        >>> metric_named("metric", "f1"), metric_named("size", "f1")
        ('f1', 'size')
    """
    return primary or "" if name == "metric" else name


class Limit(FrozenModel):
    """What a model must keep.

    Args:
        of: The figure: a metric of the task (`metric` is the main one), or `latency` in ms (`latency@p90` for a percentile),
            `throughput` in rows per second, `speedup` over the float model, `size`, `memory` or `load`.
        max_drop: Largest accepted drop of a metric, compared with the float model. 0.01 is one point.
        relative: `max_drop` is a fraction of the float model's metric.
        at_least: Smallest accepted value.
        at_most: Largest accepted value.
        min_gain: Smallest accepted improvement over the float model, in percent of its value. Latency that falls by a fifth has
            improved by 20.
    """

    of: Figure = "metric"
    max_drop: float | None = Field(default=None, ge=0)
    relative: bool = False
    at_least: float | None = None
    at_most: float | None = None
    min_gain: float | None = None

    @model_validator(mode="after")
    def _says_something(self) -> Limit:
        if all(
            value is None for value in (self.max_drop, self.at_least, self.at_most, self.min_gain)
        ):
            raise ValueError("a limit needs one of max_drop, at_least, at_most, min_gain")
        if self.max_drop is not None and self.objective.name in UNITS:
            raise ValueError(
                f"max_drop is for metrics of the task; use at_most or at_least for {self.of}"
            )
        more = self.objective.more_is_better
        right, wrong = ("at_least", "at_most") if more else ("at_most", "at_least")
        if getattr(self, wrong) is not None:
            better = "more" if more else "less"
            raise ValueError(
                f"of {self.of} {better} is better, so {wrong} limits nothing that matters; use {right}"
            )
        if self.min_gain is not None and self.min_gain >= 100 and not more:
            raise ValueError(
                f"{self.of} cannot fall by {self.min_gain:g} %; min_gain: 20 is a fifth less"
            )
        return self

    def accepted_drop(self, float_value: float) -> float | None:
        """`max_drop` in the unit of the metric; None where the limit does not say it.

        Args:
            float_value: metric of the float model.
        """
        if self.max_drop is None:
            return None
        return self.max_drop * (abs(float_value) if self.relative else 1.0)

    @property
    def objective(self) -> Objective:
        """The figure that it limits."""
        return objective_named(self.of)

    @property
    def parts(self) -> tuple[Limit, ...]:
        """Each thing that it says as a limit of its own."""
        said = {key: getattr(self, key) for key in ("max_drop", "at_least", "at_most", "min_gain")}
        return tuple(
            Limit(of=self.of, relative=self.relative, **{key: value})
            for key, value in said.items()
            if value is not None
        )


class Check(FrozenModel):
    """One limit, checked on a figure of a model.

    Args:
        limit: with one part: a drop, a smallest or largest value, or a gain.
        state: `kept`: the interval of the figure is within the limit; `missed`: the figure is beyond it; `unmeasured`: the
            figure is not known; else `unclear`.
        figure: what is compared with `bound`: the drop of a metric, the gain in percent, or the value in its unit; None where
            it is not known.
        bound: the largest accepted drop or value, or the smallest accepted gain or value.
        reference: the value of the float model; None where it is not known.
        rows: about how many rows would decide, where more rows would.
        shape: of the times, where a limit is on the speed at each timed shape; else empty.
    """

    limit: Limit
    state: Literal["kept", "unclear", "missed", "unmeasured"]
    figure: Estimate | None = None
    bound: float | None = None
    reference: float | None = None
    rows: int | None = None
    shape: str = ""

    @property
    def excess(self) -> float:
        """How far the figure is beyond the bound; negative where it is within, 0 where it is not known."""
        return 0.0 if self.figure is None else self._beyond(self.figure.value)

    @property
    def relative_excess(self) -> float:
        """The same relative to the limit, or for drops to the float model's value, so that excesses can be added."""
        if self.limit.min_gain is not None:
            return self.excess / 100
        scale = self.reference if self.limit.max_drop is not None else self.bound
        return self.excess / max(abs(scale or 0.0), EXACT)

    @property
    def is_clear(self) -> bool:
        """True where the limit is missed by the whole interval of the figure."""
        return self.figure is not None and self._ends()[0] > 0 and self.state == "missed"

    def _ends(self) -> tuple[float, float]:
        """How far the ends of the interval are beyond the bound, the smaller one first."""
        assert self.figure is not None
        low, high = sorted(map(self._beyond, (self.figure.low, self.figure.high)))
        return low, high

    def _beyond(self, value: float) -> float:
        wants_more = self.limit.at_least is not None or self.limit.min_gain is not None
        beyond = value - (self.bound or 0.0)
        return -beyond if wants_more else beyond


def check(
    limit: Limit,
    figure: Estimate | None,
    *,
    drop: Estimate | None = None,
    reference: float | None = None,
    rows: int | None = None,
) -> tuple[Check, ...]:
    """Check each part of a limit on the figures of a model.

    Args:
        limit: on one figure.
        figure: the limited one, in its unit; None where it was not measured.
        drop: of a metric below the float model's.
        reference: value of the float model.
        rows: that the figure was measured on, where more rows would make it surer.
    """
    return tuple(_checked(part, figure, drop, reference, rows) for part in limit.parts)


def _checked(
    part: Limit,
    figure: Estimate | None,
    drop: Estimate | None,
    reference: float | None,
    rows: int | None,
) -> Check:
    if part.max_drop is not None:
        figure, bound = drop, part.accepted_drop(reference or 0.0)
    elif part.min_gain is not None:
        figure, bound = _gain(part, figure, reference), part.min_gain
        # Of a gain in time or size no number of rows decides.
        rows = None
    else:
        bound = part.at_least if part.at_least is not None else part.at_most
    if figure is None:
        return Check(limit=part, state="unmeasured", reference=reference)
    found = Check(limit=part, state="kept", figure=figure, bound=bound, reference=reference)
    if found.excess > EXACT:
        return found.replaced(state="missed")
    room, end = -found.excess, found._ends()[1]
    if end <= EXACT:
        return found
    needed = None if rows is None else rows_needed(rows, end + room, room)
    return found.replaced(state="unclear", rows=needed)


def _gain(part: Limit, figure: Estimate | None, reference: float | None) -> Estimate | None:
    """The improvement over the float model in percent of its value."""
    if figure is None or reference is None:
        return None
    share = 100 / max(abs(reference), EXACT)
    ends = {end: share * (value - reference) for end, value in figure}
    return Estimate(**ends).times(1 if part.objective.more_is_better else -1)


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
