"""Removal of units against brute force: every candidate by least squares, one after the other."""

from __future__ import annotations

import numpy as np
import pytest

from octobert.quantization.pruning import removal

# Two ways of solving the same least squares in float64, rounded once to float32 at the end.
SOLVED = 2e-5
TOKENS, DAMPING = 400, 0.01


def layer(channels: int, out: int = 5) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Correlated inputs with a mean [TOKENS, channels], a weight and a bias."""
    generator = np.random.default_rng(channels)
    x = generator.normal(size=(TOKENS, channels)) @ generator.normal(
        size=(channels, channels)
    ) + generator.normal(size=channels)
    return x, generator.normal(size=(channels, out)), generator.normal(size=out)


def products(x: np.ndarray) -> np.ndarray:
    ones = np.concatenate([x, np.ones((len(x), 1))], axis=1)
    return ones.T @ ones


def fitted(
    x: np.ndarray, weight: np.ndarray, bias: np.ndarray, left: list[int]
) -> tuple[np.ndarray, np.ndarray, float]:
    """Weights of the channels that are left by damped least squares over rows, with the damping as further rows."""
    energy = DAMPING * np.mean(x**2)
    gone = [c for c in range(x.shape[1]) if c not in left]
    target = x[:, gone] @ weight[gone]
    inputs = np.concatenate([np.concatenate([x[:, left], np.ones((len(x), 1))], axis=1)])
    damping = np.sqrt(TOKENS * energy) * np.eye(len(left) + 1)[:-1]
    change = np.linalg.lstsq(
        np.concatenate([inputs, damping]),
        np.concatenate([target, np.zeros((len(left), 5))]),
        rcond=None,
    )[0]
    lost = np.sum((inputs @ change - target) ** 2) / TOKENS
    cost = lost + energy * (np.sum(change[:-1] ** 2) + np.sum(weight[gone] ** 2))
    return weight[left] + change[:-1], bias + change[-1], cost


@pytest.mark.parametrize(("channels", "width"), [(80, 1), (12, 1), (12, 3)])
def test_greedy_removal_is_that_of_brute_force(channels: int, width: int) -> None:
    """Eighty neurons are more than are removed at once."""
    x, weight, bias = layer(channels)
    units = channels // width
    levels = removal.removed(products(x), weight, bias, width, range(units + 1), DAMPING)
    assert [level.units for level in levels] == list(range(units, -1, -1))
    left = list(range(units))
    output = np.mean((x @ weight + bias) ** 2)
    for level in levels:
        if level.units < len(left):
            candidates = [[u for u in left if u != gone] for gone in left]
            costs = (
                [fitted(x, weight, bias, channels_of(each, width))[2] for each in candidates]
                if units < 20
                else None
            )
            left = list(level.kept) if costs is None else candidates[int(np.argmin(costs))]
        assert level.kept.tolist() == left
        own = channels_of(left, width)
        expected_weight, expected_bias, _ = fitted(x, weight, bias, own)
        np.testing.assert_allclose(level.weight, expected_weight, rtol=SOLVED, atol=SOLVED)
        np.testing.assert_allclose(level.bias, expected_bias, rtol=SOLVED, atol=SOLVED)
        error = (
            np.mean((x[:, own] @ expected_weight + expected_bias - x @ weight - bias) ** 2) / output
        )
        assert level.error == pytest.approx(error, rel=1e-6, abs=1e-12)


def channels_of(units: list[int], width: int) -> list[int]:
    return [unit * width + channel for unit in units for channel in range(width)]


def test_blocks_do_not_change_the_order(monkeypatch) -> None:
    x, weight, bias = layer(80)
    together = removal.removed(products(x), weight, bias, 1, [8], DAMPING)[0]
    monkeypatch.setattr(removal, "_BLOCK", 1)
    one_by_one = removal.removed(products(x), weight, bias, 1, [8], DAMPING)[0]
    assert together.kept.tolist() == one_by_one.kept.tolist()
    np.testing.assert_allclose(together.weight, one_by_one.weight, rtol=SOLVED, atol=SOLVED)


def test_without_units_the_mean_output_is_left() -> None:
    x, weight, bias = layer(12)
    level = removal.removed(products(x), weight, bias, 3, [0], DAMPING)[0]
    assert (level.kept.shape, level.weight.shape) == ((0,), (0, 5))
    np.testing.assert_allclose(
        level.bias, (x @ weight + bias).mean(axis=0), rtol=SOLVED, atol=SOLVED
    )


def test_inputs_that_repeat_cost_nothing() -> None:
    """Half of the neurons are copies, and one is always zero: the error is that of the damping."""
    x, weight, bias = layer(12)
    x = np.concatenate([x, x, np.zeros((TOKENS, 1))], axis=1)
    weight = np.concatenate([weight, weight, np.ones((1, 5))])
    level = removal.removed(products(x), weight, bias, 1, [12], 1e-6)[0]
    assert sorted(unit % 12 for unit in level.kept) == list(range(12))
    assert level.error < 1e-9
