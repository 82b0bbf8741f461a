"""What a run aims at: figures, limits on them, and the keys of a recipe that make octobert find out which model to make.

`choose` lets octobert decide what to try. `search` tries what the user lists. Both judge models by figures: what is optimized
(`goal`), and what must hold (`limits`). `accuracy` and `speed` are limits on every model of a run.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, field_validator, model_validator

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
# A drop and a speedup that nobody asks for: units were mistaken.
_LARGE_DROP, _LARGE_SPEEDUP = 0.5, 10
# Of metrics that are computed in another order.
_ROUNDING = 1e-12
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


# The names of figures in a recipe: one, or several.
Figure = Annotated[str, AfterValidator(lambda name: str(objective_named(name)))]
Figures = Annotated[
    tuple[str, ...],
    AfterValidator(lambda names: tuple(str(objective_named(name)) for name in names)),
]


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
        if getattr(self, wrong) is not None and getattr(self, right) is None:
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
        """The largest drop of a metric that is accepted, negative where it has to rise; None where any is.

        Args:
            float_value: metric of the float model.
        """
        drops = []
        if self.max_drop is not None:
            drops.append(self.max_drop * (abs(float_value) if self.relative else 1.0))
        if self.min_gain is not None:
            drops.append(-self.min_gain / 100 * abs(float_value))
        return min(drops, default=None)

    def accepts(self, value: float, float_value: float) -> bool:
        """Check that a value of a metric is within the limit.

        Args:
            float_value: metric of the float model.
        """
        drop = self.accepted_drop(float_value)
        within = drop is None or float_value - value <= drop + _ROUNDING
        return within and (self.at_least is None or value >= self.at_least)

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


def doubts(limits: Iterable[Limit]) -> list[str]:
    """Return the reasons why limits are hardly meant like this, as sentences without a full stop.

    Example:
        >>> doubts([Limit(max_drop=0.01), Limit(of="speedup", at_least=100)])
        ['a speedup of 100 is wanted; 8 bits are seldom more than 4 times as fast']
    """
    sentences = []
    for limit in limits:
        drop, least = limit.max_drop or 0.0, limit.at_least or 0.0
        if drop >= _LARGE_DROP:
            part = (
                f"{100 * drop:.4g} % of the float model's value"
                if limit.relative
                else f"{100 * drop:.4g} points"
            )
            sentences.append(
                f"a drop of {drop:g} accepts the loss of {part}; 0.01 is one {'percent' if limit.relative else 'point'}"
            )
        if limit.objective.name not in UNITS and least > 1:
            sentences.append(
                f"{limit.of} is to be at least {least:g}; most metrics are between 0 and 1, and 0.9 is 90 %"
            )
        if limit.objective.name == "speedup" and least >= _LARGE_SPEEDUP:
            sentences.append(
                f"a speedup of {least:g} is wanted; 8 bits are seldom more than 4 times as fast"
            )
    return sentences


# One limit stands for a list of it.
Limits = Annotated[
    tuple[Limit, ...],
    BeforeValidator(lambda value: (value,) if isinstance(value, dict | Limit) else value),
]


class Accuracy(FrozenModel):
    """The accuracy that a quantized model must reach, on rows that are neither calibration rows nor evaluation rows.

    Args:
        max_drop: Largest accepted drop of the metric, compared with the float model on the same runtime. 0.01 is one point.
        relative: `max_drop` is a fraction of the float model's metric.
        at_least: Smallest accepted value of the metric.
        metric: Name of the metric. Default: the task's first metric.
        minutes: Time limit of the search. The best plan by then is used.
        fallback: What layers fall back to: `float`, or `int16` activations. `auto` uses int16 where the target supports it.
    """

    max_drop: float | None = Field(default=None, ge=0)
    relative: bool = False
    at_least: float | None = None
    metric: str | None = None
    minutes: float = Field(default=10, gt=0)
    fallback: Literal["auto", "float", "int16"] = "auto"

    @model_validator(mode="after")
    def _some_criterion(self) -> Accuracy:
        if self.max_drop is None and self.at_least is None:
            raise ValueError("give max_drop, at_least, or both")
        return self

    @property
    def limit(self) -> Limit:
        """The same as a limit."""
        return Limit(
            of=self.metric or "metric",
            max_drop=self.max_drop,
            relative=self.relative,
            at_least=self.at_least,
        )


class Speed(FrozenModel):
    """How much faster than the float model a quantized model must be.

    Args:
        min_speedup: Smallest accepted speedup over the float baseline of the same runtime, at every timed shape. It is met
            where the 95 % interval of the speedup is above it. Latency that is to fall by a fifth is a speedup of 1.25.
    """

    min_speedup: float = Field(gt=0)


class Choose(FrozenModel):
    """Let octobert find the best model for this machine.

    Args:
        goal: What is optimized: `latency`, `latency@p90`, `throughput`, `size`, `memory`, or a metric of the task.
        limits: What the model must keep. Default: the main metric drops by at most 0.01.
        ties: Figures that decide between models that are equally good within the noise, the most important one first.
        minutes: Time limit of the search and of the final measurement. Where that would take most of it, less is measured.
        vary: Recipe keys that may be varied, such as `calibrate`. Default: all that the plugins list and the recipe does not
            set.
        tune: Also search for the fastest options of the runtime for the chosen model.
    """

    goal: Figure = "latency"
    limits: Limits = (Limit(max_drop=0.01),)
    ties: Figures = ("metric", "size")
    minutes: float = Field(default=20, gt=0)
    vary: tuple[str, ...] | None = None
    tune: bool = True

    @property
    def goals(self) -> tuple[str, ...]:
        """The goal, and the figures that decide between equals."""
        return (self.goal, *(tie for tie in self.ties if tie != self.goal))


class Search(FrozenModel):
    """Try the combinations of listed values of recipe keys.

    Args:
        space: Recipe key → values to try, as `--set` takes them: `{calibrate: [minmax, mse], quantize.static.per_channel:
            [true, false]}`. `targets` lists single targets.
        sampler: `tpe` proposes what earlier trials suggest, `random` draws, `exhaustive` tries all combinations.
        order: `joint` varies all keys together; `one-pass-at-a-time` one key after the other, in the order of `space`, and
            keeps the best value of each.
        trials: Largest number of trials. Default: all combinations, or 20 with `tpe` and `random`.
        minutes: Time limit. Default: none.
        seed: Of the sampler. Default: the recipe's.
        goals: What is optimized, the most important figure first.
        limits: What the chosen model must keep.
    """

    space: dict[str, tuple[Any, ...]] = Field(min_length=1)
    sampler: Literal["tpe", "random", "exhaustive"] = "tpe"
    order: Literal["joint", "one-pass-at-a-time"] = "joint"
    trials: int | None = Field(default=None, ge=1)
    minutes: float | None = Field(default=None, gt=0)
    seed: int | None = Field(default=None, ge=0)
    goals: Figures = Field(default=("latency",), min_length=1)
    limits: Limits = ()

    @field_validator("goals", mode="before")
    @classmethod
    def _one_goal(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value

    @field_validator("space", mode="before")
    @classmethod
    def _values_are_lists(cls, value: Any) -> Any:
        for key, values in value.items() if isinstance(value, dict) else ():
            if not isinstance(values, list | tuple) or not values:
                raise ValueError(f"{key}: give a list of values to try")
        return value
