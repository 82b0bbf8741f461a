"""What calibration sees and what it concludes: `TensorStatistics` of a value, and `Ranges` of many.

A `TensorStatistics` is enough for every calibrator: the exact minimum, maximum and count, a histogram over the upper 16 bits
of the float32 pattern (sign, exponent, 7 bits of mantissa), and two numbers a row of data. The bins are at most 1/128 of their
value wide at every magnitude, so there is no range to guess in advance and no bin to merge later, and how the rows were batched
makes no difference.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from octobert.core.frozen import FrozenModel

BINS = 1 << 16
# No bin is wider than this share of its values; its middle stands for it.
RELATIVE_BIN_WIDTH = 2.0**-7
_POINTS_PER_BIN = 64


def _edges(numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The edges of bins by their numbers: (nearer to zero, farther from it); the outermost bins end at ±2¹²⁸."""
    starts = (numbers.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    with np.errstate(over="ignore"):
        ends = ((numbers.astype(np.uint32) + 1) << 16).view(np.float32).astype(np.float64)
    return starts, np.where(np.isfinite(ends), ends, np.copysign(2.0**128, starts))


@functools.cache
def _bin_values() -> tuple[np.ndarray, np.ndarray]:
    """Bins in order of value: (bin numbers, the value that stands for each)."""
    numbers = np.arange(BINS, dtype=np.uint32)
    finite = np.flatnonzero(np.isfinite((numbers << 16).view(np.float32)))
    starts, ends = _edges(numbers[finite])
    middles = (starts + ends) / 2
    order = np.argsort(middles, kind="stable")
    return finite[order], middles[order]


@dataclass(frozen=True)
class TensorStatistics:
    """All that is remembered of the values that one tensor took.

    Args:
        minimum, maximum: exact.
        count: values seen.
        histogram: [65536] counts by the upper 16 bits of the float32 pattern.
        extremes: [rows, 2] minimum and maximum of each row of data, in the order of the data.
    """

    minimum: float
    maximum: float
    count: int
    histogram: np.ndarray
    extremes: np.ndarray

    def points(self) -> tuple[np.ndarray, np.ndarray]:
        """The occupied bins in order of value: (values float64, counts)."""
        numbers, middles = _bin_values()
        counts = self.histogram[numbers]
        used = counts > 0
        return np.clip(middles[used], self.minimum, self.maximum), counts[used]

    def magnitudes(self, bins: int) -> np.ndarray:
        """Counts of absolute values in equal bins from 0 to the largest.

        The values of one own bin are laid out evenly over its width, as many points as there are values (at most 64), so that
        what is empty among exact values is, as a rule, empty here.
        """
        half = BINS // 2
        counts = self.histogram[:half] + self.histogram[half:]
        used = np.flatnonzero(counts)
        largest = max(abs(self.minimum), abs(self.maximum))
        starts, ends = _edges(used)
        # The bin that holds the value nearest to zero, and the one that holds the farthest, reach no further than these.
        starts, ends = np.maximum(starts, max(self.minimum, -self.maximum, 0.0)), np.minimum(ends, largest)
        points = np.minimum(counts[used], _POINTS_PER_BIN)
        owner = np.repeat(np.arange(len(used)), points)
        place = (np.arange(len(owner)) - (np.cumsum(points) - points)[owner] + 0.5) / points[owner]
        values = starts[owner] + (ends - starts)[owner] * place
        return np.histogram(values, bins=bins, range=(0.0, largest), weights=(counts[used] / points)[owner])[0]

    def quantiles(self, low: float, high: float) -> tuple[float, float]:
        """The values below which shares `low` and `high` of all values lie, to within one bin."""
        values, counts = self.points()
        cumulative = np.cumsum(counts)
        last = len(values) - 1
        first = min(int(np.searchsorted(cumulative, low * self.count, side="right")), last)
        second = min(int(np.searchsorted(cumulative, high * self.count, side="left")), last)
        return float(values[first]), float(values[second])


class Collector:
    """Gathers the statistics of one tensor, batch by batch; the rows of a batch may be any of the data's."""

    def __init__(self, rows: int) -> None:
        self._histogram = np.zeros(BINS, dtype=np.int64)
        self._extremes = np.full((rows, 2), (np.inf, -np.inf), dtype=np.float32)

    def add(self, indices: Sequence[int], rows: Sequence[np.ndarray]) -> int | None:
        """Take in the values of some rows; the index of the first that holds a NaN or an infinity, or None.

        Args:
            indices: which rows of the data these are.
            rows: float32 values of each, of any shape.
        """
        for index, row in zip(indices, rows, strict=True):
            if row.size:
                low, high = row.min(), row.max()
                if not (np.isfinite(low) and np.isfinite(high)):
                    return index
                self._extremes[index] = np.minimum(self._extremes[index, 0], low), np.maximum(self._extremes[index, 1], high)
        flat = [np.ascontiguousarray(row, dtype=np.float32).reshape(-1) for row in rows]
        together = flat[0] if len(flat) == 1 else np.concatenate(flat)
        # The upper half of each pattern, read as 16-bit integers without a shifted copy.
        halves = together.view(np.uint16)[sys.byteorder == "little" :: 2]
        self._histogram += np.bincount(halves, minlength=BINS)
        return None

    def statistics(self) -> TensorStatistics:
        """What was gathered."""
        low, high = self._extremes[:, 0].min(initial=np.inf), self._extremes[:, 1].max(initial=-np.inf)
        return TensorStatistics(float(low), float(high), int(self._histogram.sum()), self._histogram, self._extremes)


@dataclass(frozen=True)
class Sample:
    """Some tokens of one activation, and what all tokens reached.

    Args:
        largest: [C] largest absolute value of each channel over all tokens.
        rows: [N, C] the sampled tokens.
    """

    largest: np.ndarray
    rows: np.ndarray


class Interval(FrozenModel):
    """The interval that 8 bits shall cover: free ends for asymmetric quantizers, and a bound for symmetric ones."""

    low: float
    high: float
    bound: float


class Provenance(FrozenModel):
    """Where ranges come from."""

    samples: int
    tokens: int
    data_digest: str
    model_digest: str
    source: str
    allow_leakage: bool = False


class Ranges(FrozenModel):
    """Intervals by value name, with the calibrator that chose them and the data it saw."""

    calibrator: str
    options: dict[str, float | int | str | bool]
    intervals: dict[str, Interval]
    provenance: Provenance
