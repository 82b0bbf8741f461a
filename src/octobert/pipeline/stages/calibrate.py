"""Statistics → `ranges.json`: an interval for every observed activation, and where it comes from."""

from __future__ import annotations

from octobert.core.ranges import Exceeded, Provenance, Ranges
from octobert.engine.contract import Context, Summary, stage
from octobert.pipeline import artifacts
from octobert.pipeline.artifacts import Calibrated, Statistics
from octobert.quantization.calibrators import PLUGINS, CalibratorField


@stage(Calibrated, anywhere=True)
def run(
    context: Context,
    observed: Statistics,
    *,
    calibrator: CalibratorField,
    model_digest: str,
    source: str,
    allow_leakage: bool,
) -> Summary:
    """Calibrate.

    Args:
        model_digest: of the user's model, for the record.
        source: where the calibration rows come from, for the record.
    """
    name, statistics = PLUGINS.name_of(calibrator), observed.tensors()
    facts = observed.read_json(artifacts.OBSERVED)
    intervals = {}
    for index, (value, seen) in enumerate(sorted(statistics.items()), start=1):
        intervals[value] = calibrator.interval_of(value, seen)
        context.progress("calibrating", index, len(statistics))
    provenance = Provenance(
        samples=facts["samples"],
        tokens=facts["tokens"],
        data_digest=facts["data_digest"],
        model_digest=model_digest,
        source=source,
        allow_leakage=allow_leakage,
        supplement=facts["supplement"],
    )
    ranges = Ranges(
        calibrator=name,
        options=calibrator.model_dump(),
        intervals=intervals,
        provenance=provenance,
        exceeded=Exceeded.of(statistics, intervals),
    )
    context.write(artifacts.RANGES, ranges)
    return {"calibrator": name, "values": len(intervals)}
