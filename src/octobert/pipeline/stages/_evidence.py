"""What the page of a report shows beyond the figures, from the results of a run's steps: rows with another answer, activations
and their intervals, channels, trainings, what was executed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from octobert.core.evidence import Activation, ChangedRows, Curve, Evidence, Execution, Histogram
from octobert.core.plan import Decision, Quantizer, QuantPlan
from octobert.core.ranges import TensorStatistics
from octobert.core.results import Report
from octobert.data.tokenization import EncodedTexts
from octobert.evaluation.scoring import changed_rows
from octobert.pipeline.contract import StepResult
from octobert.pipeline.stages import _artifacts
from octobert.quantization import observer
from octobert.tasks import Outputs, Task

BINS = 64
# More make the page larger, and nobody looks at them all.
MOST_ACTIVATIONS = 200
# Points of a curve; of longer trainings every n-th step is shown.
MOST_STEPS = 2000


@dataclass(frozen=True)
class Evaluated:
    """The evaluation rows, and what all candidates answered.

    Args:
        encoded: the texts, and what models read of them.
        gold: expected value of each item; empty without labels.
        outputs: candidate → outputs by name.
    """

    encoded: EncodedTexts
    gold: list[Any]
    outputs: Mapping[str, Outputs]


def gather(
    report: Report, steps: Mapping[str, StepResult], task: Task, evaluated: Evaluated | None
) -> Evidence:
    """Gather the evidence of a run.

    Args:
        report: of the run.
        steps: results of all steps.
        task: of the run.
        evaluated: None where nothing was evaluated.
    """
    observed = (
        observer.load(steps["observe"].path(_artifacts.STATISTICS)) if "observe" in steps else {}
    )
    changed: tuple[ChangedRows, ...] = ()
    lengths: list[int] = []
    if evaluated is not None:
        quantized = [
            comparison for comparison in report.comparisons if comparison.candidate in report.plans
        ]
        changed = changed_rows(
            task, quantized, evaluated.outputs, evaluated.encoded, evaluated.gold
        )
        lengths = [sum(len(row) for row in rows) for rows in evaluated.encoded.rows]
    channels = (
        steps["transform"].read(_artifacts.CHANNELS, _artifacts.Channels)
        if "transform" in steps
        else None
    )
    # Code of the user, and a model that was trained elsewhere, leave no curve.
    trained = [steps[name] for name in ("finetune", "prune", "qat") if name in steps]
    curves = [
        result.read(_artifacts.CURVE, Curve)
        for result in trained
        if result.path(_artifacts.CURVE).is_file()
    ]
    profiles = [result for name, result in steps.items() if name.startswith("profile/")]
    return Evidence(
        changed=changed,
        lengths=tuple(lengths),
        activations=activations(observed, report.plans),
        observed=len(observed),
        smoothed=channels.smoothed if channels is not None else (),
        curves=tuple(map(_thinned, curves)),
        executions=tuple(result.read(_artifacts.EXECUTION, Execution) for result in profiles),
    )


def activations(
    observed: Mapping[str, TensorStatistics], plans: Mapping[str, QuantPlan]
) -> tuple[Activation, ...]:
    """The observed activations in the order of the graph, with the interval that each plan gives them.

    Of more than 200, those stay that some plan quantizes, and of these the ones that lose most to clipping.
    """
    decisions: dict[str, dict[str, Decision]] = {}
    for target, plan in plans.items():
        for decision in plan.decisions:
            if decision.site.value in observed and not decision.site.is_weight:
                by_target = decisions.setdefault(decision.site.value, {})
                if target not in by_target or by_target[target].quantizer is None:
                    by_target[target] = decision
    everything = [_activation(observed[value], by_target) for value, by_target in decisions.items()]
    ranked = sorted(
        everything, key=lambda each: (not each.intervals, -max(each.clipped.values(), default=0.0))
    )
    shown = {each.value for each in ranked[:MOST_ACTIVATIONS]}
    return tuple(each for each in everything if each.value in shown)


def _activation(seen: TensorStatistics, decisions: Mapping[str, Decision]) -> Activation:
    site = next(iter(decisions.values())).site
    ends = {
        target: _ends(each.quantizer)
        for target, each in decisions.items()
        if each.quantizer is not None
    }
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


def _thinned(curve: Curve) -> Curve:
    every = -(-len(curve.steps) // MOST_STEPS) or 1
    values = {name: own[::every] for name, own in curve.values.items()}
    return curve.model_copy(update={"steps": curve.steps[::every], "values": values})
