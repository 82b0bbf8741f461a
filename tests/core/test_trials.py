"""Trials of a search: each once, and none that the time limit has no room for."""

from __future__ import annotations

from octobert.core.trials import Trials


class Clock:
    """Time that passes only in trials."""

    def __init__(self) -> None:
        self.now = 0.0
        self.tried: list[str] = []

    def attempt(self, config: str) -> int:
        self.tried.append(config)
        self.now += len(config)
        return len(config)

    def trials(self, seconds: float, **earlier: object) -> Trials[str, int]:
        return Trials(self.attempt, seconds=seconds, clock=lambda: self.now, **earlier)


def test_a_configuration_is_tried_once() -> None:
    clock = Clock()
    trials = clock.trials(100)
    assert [trials.result(config) for config in ("aa", "b", "aa")] == [2, 1, 2]
    assert (clock.tried, trials.results, trials.out_of_time) == (
        ["aa", "b"],
        {"aa": 2, "b": 1},
        False,
    )


def test_the_longest_trial_so_far_must_fit_into_what_is_left_and_the_first_one_always_runs() -> (
    None
):
    clock = Clock()
    trials = clock.trials(7)
    assert trials.result("eeeee") == 5
    # Two seconds are left.
    assert trials.result("b") is None
    assert (clock.tried, trials.out_of_time) == (["eeeee"], True)
    # What is known needs no time.
    assert trials.result("eeeee") == 5
    assert Clock().trials(-1).result("a") == 1


def test_results_of_an_interrupted_search_count() -> None:
    clock = Clock()
    trials = clock.trials(3, results={"ccc": 3}, longest=3.0)
    assert [trials.result("ccc"), trials.result("d"), trials.result("e")] == [3, 1, None]
    assert clock.tried == ["d"]
