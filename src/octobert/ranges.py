"""What calibration sees and what it concludes: `TensorStatistics` of a value, and `Ranges` of many.

A `TensorStatistics` is of constant size however much data it has seen, does not depend on the order of the data, and is
enough for every calibrator: the exact minimum, maximum and count, and a histogram over the upper 16 bits of the float32
pattern (sign, exponent, 7 bits of mantissa). Its bins are at most 1/128 of their value wide at every magnitude, so there is
no range to guess in advance and no bin to merge later.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

from octobert.plan import Noun

BINS = 1 << 16
# A bin holds values from its edge up to edge × (1 + 2⁻⁷); its middle stands for it.
RELATIVE_BIN_WIDTH = 2.0**-7


@functools.cache
def _bin_values() -> tuple[np.ndarray, np.ndarray]:
    """Bins in order of value: (bin numbers, the value that stands for each)."""
    numbers = np.arange(BINS, dtype=np.uint32)
    edges = (numbers << 16).view(np.float32)
    finite = np.flatnonzero(np.isfinite(edges))
    middles = edges[finite].astype(np.float64) * (1 + RELATIVE_BIN_WIDTH / 2)
    order = np.argsort(middles, kind="stable")
    return finite[order], middles[order]


@dataclass(frozen=True)
class TensorStatistics:
    """All that is remembered of the values that one tensor took.

    Args:
        minimum, maximum: exact.
        count: values seen.
        histogram: [65536] counts by the upper 16 bits of the float32 pattern.
    """

    minimum: float
    maximum: float
    count: int
    histogram: np.ndarray

    @staticmethod
    def empty() -> TensorStatistics:
        """Nothing seen yet."""
        return TensorStatistics(np.inf, -np.inf, 0, np.zeros(BINS, dtype=np.int64))

    def update(self, values: np.ndarray) -> TensorStatistics:
        """These statistics and those of more float32 values, together."""
        flat = np.ascontiguousarray(values, dtype=np.float32).reshape(-1)
        if flat.size == 0:
            return self
        counts = np.bincount(flat.view(np.uint32) >> 16, minlength=BINS)
        low, high = float(flat.min()), float(flat.max())
        # np.minimum and np.maximum keep a NaN, whichever batch it was in; min() and max() would lose it.
        low, high = float(np.minimum(self.minimum, low)), float(np.maximum(self.maximum, high))
        return TensorStatistics(low, high, self.count + flat.size, self.histogram + counts)

    @property
    def is_finite(self) -> bool:
        """False when a NaN or an infinity was among the values."""
        return bool(np.isfinite(self.minimum) and np.isfinite(self.maximum))

    def points(self) -> tuple[np.ndarray, np.ndarray]:
        """The occupied bins in order of value: (values float64, counts)."""
        numbers, middles = _bin_values()
        counts = self.histogram[numbers]
        used = counts > 0
        return np.clip(middles[used], self.minimum, self.maximum), counts[used]

    def quantiles(self, low: float, high: float) -> tuple[float, float]:
        """The values below which shares `low` and `high` of all values lie, to within one bin."""
        values, counts = self.points()
        cumulative = np.cumsum(counts)
        last = len(values) - 1
        first = min(int(np.searchsorted(cumulative, low * self.count, side="right")), last)
        second = min(int(np.searchsorted(cumulative, high * self.count, side="left")), last)
        return float(values[first]), float(values[second])


class Interval(Noun):
    """The interval that 8 bits shall cover: free ends for asymmetric quantizers, and a bound for symmetric ones."""

    low: float
    high: float
    bound: float


class Provenance(Noun):
    """Where ranges come from."""

    samples: int
    tokens: int
    data_digest: str
    model_digest: str
    source: str
    allow_leakage: bool = False


class Ranges(Noun):
    """Intervals by value name, with the calibrator that chose them and the data it saw."""

    calibrator: str
    options: dict[str, float | int | str | bool]
    intervals: dict[str, Interval]
    provenance: Provenance
