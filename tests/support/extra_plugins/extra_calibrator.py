"""Calibrator: a fixed fraction of the exact range."""

from __future__ import annotations

from typing import Self

from octobert.core.ranges import Interval, TensorStatistics
from octobert.quantization.calibrators import Calibrator


class Fraction(Calibrator):
    """A fixed fraction of the exact range.

    Args:
        fraction: of the exact range.
    """

    fraction: float = 1.0

    @classmethod
    def sweep(cls) -> tuple[Self, ...]:
        """Return two fractions."""
        return cls(fraction=0.9), cls(fraction=1.0)

    def interval(self, seen: TensorStatistics) -> Interval:
        """Return the scaled range."""
        return Interval.from_ends(self.fraction * seen.minimum, self.fraction * seen.maximum)
