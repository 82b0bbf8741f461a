"""Statistics → `ranges.json`: an interval for every observed activation, and where it comes from."""

from __future__ import annotations

from octobert.config.recipe import Choice
from octobert.core.frozen import FrozenModel
from octobert.core.ranges import Provenance, Ranges
from octobert.pipeline.contract import Context, StepResult, Summary
from octobert.pipeline.stages import _artifacts, observe
from octobert.quantization import calibrators, observer


class Inputs(FrozenModel):
    """The statistics."""

    observe: StepResult


class Options(FrozenModel):
    """The calibrator; and for the record the model's digest and where the calibration rows come from."""

    calibrator: Choice
    model_digest: str
    source: str
    allow_leakage: bool


def run(context: Context[Inputs, Options]) -> Summary:
    """Calibrate."""
    options, choice = context.options, context.options.calibrator
    calibrator = calibrators.load(choice.name)
    settings = calibrator.Options.model_validate(choice.options)
    statistics = observer.load(context.inputs.observe.path(observe.STATISTICS))
    observed = context.inputs.observe.read_json(observe.FACTS)
    intervals = {}
    for index, (value, seen) in enumerate(sorted(statistics.items()), start=1):
        intervals[value] = calibrators.interval_of(calibrator, settings, value, seen)
        context.progress("calibrating", index, len(statistics))
    provenance = Provenance(
        samples=observed["samples"],
        tokens=observed["tokens"],
        data_digest=observed["data_digest"],
        model_digest=options.model_digest,
        source=options.source,
        allow_leakage=options.allow_leakage,
    )
    ranges = Ranges(calibrator=choice.name, options=settings.model_dump(), intervals=intervals, provenance=provenance)
    context.write(_artifacts.RANGES, ranges)
    return {"calibrator": choice.name, "values": len(intervals)}
