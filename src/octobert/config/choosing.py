"""What a run aims at: limits on every model, and the keys of a recipe that make octobert find out which model to make.

`choose` lets octobert decide what to try. `search` tries what the user lists. Both judge models by figures: what is optimized
(`goal`), and what must hold (`limits`). `accuracy` and `speed` are limits on every model of a run.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, field_validator, model_validator

from octobert.core.frozen import Count, FrozenModel, Seed
from octobert.core.limits import UNITS, Figure, Limit, objective_named

# A drop and a speedup that nobody asks for: units were mistaken.
_LARGE_DROP, _LARGE_SPEEDUP = 0.5, 10
# Names of several figures in a recipe.
FigureNames = Annotated[
    tuple[str, ...],
    AfterValidator(lambda names: tuple(str(objective_named(name)) for name in names)),
]


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

    @property
    def limit(self) -> Limit:
        """The same as a limit."""
        return Limit(of="speedup", at_least=self.min_speedup)


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
    ties: FigureNames = ("metric", "size")
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
    trials: Count | None = None
    minutes: float | None = Field(default=None, gt=0)
    seed: Seed | None = None
    goals: FigureNames = Field(default=("latency",), min_length=1)
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
