"""What the page shows of the inside of the models: activations and their intervals, channels, trainings, what was executed."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from octobert.core.evidence import Activation, Curve, Execution, Histogram, Smoothed
from octobert.core.plan import Decision, Quantizer, QuantPlan
from octobert.core.ranges import TensorStatistics
from octobert.pipeline.contract import StepResult
from octobert.pipeline.stages import finetune, observe, profile, transform
from octobert.quantization import observer

BINS = 64
# More make the page larger, and nobody looks at them all.
MOST_ACTIVATIONS = 200
# Points of a curve; of longer trainings every n-th step is shown.
MOST_STEPS = 2000


def statistics(steps: Mapping[str, StepResult]) -> dict[str, TensorStatistics]:
    """Value → what calibration has observed of it."""
    return observer.load(steps["observe"].path(observe.STATISTICS)) if "observe" in steps else {}


def activations(observed: Mapping[str, TensorStatistics], plans: Mapping[str, QuantPlan]) -> tuple[Activation, ...]:
    """The observed activations in the order of the graph, with the interval that each plan gives them.

    Of more than 200, those stay that some plan quantizes, and of these the ones that lose most to clipping.
    """
    found: dict[str, dict[str, Decision]] = {}
    for target, plan in plans.items():
        for decision in plan.decisions:
            if decision.site.value in observed and not decision.site.is_weight:
                own = found.setdefault(decision.site.value, {})
                if target not in own or own[target].quantizer is None:
                    own[target] = decision
    everything = [_activation(observed[value], by_target) for value, by_target in found.items()]
    ranked = sorted(everything, key=lambda each: (not each.intervals, -max(each.clipped.values(), default=0.0)))
    kept = {each.value for each in ranked[:MOST_ACTIVATIONS]}
    return tuple(each for each in everything if each.value in kept)


def _activation(seen: TensorStatistics, decisions: Mapping[str, Decision]) -> Activation:
    site = next(iter(decisions.values())).site
    ends = {target: _ends(each.quantizer) for target, each in decisions.items() if each.quantizer is not None}
    intervals = {target: pair for target, pair in ends.items() if pair is not None}
    return Activation(
        value=site.value,
        module=site.module,
        role=site.role,
        part=site.part,
        layer=site.layer,
        minimum=seen.minimum,
        maximum=seen.maximum,
        histogram=histogram(seen, BINS),
        intervals=intervals,
        clipped={target: clipped(seen, pair) for target, pair in intervals.items()},
    )


def _ends(quantizer: Quantizer) -> tuple[float, float] | None:
    """The interval that a quantizer covers: it includes 0, and is symmetric where the quantizer is."""
    if quantizer.low is None or quantizer.high is None:
        return None
    low, high = min(quantizer.low, 0.0), max(quantizer.high, 0.0)
    return (-max(-low, high), max(-low, high)) if quantizer.symmetric else (low, high)


def histogram(seen: TensorStatistics, bins: int) -> Histogram:
    """A histogram with equal bins from the minimum to the maximum."""
    inner = np.linspace(seen.minimum, seen.maximum, bins + 1)[1:-1]
    # Values at the ends are inside.
    below = np.concatenate([[0], np.rint(seen.cumulated(inner)).astype(np.int64), [seen.count]])
    return Histogram(low=seen.minimum, high=seen.maximum, counts=tuple(np.diff(below).tolist()))


def clipped(seen: TensorStatistics, interval: tuple[float, float]) -> float:
    """The share of the observed values outside of an interval."""
    low, high = seen.cumulated(np.array(interval))
    below = low if interval[0] > seen.minimum else 0.0
    above = seen.count - high if interval[1] < seen.maximum else 0.0
    return float((below + above) / max(seen.count, 1))


def smoothed(steps: Mapping[str, StepResult]) -> tuple[Smoothed, ...]:
    """What graph transforms did to channels."""
    return steps["transform"].read(transform.CHANNELS, transform.Channels).smoothed if "transform" in steps else ()


def curves(steps: Mapping[str, StepResult]) -> tuple[Curve, ...]:
    """The curves of the trainings of a run. Code of the user, and a model that was trained elsewhere, leave none."""
    trained = [steps[name] for name in ("finetune", "prune", "qat") if name in steps]
    found = [each.read(finetune.CURVE, Curve) for each in trained if each.path(finetune.CURVE).is_file()]
    return tuple(_thinned(curve) for curve in found)


def _thinned(curve: Curve) -> Curve:
    every = -(-len(curve.steps) // MOST_STEPS) or 1
    values = {name: own[::every] for name, own in curve.values.items()}
    return curve.model_copy(update={"steps": curve.steps[::every], "values": values})


def executions(steps: Mapping[str, StepResult]) -> tuple[Execution, ...]:
    """What runtimes executed of the models."""
    return tuple(each.read(profile.EXECUTION, Execution) for name, each in steps.items() if name.startswith("profile/"))
