"""How a finished package is opened: goals, settings, and what `octobert tune` measured for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

from pydantic import Field

from octobert.core import environment
from octobert.core.errors import RecipeError
from octobert.core.estimate import Estimate
from octobert.core.frozen import FrozenModel, Row, Tabular
from octobert.core.session import RuntimeOption, SessionOptions

Goal = Literal["latency", "throughput"]
GOALS: tuple[Goal, ...] = get_args(Goal)
# Most tokens of one inference, padding included. With more, activations leave the caches of any CPU, and memory use grows.
MAX_RUN_TOKENS = 2048
# Threads that a setting may start: several per core, and on any machine as many as a large one has.
_PER_CORE, _ALWAYS_ALLOWED = 4, 64


class Setting(FrozenModel):
    """One way to open a model and to batch its inputs.

    Args:
        streams: inferences that run at the same time.
        threads: threads of one inference; 0 leaves the number to the runtime.
        tokens: most tokens of one inference, padding included.
        runtime_options: options of the runtime by name, of those that the target lists in `RUNTIME_OPTIONS`.
    """

    streams: int = Field(default=1, ge=1)
    threads: int = Field(default=0, ge=0)
    tokens: int = Field(default=MAX_RUN_TOKENS, ge=1)
    runtime_options: Mapping[str, RuntimeOption] = Field(default_factory=dict)

    def options(self, **others: Any) -> SessionOptions:
        """Return this setting as options of a session.

        Args:
            others: further fields of `SessionOptions`.
        """
        return SessionOptions(
            streams=self.streams,
            threads=self.threads,
            runtime_options=self.runtime_options,
            **others,
        )

    def check(self, listed: Mapping[str, tuple[RuntimeOption, ...]], *, where: str) -> None:
        """Check that this machine and a target can use the setting.

        Args:
            listed: `RUNTIME_OPTIONS` of the target.
            where: who set it, for the error.

        Raises:
            RecipeError: it would start too many threads, or has an option or a value that the target does not list.
        """
        most, threads = (
            max(_ALWAYS_ALLOWED, _PER_CORE * environment.cores()),
            self.streams * max(1, self.threads),
        )
        if threads > most:
            got, fix = (
                f"{self.streams} streams of {self.threads or 1} threads",
                "set fewer streams or threads",
            )
            raise RecipeError(
                "too many threads for this machine",
                where=where,
                got=got,
                expected=f"at most {most}",
                fix=fix,
            )
        for name, value in self.runtime_options.items():
            values = listed.get(name, ())
            if not any(type(value) is type(each) and value == each for each in values):
                got, expected = (
                    f"{name}: {value!r}"[:100],
                    ", ".join(map(repr, values)) or ", ".join(listed) or "no options",
                )
                raise RecipeError(
                    "not an option of the target that may be set",
                    where=where,
                    got=got,
                    expected=expected,
                )


class Tried(FrozenModel):
    """One setting that a search has timed.

    Args:
        ratio: median time divided by the median time of the default setting; None where the model could not be opened.
        problem: why the model could not be opened.
    """

    setting: Setting
    ratio: float | None
    problem: str | None = None


class Tuned(Tabular):
    """Result of a search for the fastest setting.

    Args:
        setting: the fastest setting, or the default where no other was significantly faster.
        ratio: its time divided by the time of the default setting.
        default_ms: median time of one round of work with the default setting.
        rows: rows in one round of work.
        tried: every setting that was timed, in order.
    """

    goal: Goal
    setting: Setting
    ratio: Estimate
    default_ms: float
    rows: int
    tried: tuple[Tried, ...]

    def to_rows(self) -> list[Row]:
        """One row per setting that was timed."""
        return [
            {**tried.setting.model_dump(), "ratio": tried.ratio, "problem": tried.problem}
            for tried in self.tried
        ]


def goal_named(name: str, *, where: str = "goal") -> Goal:
    """Return a goal by its name.

    Raises:
        RecipeError: there is no goal of that name.

    Example:
        >>> goal_named("throughput")
        'throughput'
    """
    for goal in GOALS:
        if goal == name:
            return goal
    raise RecipeError("unknown goal", where=where, got=repr(name), expected=" or ".join(GOALS))


def default_setting(goal: Goal) -> Setting:
    """Return the setting of a package that was not tuned.

    Args:
        goal: for `latency` one inference uses all cores; for `throughput` each core runs one inference.
    """
    return Setting(streams=environment.cores() if goal == "throughput" else 1)
