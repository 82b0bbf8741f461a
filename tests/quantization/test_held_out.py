"""Ranges for rows that nothing was fitted to: the calibrator, and the rows that transforms do not learn from."""

import numpy as np
import pytest

from octobert.core.ranges import Exceeded, Interval, held_out
from octobert.quantization.calibrators.held_out import HeldOut
from tests.support.statistics import seen

CHANNELS = 512
TOKENS = 8
# Means over new rows are those of a sample.
AS_GOOD = 1.1


def interval(rows: np.ndarray) -> Interval:
    return HeldOut().interval(seen(*rows))


def activations(seed: int, rows: int, *, tail: float, fitted: int) -> tuple[np.ndarray, np.ndarray]:
    """Two sets of rows [rows, tokens, C] with long tails, and every channel divided by its largest value of the rows that are not
    held out, as smoothing does."""
    generator = np.random.default_rng(seed)
    values = generator.standard_t(tail, (fitted + rows, TOKENS, CHANNELS))
    seen, new = values[:fitted], values[fitted:]
    largest = np.abs(seen[~held_out(fitted)]).max(axis=(0, 1))
    return (seen / largest).astype(np.float32), (new / largest).astype(np.float32)


def errors(rows: np.ndarray, low: float, high: float) -> np.ndarray:
    """[rows] squared error of each row on the 8-bit grid over [low, high]."""
    step = (high - low) / 255
    rounded = np.clip(np.rint(rows / step), np.rint(low / step), np.rint(high / step)) * step
    return np.square(rows.astype(np.float64) - rounded).sum(axis=(1, 2))


def test_a_quarter_is_held_out_the_same_every_time() -> None:
    assert [int(held_out(rows).sum()) for rows in (0, 1, 3, 4, 9, 256)] == [0, 0, 0, 1, 2, 64]
    np.testing.assert_array_equal(held_out(100), held_out(100))


def test_without_a_held_out_row_the_range_is_exact() -> None:
    rows = np.random.default_rng(0).standard_normal((3, 8, 4)).astype(np.float32)
    found = interval(rows)
    assert (found.low, found.high) == (rows.min(), rows.max())


@pytest.mark.parametrize("sign", [1, -1])
def test_an_end_that_no_held_out_row_passes_stays(sign: int) -> None:
    rows = np.random.default_rng(0).uniform(-1, 1, (64, 8, 4)).astype(np.float32) / 2
    rows[np.flatnonzero(~held_out(64))[0], 0, 0] = sign
    found = interval(rows)
    assert (found.high if sign > 0 else found.low) == sign


def test_one_row_with_many_values_gets_room_only_where_clipping_costs_more_than_rounding() -> None:
    """Two rows of a thousand values: a step of 2 / 255 costs 1000 (2 / 255)² / 12 = 0.0051; twice that range four times as much."""
    rows = np.random.default_rng(0).uniform(-1, 1, (4, 1000)).astype(np.float32)
    held = int(np.flatnonzero(held_out(4))[0])
    rows[(held + 1) % 4, :2] = -1, 1
    rows[held, 0] = 1.002
    assert interval(rows).high == 1.0
    rows[held, 0] = 2.0
    assert 1.9 < interval(rows).high <= 2.0


@pytest.mark.parametrize("tail", [10, 30, 1000])
def test_new_rows_lose_less_than_with_either_exact_range(tail: float) -> None:
    """On rows that nothing has seen: less at 99 % than with the range of the rows that were learned from, at no more on average
    than with that of all rows."""
    ours, every, learned = [], [], []
    for seed in range(8):
        seen, new = activations(seed, 256, tail=tail, fitted=256)
        found = interval(seen)
        ours.append(errors(new, found.low, found.high))
        for ends, rows in ((every, seen), (learned, seen[~held_out(256)])):
            ends.append(errors(new, float(rows.min()), float(rows.max())))
    assert np.mean(ours) <= np.mean(every) * AS_GOOD
    assert np.quantile(ours, 0.99) < np.quantile(learned, 0.99)


def test_rows_that_leave_ranges_are_counted() -> None:
    generator = np.random.default_rng(0)
    rows = generator.uniform(-1, 1, (40, 8)).astype(np.float32)
    held = np.flatnonzero(held_out(40))
    first, second = rows.copy(), rows.copy()
    first[held[:2], 0] = 3.0
    second[held[1:4], 0] = -3.0
    # Rows that were learned from do not count.
    first[np.flatnonzero(~held_out(40))[:5], 0] = 9.0
    values = {"a": seen(*first), "b": seen(*second)}
    found = Exceeded.of(values, dict.fromkeys(values, Interval.from_ends(-1.0, 1.0)))
    assert found == Exceeded(rows=10, any=4, most=3, value="b")
    assert "of 10 calibration rows" in str(found)
    assert Exceeded.of({"a": seen(*rows[:3])}, {"a": Interval.from_ends(-1.0, 1.0)}) is None
    assert Exceeded.of({}, {}) is None
