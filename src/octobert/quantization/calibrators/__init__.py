"""Calibrators: one file each, from the observed statistics of an activation to the interval that it is quantized over.

A calibrator is a pure function of `TensorStatistics`, so any number of them share one pass over the calibration rows.
"""

from __future__ import annotations

from typing import Any, Protocol

from octobert.core import plugins
from octobert.core.axes import Axis
from octobert.core.errors import DataError
from octobert.core.frozen import FrozenModel
from octobert.core.ranges import Interval, TensorStatistics


class Calibrator(Protocol):
    """The module of a calibrator.

    Attributes:
        Options: the model of its options. Every option has a default.
        SWEEP: the settings that a sweep compares: instances of `Options` with the fields set that tell them apart.
    """

    Options: type[FrozenModel]
    SWEEP: tuple[FrozenModel, ...]

    def interval(self, statistics: TensorStatistics, options: Any) -> Interval:
        """Return the interval to quantize an activation over.

        Args:
            statistics: of one activation.
            options: an instance of this module's `Options`.

        Raises:
            DataError: the statistics are not enough for this calibrator.
        """


_PLUGINS = plugins.Family[Calibrator]("calibrators")
names, load, each = _PLUGINS.names, _PLUGINS.load, _PLUGINS.each


def sweep() -> tuple[tuple[str, FrozenModel], ...]:
    """Return every setting that a sweep compares, as (name of the calibrator, its options)."""
    return tuple((name, options) for name, calibrator in each() for options in calibrator.SWEEP)


def axes() -> tuple[Axis, ...]:
    """Return one axis per calibrator, with the settings of its `SWEEP`, its default first.

    A calibrator may say with `PRIOR` how likely it brings back lost accuracy (`Axis.prior`).
    """
    calibrator_axes = []
    for name, module in each():
        settings = [
            options.model_dump(mode="json", exclude_defaults=True) for options in module.SWEEP
        ]
        calibrator_axes.append(
            Axis(
                key="calibrate",
                values=tuple(
                    {name: setting} if setting else name for setting in sorted(settings, key=bool)
                ),
                changes=("numbers",),
                invalidates="calibrate",
                prior=float(getattr(module, "PRIOR", 0.1)),
            )
        )
    return tuple(calibrator_axes)


def interval_of(
    calibrator: Calibrator, options: FrozenModel, value: str, statistics: TensorStatistics
) -> Interval:
    """The interval of one value.

    Raises:
        DataError: the calibrator cannot work with the statistics; with the value's name.
    """
    try:
        return calibrator.interval(statistics, options)
    except DataError as error:
        raise DataError(
            error.what, where=f'"{value}"', got=error.got, expected=error.expected, fix=error.fix
        ) from error
