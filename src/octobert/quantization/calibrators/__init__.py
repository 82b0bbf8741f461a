"""Calibrators: one file each, from the observed statistics of an activation to the interval that it is quantized over.

A calibrator is a pure function of `TensorStatistics`, so any number of them share one pass over the calibration rows.
"""

from __future__ import annotations

from typing import Any, Protocol, cast

from octobert.core import plugins
from octobert.core.errors import DataError
from octobert.core.frozen import FrozenModel
from octobert.core.ranges import Interval, TensorStatistics


class Calibrator(Protocol):
    """The module of a calibrator."""

    @property
    def Options(self) -> type[FrozenModel]:
        """The model of its options. Every option has a default."""
        ...

    @property
    def SWEEP(self) -> tuple[FrozenModel, ...]:
        """The settings that a sweep compares: instances of `Options` with the fields set that tell them apart."""
        ...

    def interval(self, statistics: TensorStatistics, options: Any) -> Interval:
        """Return the interval to quantize an activation over.

        Args:
            statistics: of one activation.
            options: an instance of this module's `Options`.

        Raises:
            DataError: the statistics are not enough for this calibrator.
        """
        ...


def names() -> tuple[str, ...]:
    """Return the names of all calibrators, sorted."""
    return plugins.names("calibrators")


def load(name: str, *, where: str | None = None) -> Calibrator:
    """Import a calibrator.

    Args:
        name: such as `percentile`.
        where: the recipe key or option that named it, for the error.

    Raises:
        RecipeError: there is no calibrator of that name.
    """
    return cast(Calibrator, plugins.load("calibrators", name, where=where))


def sweep() -> tuple[tuple[str, FrozenModel], ...]:
    """Return every setting that a sweep compares, as (name of the calibrator, its options)."""
    return tuple((name, options) for name in names() for options in load(name).SWEEP)


def interval_of(calibrator: Calibrator, options: FrozenModel, value: str, statistics: TensorStatistics) -> Interval:
    """The interval of one value.

    Raises:
        DataError: the calibrator cannot work with the statistics; with the value's name.
    """
    try:
        return calibrator.interval(statistics, options)
    except DataError as error:
        raise DataError(error.what, where=f'"{value}"', got=error.got, expected=error.expected, fix=error.fix) from error
