"""Data of calibration: `TensorStatistics` of observed values, the `Ranges` that a calibrator chooses, and a `Sweep` of several.

`TensorStatistics` is enough for every calibrator: the exact minimum, maximum and count, a histogram over the upper 16 bits of
the float32 pattern (sign, exponent, 7 bits of mantissa), and the minimum and maximum of each row. A bin is at most 1/128 of its
value wide at every magnitude. So no range is needed in advance, no bins are merged later, and batching has no effect.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from pydantic import Field

from octobert.core.frozen import FrozenModel, Row, Tabular

BINS = 1 << 16
# Steps of an 8-bit grid.
STEPS = 255
_POINTS_PER_BIN = 64
# Smallest energy of a token that is told from 0.
_SILENT = 1e-9


def _edges(numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the edges of bins: (closer to zero, farther from zero). The outermost bins end at ±2¹²⁸."""
    starts = (numbers.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    with np.errstate(over="ignore"):
        ends = ((numbers.astype(np.uint32) + 1) << 16).view(np.float32).astype(np.float64)
    return starts, np.where(np.isfinite(ends), ends, np.copysign(2.0**128, starts))


@functools.cache
def _bin_values() -> tuple[np.ndarray, np.ndarray]:
    """Return all finite bins in order of value: (bin numbers, middles)."""
    numbers = np.arange(BINS, dtype=np.uint32)
    finite = np.flatnonzero(np.isfinite((numbers << 16).view(np.float32)))
    starts, ends = _edges(numbers[finite])
    middles = (starts + ends) / 2
    order = np.argsort(middles, kind="stable")
    return finite[order], middles[order]


@dataclass(frozen=True)
class TensorStatistics:
    """Statistics of the values of one tensor over all calibration rows.

    Args:
        minimum: smallest value, exact.
        maximum: largest value, exact.
        count: number of values.
        histogram: [65536] counts by the upper 16 bits of the float32 pattern.
        extremes: [rows, 2] minimum and maximum of each row, in the order of the data.
        relative: the histogram with each value counted by the inverse energy of its token; None where tokens count alike.
    """

    minimum: float
    maximum: float
    count: int
    histogram: np.ndarray
    extremes: np.ndarray
    relative: np.ndarray | None = None

    def points(self, *, relative: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """Return the occupied bins in order of value: (middles in float64, counts).

        Args:
            relative: counts as in `relative`, where there are any.
        """
        numbers, middles = _bin_values()
        counted = self.relative if relative and self.relative is not None else self.histogram
        counts = counted[numbers]
        used = counts > 0
        return np.clip(middles[used], self.minimum, self.maximum), counts[used]

    def magnitudes(self, bins: int) -> np.ndarray:
        """Return a histogram of absolute values, in equal bins from 0 to the largest.

        The values of each bin of this class are spread evenly over its width, as up to 64 points. Bins that would be empty for
        the exact values are then empty in nearly all cases.

        Args:
            bins: number of bins of the result.
        """
        half = BINS // 2
        counts = self.histogram[:half] + self.histogram[half:]
        used = np.flatnonzero(counts)
        largest = max(abs(self.minimum), abs(self.maximum))
        starts, ends = _edges(used)
        # Values lie between the smallest and the largest magnitude, so the outer bins end there.
        starts, ends = (
            np.maximum(starts, max(self.minimum, -self.maximum, 0.0)),
            np.minimum(ends, largest),
        )
        points = np.minimum(counts[used], _POINTS_PER_BIN)
        owner = np.repeat(np.arange(len(used)), points)
        place = (np.arange(len(owner)) - (np.cumsum(points) - points)[owner] + 0.5) / points[owner]
        values = starts[owner] + (ends - starts)[owner] * place
        return np.histogram(
            values, bins=bins, range=(0.0, largest), weights=(counts[used] / points)[owner]
        )[0]

    def cumulated(self, ends: np.ndarray) -> np.ndarray:
        """Return how many values are below each of some numbers. The values of a bin are spread evenly over its width.

        Args:
            ends: [N] finite numbers.

        Returns:
            [N] counts, with fractions.
        """
        numbers, _ = _bin_values()
        used = numbers[self.histogram[numbers] > 0]
        pairs = np.sort(np.stack(_edges(used), axis=1), axis=1)
        knots = np.clip(pairs, self.minimum, self.maximum).reshape(-1)
        sums = np.concatenate([[0], np.cumsum(self.histogram[used])])
        counts: np.ndarray = np.interp(
            ends, knots, np.repeat(sums, 2)[1:-1], left=0.0, right=float(self.count)
        )
        return counts

    def quantiles(self, low: float, high: float) -> tuple[float, float]:
        """Return two quantiles, exact to within one bin.

        Args:
            low: probability of the lower quantile, from 0 to 1.
            high: probability of the upper quantile.
        """
        values, counts = self.points()
        cumulative = np.cumsum(counts)
        last = len(values) - 1
        first = min(int(np.searchsorted(cumulative, low * self.count, side="right")), last)
        second = min(int(np.searchsorted(cumulative, high * self.count, side="left")), last)
        return float(values[first]), float(values[second])


def held_out(rows: int) -> np.ndarray:
    """[rows] the calibration rows that transforms do not learn from, so that ranges can be judged: a quarter, at random."""
    held: np.ndarray = np.random.default_rng(0).permutation(rows) < rows // 4
    return held


class Collector:
    """Collects the statistics of one tensor over batches of rows.

    Args:
        rows: number of rows of the data.
        relative: also count each value by the inverse energy of its token. A norm divides a token by its spread, so that its
            error matters relative to its energy; an outlier in a few tokens must not cost all others their digits.
    """

    def __init__(self, rows: int, *, relative: bool = False) -> None:
        self._histogram = np.zeros(BINS, dtype=np.int64)
        self._relative = np.zeros(BINS) if relative else None
        self._extremes = np.full((rows, 2), (np.inf, -np.inf), dtype=np.float32)

    def add(self, indices: Sequence[int], rows: Sequence[np.ndarray]) -> int | None:
        """Add rows.

        Args:
            indices: of the rows in the data.
            rows: float32 values of each row, of any shape.

        Returns:
            The index of the first row that contains NaN or infinity, or None.
        """
        for index, row in zip(indices, rows, strict=True):
            if row.size:
                low, high = row.min(), row.max()
                if not (np.isfinite(low) and np.isfinite(high)):
                    return index
                self._extremes[index] = (
                    np.minimum(self._extremes[index, 0], low),
                    np.maximum(self._extremes[index, 1], high),
                )
        flat = [np.ascontiguousarray(row, dtype=np.float32).reshape(-1) for row in rows]
        together = flat[0] if len(flat) == 1 else np.concatenate(flat)
        # Read the upper halves of the patterns as 16-bit integers, without a copy.
        halves = together.view(np.uint16)[sys.byteorder == "little" :: 2]
        self._histogram += np.bincount(halves, minlength=BINS)
        if self._relative is not None:
            energies = [np.square(row).mean(axis=-1) for row in rows]
            counts = 1 / np.maximum(np.concatenate(energies), _SILENT)
            width = rows[0].shape[-1]
            self._relative += np.bincount(halves, counts.repeat(width), minlength=BINS)
        return None

    def statistics(self) -> TensorStatistics:
        """Return the statistics of all rows so far."""
        low, high = (
            self._extremes[:, 0].min(initial=np.inf),
            self._extremes[:, 1].max(initial=-np.inf),
        )
        return TensorStatistics(
            float(low),
            float(high),
            int(self._histogram.sum()),
            self._histogram,
            self._extremes,
            self._relative,
        )


@dataclass(frozen=True)
class Sample:
    """A sample of the tokens of one activation.

    Args:
        low, high: [C] smallest and largest value of each channel over all tokens.
        rows: [N, C] the sampled tokens.
    """

    low: np.ndarray
    high: np.ndarray
    rows: np.ndarray

    @property
    def largest(self) -> np.ndarray:
        """[C] largest magnitude of each channel."""
        largest: np.ndarray = np.maximum(self.high, -self.low)
        return largest

    def times(self, factors: np.ndarray) -> Sample:
        """Return the sample of the activation whose channels are multiplied by factors [C] that are not negative."""
        factors = factors.astype(self.rows.dtype)
        return Sample(self.low * factors, self.high * factors, self.rows * factors)


class Interval(FrozenModel):
    """The interval that a quantizer covers.

    Args:
        low: lower end, for asymmetric quantizers.
        high: upper end, for asymmetric quantizers.
        bound: symmetric quantizers cover [-bound, bound].
    """

    low: float
    high: float
    bound: float

    @staticmethod
    def from_ends(low: float, high: float) -> Interval:
        """Return an interval whose symmetric bound holds both of its ends."""
        return Interval(low=low, high=high, bound=max(abs(low), abs(high)))


class Provenance(FrozenModel):
    """The data that ranges come from.

    Args:
        samples: calibration rows.
        tokens: tokens of these rows, and of the other texts.
        data_digest: sha256 of the rows.
        model_digest: sha256 of the model.
        source: where the rows come from.
        allow_leakage: rows that are also evaluated were accepted.
        supplement: octobert's own texts beside the rows.
    """

    samples: int
    tokens: int
    data_digest: str
    model_digest: str
    source: str
    allow_leakage: bool = False
    supplement: int = 0


class Exceeded(FrozenModel):
    """How often held-out calibration rows leave the ranges, as rows will that nothing was fitted to.

    Args:
        rows: held out.
        any: those that leave the range of at least one value.
        most: those that leave the range of `value`, the one that is left most often.
        value: its name.
    """

    rows: int
    any: int
    most: int
    value: str

    @classmethod
    def of(
        cls, statistics: Mapping[str, TensorStatistics], intervals: Mapping[str, Interval]
    ) -> Exceeded | None:
        """From all values of a graph; None where no row is held out."""
        # All values were observed on the same rows.
        held = held_out(len(next(iter(statistics.values())).extremes) if intervals else 0)
        if not held.any():
            return None
        left = {}
        for name, interval in intervals.items():
            low, high = statistics[name].extremes[held].T
            left[name] = (low < interval.low) | (high > interval.high)
        value = max(left, key=lambda name: int(left[name].sum()))
        return cls(
            rows=int(held.sum()),
            any=int(np.logical_or.reduce(list(left.values())).sum()),
            most=int(left[value].sum()),
            value=value,
        )

    def __str__(self) -> str:
        return (
            f"of {self.rows} calibration rows that the transforms have not learned from, {self.any} leave the range of some "
            f"activation and are clipped there (that of {self.value}: {self.most})"
        )


class RangeFacts(FrozenModel):
    """How ranges were calibrated.

    Args:
        calibrator: its name.
        options: of the calibrator.
        provenance: the data that they come from.
        exceeded: how often rows leave them that nothing was fitted to.
    """

    calibrator: str
    options: dict[str, float | int | str | bool]
    provenance: Provenance
    exceeded: Exceeded | None = None


class Ranges(RangeFacts):
    """Calibrated ranges.

    Args:
        calibrator, options, provenance, exceeded: as in `RangeFacts`.
        intervals: name of a value → interval.
    """

    intervals: dict[str, Interval]


# Output errors that differ by less are called equal: on other rows the order would change.
SAME_ERROR = 0.05


class Swept(FrozenModel):
    """One calibrator of a sweep.

    Args:
        calibrator: its name, and the options that the sweep sets.
        setting: the same as the value of the recipe's `calibrate`.
        problem: why it could not be used, or None.
        agreement: how closely the quantized model follows the float model, on rows that are not calibration rows.
        output_error: root mean square difference of the outputs, on the same rows.
        signal_to_noise_db: name of a value → signal-to-noise ratio.
    """

    calibrator: str
    setting: str
    problem: str | None = None
    agreement: float | None = None
    output_error: float | None = None
    signal_to_noise_db: dict[str, float] = Field(default_factory=dict)


class Sweep(Tabular):
    """`sweep.json`: a comparison of calibrators on the same calibration rows.

    Args:
        target: the plans are made for this target.
        fidelity: what `agreement` measures.
        calibration_rows: number of calibration rows.
        judged_rows: number of rows of the comparison.
        ranges: name of a value → (minimum, maximum) over the calibration rows.
        swept: one entry per setting.
        recommended: the `calibrator` to use; None where none could be used.
        reason: why.
    """

    target: str
    fidelity: str
    calibration_rows: int
    judged_rows: int
    ranges: dict[str, tuple[float, float]]
    swept: tuple[Swept, ...]
    recommended: str | None = None
    reason: str = ""

    def to_rows(self) -> list[Row]:
        """One row per calibrator. `agreement` has the name of the task's measure."""
        return [
            {
                "calibrator": s.calibrator,
                self.fidelity: s.agreement,
                "output_error": s.output_error,
                "problem": s.problem,
            }
            for s in self.swept
        ]


def recommendation(swept: Sequence[Swept], default: str) -> tuple[str | None, str]:
    """(the calibrator to use, why): that with the smallest output error, but the default where that is about as good.

    Args:
        swept: the compared settings.
        default: name of the calibrator that is used unless another is chosen.
    """
    errors = {
        setting.calibrator: setting.output_error
        for setting in swept
        if setting.output_error is not None
    }
    if not errors:
        return None, "no calibrator could be used"
    agreements = {setting.calibrator: setting.agreement for setting in swept}
    best = min(errors, key=errors.__getitem__)
    figures = f"output error {errors[best]:.4f}, agreement {agreements[best]:.4f}"
    if default not in errors or len(errors) == 1:
        return best, f"{'the smallest' if len(errors) > 1 else 'the only'} {figures}"
    if errors[default] <= errors[best] * (1 + SAME_ERROR):
        least = (
            ""
            if best == default
            else f"; the smallest, of {best}, is {errors[best]:.4f}, which is no clear gain"
        )
        return (
            default,
            f"the default: output error {errors[default]:.4f}, agreement {agreements[default]:.4f}{least}",
        )
    more = errors[default] / errors[best] - 1
    return (
        best,
        f"the smallest {figures}; the output error of the default, {default}, is {more:.0%} larger ({errors[default]:.4f})",
    )
