"""What is timed, and metrics of other libraries: keys of a recipe."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from octobert.core.frozen import Count, FrozenModel
from octobert.core.session import Goal


class Benchmark(FrozenModel):
    """What is timed.

    Args:
        batch: Batch sizes.
        sequence: Sequence lengths in tokens. `data` stands for the lengths of the evaluation rows.
        goal: `latency` times one inference after another. `throughput` also measures inferences at the same time.
        repeats: Timed runs of each model at each shape, one after another.
        within: Timing at a shape ends before `repeats` where every speedup is known to this share of it: 0.05 is five percent.
            It is 0, so that all repeats are timed, where the recipe limits times or searches.
        seconds: Time for each model at each shape. With `latency`, runs one after another, timed and untimed, instead of
            `repeats`. With `throughput`, inferences at the same time; 20 by default.
        streams: Inferences that run at the same time, for `throughput`. `auto`: as many as OpenVINO recommends for the device;
            in other runtimes one for each core.
        requests: Inferences in flight, for `throughput`; those above the streams wait. `auto`: as many as there are streams.
        warmup: Untimed runs of each model at each shape before its first timed one, beside those that there always are: the
            same inputs before each timed run, and with `throughput` every batch once in each request, for as long as a turn at
            the most.
        pause_ms: Pause before each turn of a model, in milliseconds.
        threads: Threads of one inference. 0: the runtime's default.
    """

    batch: tuple[Count, ...] = Field(default=(1, 8), min_length=1)
    sequence: tuple[Count | Literal["data"], ...] = Field(default=("data", 128), min_length=1)
    goal: Goal = "latency"
    repeats: Count = Field(default=30, ge=3)
    within: float = Field(default=0.05, ge=0, lt=1)
    seconds: float | None = Field(default=None, gt=0)
    streams: Count | Literal["auto"] = "auto"
    requests: Count | Literal["auto"] = "auto"
    warmup: int = Field(default=0, ge=0, le=2**20)
    # Threads of a runtime keep spinning for some milliseconds after a run. The next model waits until they stop.
    pause_ms: float = Field(default=10, ge=0)
    threads: int = Field(default=0, ge=0, le=2**20)

    def turns(self) -> tuple[int, float]:
        """Return how many turns each model has in which inferences run at the same time, and the seconds of each.

        Turns last about five seconds. Their number is even, and at least four: fewer give no interval.

        Example:
            >>> Benchmark(goal="throughput", seconds=60).turns()
            (12, 5.0)
        """
        seconds = self.seconds or 20.0
        turns = max(4, 2 * round(seconds / 10))
        return turns, seconds / turns


class EvaluateMetric(FrozenModel):
    """A metric of the library `evaluate`.

    Args:
        evaluate: Name of the metric, folder of a metric module, or a mapping of `name` and arguments of its `compute`.
    """

    evaluate: str | dict[str, Any]

    @property
    def name(self) -> str:
        """The name, or the folder."""
        return (
            self.evaluate if isinstance(self.evaluate, str) else str(self.evaluate.get("name", ""))
        )

    @property
    def arguments(self) -> dict[str, Any]:
        """What its `compute` gets besides predictions and references."""
        return (
            {}
            if isinstance(self.evaluate, str)
            else {k: v for k, v in self.evaluate.items() if k != "name"}
        )

    @model_validator(mode="after")
    def _named(self) -> EvaluateMetric:
        if not self.name:
            raise ValueError(
                "a metric of evaluate needs a name: {evaluate: {name: f1, average: macro}}"
            )
        return self
