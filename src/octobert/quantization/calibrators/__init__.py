"""Calibrators: one file each, from the observed statistics of an activation to the interval that it is quantized over.

A calibrator is a pure function of `TensorStatistics`, so any number of them share one pass over the calibration rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Annotated, ClassVar, Self

from octobert.core import plugins
from octobert.core.axes import Axis
from octobert.core.errors import DataError
from octobert.core.frozen import FrozenModel
from octobert.core.ranges import Interval, TensorStatistics


class Calibrator(FrozenModel, ABC):
    """From statistics to an interval. The fields of a calibrator are its options; every one has a default.

    Attributes:
        prior: how likely it brings back lost accuracy (`Axis.prior`).
    """

    prior: ClassVar[float] = 0.1

    @classmethod
    def sweep(cls) -> tuple[Self, ...]:
        """Return the settings that a sweep compares, with the fields set that tell them apart."""
        return (cls(),)

    @abstractmethod
    def interval(self, seen: TensorStatistics) -> Interval:
        """Return the interval to quantize an activation over.

        Raises:
            DataError: the statistics are not enough for this calibrator.
        """

    def interval_of(self, value: str, seen: TensorStatistics) -> Interval:
        """Return the interval of one value.

        Raises:
            DataError: as `interval`, with the value's name.
        """
        try:
            return self.interval(seen)
        except DataError as error:
            raise DataError(
                error.what,
                where=f'"{value}"',
                got=error.got,
                expected=error.expected,
                fix=error.fix,
            ) from error


PLUGINS = plugins.Plugins("calibrators", Calibrator)
CalibratorField = Annotated[Calibrator, PLUGINS]
names, load, each = PLUGINS.names, PLUGINS.load, PLUGINS.each


def axes() -> tuple[Axis, ...]:
    """Return one axis per calibrator, with the settings that a sweep compares, its default first."""
    calibrator_axes = []
    for name, calibrator in each():
        settings = [
            each.model_dump(mode="json", exclude_defaults=True) for each in calibrator.sweep()
        ]
        calibrator_axes.append(
            Axis(
                key="calibrate",
                values=tuple(
                    {name: setting} if setting else name for setting in sorted(settings, key=bool)
                ),
                changes=("numbers",),
                invalidates="calibrate",
                prior=calibrator.prior,
            )
        )
    return tuple(calibrator_axes)
