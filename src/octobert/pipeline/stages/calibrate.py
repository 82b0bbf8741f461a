"""Statistics → `ranges.json`: an interval for every observed activation, with where it comes from."""

from __future__ import annotations

from typing import Any

from octobert.core import plugins
from octobert.core.errors import DataError
from octobert.core.ranges import Interval, Provenance, Ranges, TensorStatistics
from octobert.pipeline.stages import Context, observe

VERSION = 2


def interval_of(calibrator: Any, options: Any, value: str, statistics: TensorStatistics) -> Interval:
    """The interval of one value.

    Raises:
        DataError: the calibrator cannot work with what was seen; with the value's name.
    """
    try:
        return calibrator.interval(statistics, options)
    except DataError as error:
        raise DataError(error.what, where=f'"{value}"', got=error.got, expected=error.expected, fix=error.fix) from error


def run(context: Context) -> dict[str, Any]:
    """Calibrate."""
    name = context.options["calibrator"]["name"]
    calibrator = plugins.load("calibrators", name)
    options = calibrator.Options.model_validate(context.options["calibrator"]["options"])
    statistics = observe.load(context.inputs["observe"] / "statistics.npz")
    observed = context.read_json("observe", "observed.json")
    intervals = {}
    for index, (value, one) in enumerate(sorted(statistics.items()), start=1):
        intervals[value] = interval_of(calibrator, options, value, one)
        context.progress("calibrating", index, len(statistics))
    provenance = Provenance(
        samples=observed["samples"],
        tokens=observed["tokens"],
        data_digest=observed["data_digest"],
        model_digest=context.options["model_digest"],
        source=context.options["source"],
        allow_leakage=context.options["allow_leakage"],
    )
    ranges = Ranges(calibrator=name, options=options.model_dump(), intervals=intervals, provenance=provenance)
    context.write("ranges.json", ranges)
    return {"calibrator": name, "values": len(intervals)}
