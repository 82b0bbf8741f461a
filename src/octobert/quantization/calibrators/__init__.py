"""Calibrators: one file each, from observed statistics to an interval."""

from __future__ import annotations

from typing import Any, Protocol, cast

from octobert.core import plugins
from octobert.core.frozen import FrozenModel
from octobert.core.ranges import Interval, TensorStatistics


class Calibrator(Protocol):
    """What a calibrator's module has."""

    @property
    def Options(self) -> type[FrozenModel]:
        """The options, with defaults."""
        ...

    def interval(self, statistics: TensorStatistics, options: Any) -> Interval:
        """The interval to quantize an activation over.

        Args:
            statistics: what was observed of one activation.
            options: an instance of this module's `Options`.

        Raises:
            DataError: the statistics are not enough for this calibrator.
        """
        ...


def names() -> tuple[str, ...]:
    """The names of all calibrators, sorted."""
    return plugins.names("calibrators")


def load(name: str, *, where: str | None = None) -> Calibrator:
    """The calibrator of that name.

    Args:
        name: such as `percentile`.
        where: the recipe key or option that named it, for the error.

    Raises:
        RecipeError: there is no calibrator of that name.
    """
    return cast(Calibrator, plugins.load("calibrators", name, where=where))
