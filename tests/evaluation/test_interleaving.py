"""The order of turns, candidates that are hopelessly slow, and rounds that are fitted to a time limit."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest

from octobert.core.estimate import quantile
from octobert.evaluation import interleaving
from octobert.evaluation.interleaving import interleave, unless_hopeless, until_narrow


class Turns:
    """Candidates whose turns take what a script says, in milliseconds on a clock of their own; they keep the order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **ms: list[float]) -> None:
        self._ms, self._now, self.rounds, self.progress = ms, 0.0, [""] * 99, []
        monkeypatch.setattr(interleaving.time, "perf_counter", lambda: self._now)

    def __call__(self, name: str, number: int) -> float:
        self.rounds[number] += name
        ms = self._ms[name][number % len(self._ms[name])]
        self._now += ms / 1000
        return ms

    def take(self, rounds: int, **options: Any) -> list[list[float]]:
        on_round = lambda done, of: self.progress.append((done, of))  # noqa: E731
        return interleave(list(self._ms), self, rounds, on_round=on_round, **options)


def test_the_order_is_turned_round_and_samples_stay_with_their_candidate(monkeypatch) -> None:
    turns = Turns(monkeypatch, a=[1, 2, 3], b=[4, 5, 6], c=[7, 8, 9])
    assert turns.take(3) == [[1, 2, 3], [4, 5, 6], [7, 8, 9]]
    assert turns.rounds[:4] == ["abc", "cba", "abc", ""]
    assert turns.progress == [(1, 3), (2, 3), (3, 3)]


def test_samples_may_be_anything() -> None:
    """Only times are compared with each other."""
    (records,) = interleave([None], lambda _, number: {"number": number}, 8)
    assert records == [{"number": number} for number in range(8)]


def test_a_random_order_gives_each_candidate_every_place_and_repeats(monkeypatch) -> None:
    turns = Turns(monkeypatch, a=[1], b=[2], c=[3])
    assert turns.take(60, shuffled=True) == [[1] * 60, [2] * 60, [3] * 60]
    assert set(turns.rounds[:60]) == {"".join(order) for order in itertools.permutations("abc")}
    again = Turns(monkeypatch, a=[1], b=[2], c=[3])
    again.take(60, shuffled=True)
    assert again.rounds == turns.rounds


@pytest.mark.parametrize("shuffled", [False, True])
def test_who_is_hopeless_in_each_of_six_rounds_takes_no_more_turns(monkeypatch, shuffled) -> None:
    turns = Turns(
        monkeypatch,
        fast=[1],
        hopeless=[4.1],
        disturbed=[9, 9, 9, 9, 9, 4],
        # As slow as others in the end; the fastest is one candidate, by its median.
        uneven=[0.1, 3, 3, 3, 3, 3],
    )
    taken = turns.take(9, stays=unless_hopeless(4), shuffled=shuffled)
    assert [len(samples) for samples in taken] == [9, 6, 9, 9]
    assert [("hopeless" in order) for order in turns.rounds[:9]] == [True] * 6 + [False] * 3
    assert [len(samples) for samples in turns.take(9)] == [9] * 4


@pytest.mark.parametrize(
    ("seconds", "rounds"), [(math.inf, 20), (0.205, 20), (0.105, 10), (0.055, 5), (0.0, 5)]
)
def test_rounds_are_fitted_to_the_time_limit(monkeypatch, seconds: float, rounds: int) -> None:
    """By the first three, of 10 ms each; what comes later changes nothing. Five are the least."""
    turns = Turns(monkeypatch, a=[4] * 3 + [40] * 17, b=[6] * 20)
    assert [len(samples) for samples in turns.take(20, seconds=seconds)] == [rounds] * 2
    assert turns.progress == [(done, rounds if done > 2 else 20) for done in range(1, rounds + 1)]


def test_fewer_rounds_than_five_are_taken_where_fewer_are_asked_for(monkeypatch) -> None:
    turns = Turns(monkeypatch, a=[1])
    assert turns.take(4, seconds=0) == [[1] * 4]


def test_all_go_on_until_every_ratio_is_known(monkeypatch) -> None:
    """Rounds may have rows of their own: who ends earlier has other rows."""
    turns = Turns(monkeypatch, ours=[1], float_=[2], noisy=[1.0, 3.0] * 10, alone=[1])
    assert [len(times) for times in turns.take(20, stays=until_narrow([(0, 1)], 0.05))] == [8] * 4
    pairs = [(0, 1), (0, 2)]
    assert [len(times) for times in turns.take(20, stays=until_narrow(pairs, 0.05))] == [20] * 4


def test_a_benchmark_ends_at_the_first_look_that_tells_enough(monkeypatch) -> None:
    turns = Turns(monkeypatch, ours=[1], float_=[2])
    assert turns.take(99, stays=until_narrow([(0, 1)], 0.05)) == [[1] * 8, [2] * 8]
    assert turns.progress[-1][0] == 8


def test_models_that_are_compared_with_none_take_all_rounds(monkeypatch) -> None:
    assert len(Turns(monkeypatch, ours=[1]).take(30, stays=until_narrow([], 0.05))[0]) == 30


@pytest.mark.parametrize("noise", ["normal", "skewed", "two modes"])
@pytest.mark.parametrize("spread", [0.02, 0.05, 0.1])
def test_intervals_of_a_measurement_that_ends_early_are_right(noise: str, spread: float) -> None:
    """Of simulated ratios whose median is 1, at least 94 % of the intervals have it (binomial error of 1,000: 0.7)."""
    generator = np.random.default_rng(7)
    draws = {
        "normal": lambda n: generator.standard_normal(n),
        "skewed": lambda n: generator.exponential(1, n),
        "two modes": lambda n: (
            2 * (generator.random(n) < 0.45) + 0.3 * generator.standard_normal(n)
        ),
    }
    median = np.median(draws[noise](1_000_000))
    inside, rounds = 0, 0
    for _ in range(1000):
        theirs = np.exp(spread * (draws[noise](50) - median))
        ours, float_ = interleave(
            ([1.0] * 50, theirs),
            lambda times, number: times[number],
            50,
            stays=until_narrow([(0, 1)], 0.05),
        )
        ratio = quantile((np.array(float_) / ours).tolist())
        inside += ratio.low <= 1 <= ratio.high
        rounds += len(ours)
    assert inside >= 940
    assert rounds < 50_000 or spread == 0.1
