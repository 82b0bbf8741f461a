"""The trials of a search: each configuration is tried once, within a time limit.

A strategy is a function of `Trials`: it asks for the results of configurations, one after another, and ends when it has what it
wants, or when there is no time for another trial. Strategies are `quantization.search` (layers in float) and
`evaluation.tuning` (settings of a runtime). Searches over whole recipes have trials of their own kind (`pipeline.choosing`):
their models are made by steps, whose results outlive the process.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable, Mapping
from typing import Generic, TypeVar

C = TypeVar("C", bound=Hashable)
R = TypeVar("R")


class Trials(Generic[C, R]):
    """The configurations that were tried, with their results.

    Args:
        attempt: tries a configuration.
        seconds: time limit, from now on. A trial begins only if the longest one so far would end within it; the first one
            always begins.
        results: those of an interrupted search: configuration → result.
        longest: seconds of the longest trial of that search.
        clock: seconds since any moment.

    Attributes:
        results: configuration → result, in the order of the trials.
        out_of_time: whether the time limit has kept a trial from beginning.

    Example:
        >>> trials = Trials(lambda config: config**2)
        >>> trials.result(3), trials.result(3), trials.results
        (9, 9, {3: 9})
    """

    def __init__(
        self,
        attempt: Callable[[C], R],
        *,
        seconds: float = math.inf,
        results: Mapping[C, R] | None = None,
        longest: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.results = dict(results or {})
        self.out_of_time = False
        self._attempt, self._clock = attempt, clock
        self._longest, self._ends = longest, clock() + seconds

    def result(self, config: C) -> R | None:
        """The result of a configuration, which is tried if that is new; None where there is no time for it."""
        if config in self.results:
            return self.results[config]
        started = self._clock()
        if self.results and started + self._longest > self._ends:
            self.out_of_time = True
            return None
        result = self.results[config] = self._attempt(config)
        self._longest = max(self._longest, self._clock() - started)
        return result
