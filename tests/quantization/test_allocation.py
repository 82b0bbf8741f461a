"""Allocation of levels against all combinations."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from octobert.quantization.pruning.budget import allocate


def brute_force(times: list[list[float]], losses: list[list[float]], budget: float) -> float | None:
    """The smallest loss of all combinations within the budget."""
    sums = [
        sum(own[i] for own, i in zip(losses, chosen, strict=True))
        for chosen in itertools.product(*(range(len(own)) for own in times))
        if sum(own[i] for own, i in zip(times, chosen, strict=True)) <= budget
    ]
    return min(sums, default=None)


@pytest.mark.parametrize("seed", range(6))
def test_allocation_is_the_best_of_all_combinations(seed: int) -> None:
    chance = np.random.default_rng(seed)
    # Whole numbers of steps, so that nothing is rounded. Not all times grow with the level, as on real kernels.
    times = [chance.integers(0, 12, chance.integers(2, 6)).astype(float).tolist() for _ in range(5)]
    losses = [np.sort(chance.exponential(size=len(own)))[::-1].tolist() for own in times]
    fastest, slowest = sum(map(min, times)), sum(map(max, times))
    for budget in (fastest, (fastest + slowest) // 2, slowest):
        chosen = allocate(times, losses, float(budget), steps=int(budget))
        assert chosen is not None
        assert sum(own[i] for own, i in zip(times, chosen, strict=True)) <= budget
        found = sum(own[i] for own, i in zip(losses, chosen, strict=True))
        assert found == pytest.approx(brute_force(times, losses, budget), rel=1e-12)


def test_real_times_never_exceed_the_budget() -> None:
    chance = np.random.default_rng(7)
    times = [np.sort(chance.random(13)).tolist() for _ in range(24)]
    losses = [np.sort(chance.random(13))[::-1].tolist() for _ in range(24)]
    budget = 0.6 * sum(own[-1] for own in times)
    chosen = allocate(times, losses, budget)
    assert chosen is not None
    assert 0.99 * budget < sum(own[i] for own, i in zip(times, chosen, strict=True)) <= budget


def test_a_budget_below_the_fastest_levels_has_no_allocation() -> None:
    assert allocate([[1.0, 2.0]], [[1.0, 0.0]], 0.5) is None
    assert allocate([[1.0, 2.0]], [[1.0, 0.0]], -1.0) is None
    assert allocate([[0.0, 2.0]], [[1.0, 0.0]], 0.0) == [0]
