"""Everything that was measured → `report.json`: scores, paired comparisons, latencies, the plans, and their sources; and
`evidence.json`: what the page shows beyond that."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import numpy as np

from octobert.core import environment
from octobert.core.closeness import Closeness
from octobert.core.evidence import (
    EVIDENCE,
    Activation,
    Curve,
    Evidence,
    Histogram,
)
from octobert.core.heads import head_of
from octobert.core.measurements import Comparison, Figures, Score, StoredScore
from octobert.core.plan import Decision, Quantizer, QuantPlan
from octobert.core.ranges import RangeFacts, TensorStatistics
from octobert.core.results import DataFacts, Report, StageFacts, TaskFacts
from octobert.core.selection import Selection
from octobert.data.tokenization import Tokenizer
from octobert.engine.contract import WITH_MANIFESTS, Context, StepResult, Summary, stage
from octobert.engine.store import manifest_of
from octobert.evaluation import candidates, probing, scoring
from octobert.evaluation.benchmarking import BenchmarkResult
from octobert.evaluation.classes import calibration_error
from octobert.evaluation.scoring import changed_rows
from octobert.evaluation.stored import stored_scores
from octobert.pipeline.artifacts import (
    TIMINGS,
    Calibrated,
    CapturedModel,
    Checkpoint,
    Compared,
    Evaluated,
    Planned,
    Profiled,
    Rows,
    Statistics,
    Timings,
    Transformed,
    TunedTarget,
)
from octobert.pipeline.task import ScoredTask, TaskSpec
from octobert.report import choices, judged
from octobert.tasks import PLUGINS, Result, Task

REPORT = "report.json"
BINS = 64
# More make the page larger, and nobody looks at them all.
MOST_ACTIVATIONS = 200
# Points of a curve; of longer trainings every n-th step is shown.
MOST_STEPS = 2000


@stage(StepResult)
def run(
    context: Context,
    steps: Annotated[dict[str, StepResult], WITH_MANIFESTS],
    data: Rows,
    capture: CapturedModel,
    transformed: Transformed | None,
    observed: Statistics,
    ranges: Calibrated,
    trainings: dict[str, Checkpoint],
    quantized: dict[str, Planned],
    planned: dict[str, Planned],
    evaluated: dict[str, Evaluated],
    timed: Timings | None,
    simulated: dict[str, Compared],
    profiled: dict[str, Profiled],
    tuned: dict[str, TunedTarget],
    *,
    recipe: dict[str, Any],
    model_digest: str,
    absent: dict[str, str],
    scored: ScoredTask,
    choice: Selection | None,
    seed: int,
) -> Summary:
    """Gather, compare, and check what the recipe demands.

    Args:
        steps: all of the run, with how long they took.
        transformed: of the graph that was observed, where it was transformed.
        trainings: `finetune` and `qat`, where the recipe asks for them.
        quantized: target → the plan before any search.
        planned: target → its plan.
        evaluated: candidate → its outputs.
        simulated, profiled, tuned: by target.
        absent: candidate → why it was not measured.
        choice: why a search has chosen these models, without sentences.
    """
    task, calibrated = scored.build(), ranges.ranges
    plans = {target: each.plan for target, each in planned.items()}
    costs = {target: each.sensitivity for target, each in quantized.items()}
    searches = {target: each.search for target, each in planned.items()}
    results = _results(capture, data, evaluated, task)
    timings = None if timed is None else timed.read(TIMINGS, BenchmarkResult)
    fitted = any(q.low is not None for plan in plans.values() for _, q in plan.quantized)
    report = Report(
        recipe=recipe,
        task=_task_facts(scored, task, data.read_json("evaluation.json")["inputs"]),
        data=DataFacts.model_validate(manifest_of(data).summary),
        model=capture.facts,
        model_digest=model_digest,
        ranges=RangeFacts(
            calibrator=calibrated.calibrator,
            options=calibrated.options,
            provenance=calibrated.provenance,
            exceeded=calibrated.exceeded if fitted else None,
        ),
        plans=plans,
        transforms=None if transformed is None else transformed.facts,
        sensitivities={target: cost for target, cost in costs.items() if cost is not None},
        searches={target: found for target, found in searches.items() if found is not None},
        simulations={target: each.simulated for target, each in simulated.items()},
        tuned={target: each.results for target, each in tuned.items()},
        models=_models(
            {name: each.scores for name, each in evaluated.items()},
            {name: calibration_error(task, result) for name, result in results.items()},
            {
                pair.candidate: pair.replaced(
                    simulated=pair.candidate in absent,
                    probe=_probed(task, capture.tokenizer(task), pair, evaluated, results),
                )
                for pair in _compared(task, results, seed)
            },
            tuple(_stored(task, results, tuple(plans), seed)),
            timings,
            absent,
        ),
        load=timings.load if timings is not None else None,
        environment=timings.environment if timings is not None else environment.current(),
        date=timings.date if timings is not None else environment.today(),
        stages={name: _facts(result) for name, result in steps.items()},
    )
    # All models have read the same rows.
    read = next(iter(results.values())).encoded.rows if results else ()
    statistics = observed.tensors()
    curves = [training.curve for training in trainings.values()]
    evidence = Evidence(
        changed=changed_rows(
            task, [pair for pair in report.compared if pair.candidate in plans], results
        ),
        lengths=tuple(sum(len(row) for row in rows) for rows in read if rows),
        activations=activations(statistics, plans),
        observed=len(statistics),
        smoothed=() if transformed is None else transformed.smoothed,
        curves=tuple(_thinned(curve) for curve in curves if curve is not None),
        executions=tuple(each.execution for each in profiled.values()),
    )
    context.write(EVIDENCE, evidence)
    # What the changed rows of each model have in common.
    directions = {changed.candidate: changed.sentence for changed in evidence.changed}
    models = [
        each
        if each.against_float is None
        else each.replaced(
            against_float=each.against_float.replaced(direction=directions.get(each.model, ""))
        )
        for each in report.models
    ]
    report = report.replaced(models=tuple(models), choice=choice)
    context.write(REPORT, choices.told(report.replaced(checks=judged.checked(report))))
    return {"comparisons": len(report.compared)}


def _models(
    scores: Mapping[str, tuple[Score, ...]],
    errors: Mapping[str, float | None],
    compared: Mapping[str, Comparison],
    stored: Sequence[StoredScore],
    timings: BenchmarkResult | None,
    absent: Mapping[str, str],
) -> tuple[Figures, ...]:
    """The figures of each model: those that were timed first, those that could not run last."""
    timed = {figures.model: figures for figures in timings.figures()} if timings is not None else {}
    return tuple(
        timed.get(name, Figures(model=name)).replaced(
            absent=absent.get(name, ""),
            scores=scores.get(name, ()),
            calibration_error=errors.get(name),
            against_float=compared.get(name),
            stored=tuple(score for score in stored if score.candidate == name),
        )
        for name in dict.fromkeys((*timed, *scores, *absent))
    )


def _task_facts(spec: TaskSpec, task: Task, texts: Sequence[Sequence[str]]) -> TaskFacts:
    """What a package must know to build the task again, and to refuse inputs of another form."""
    counts = {len(text) for text in texts} if head_of(task.head).shape == "classes" else set()
    stated = {
        **spec.stated.model_dump(),
        "labels": task.model_labels or spec.stated.labels,
        "texts": counts.pop() if len(counts) == 1 else 0,
    }
    return TaskFacts(
        **PLUGINS.written(spec.options),
        head=task.head,
        primary=task.primary,
        **stated,
    )


def _facts(result: StepResult) -> StageFacts:
    manifest = manifest_of(result)
    return StageFacts(
        summary=manifest.summary,
        seconds=manifest.seconds,
        peak_memory_bytes=manifest.peak_memory_bytes,
        key=manifest.key,
    )


def _results(
    capture: CapturedModel, data: Rows, evaluated: Mapping[str, Evaluated], task: Task
) -> dict[str, Result]:
    """What candidates answered; empty where there are none."""
    if not evaluated:
        return {}
    _, encoded, gold = capture.evaluation(data, task)
    return {name: Result(each.outputs(), encoded, gold) for name, each in evaluated.items()}


def _compared(task: Task, results: Mapping[str, Result], seed: int) -> Iterator[Comparison]:
    """Every target compared with its float baseline, and every other baseline with ONNX Runtime's float32."""
    for name, result in results.items():
        reference = candidates.reference_of(name, results)
        if reference is not None:
            both = (result, results[reference])
            yield scoring.compare(task, (name, reference), both, seed=seed)


def _probed(
    task: Task,
    tokenizer: Tokenizer,
    pair: Comparison,
    evaluated: Mapping[str, Evaluated],
    results: Mapping[str, Result],
) -> Closeness | None:
    """How near a candidate is to its reference on texts that nothing was fitted to; None for what reads no texts."""
    if not task.reads_texts:
        return None
    rows = probing.rows_like(results[pair.candidate].texts[0], task, tokenizer)
    ours, theirs = (evaluated[name].probed() for name in (pair.candidate, pair.reference))
    return probing.closeness(task, ours, theirs, rows)


def _stored(
    task: Task, results: Mapping[str, Result], targets_: Sequence[str], seed: int
) -> Iterator[StoredScore]:
    """Smaller forms of the vectors of every target."""
    for name in targets_:
        reference = candidates.reference_of(name, results) if name in results else None
        if reference is not None:
            yield from stored_scores(
                task, (name, reference), results[name], results[reference], seed=seed
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
        everything,
        key=lambda activation: (
            not activation.intervals,
            -max(activation.clipped.values(), default=0.0),
        ),
    )
    shown = {activation.value for activation in ranked[:MOST_ACTIVATIONS]}
    return tuple(activation for activation in everything if activation.value in shown)


def _activation(seen: TensorStatistics, decisions: Mapping[str, Decision]) -> Activation:
    site = next(iter(decisions.values())).site
    ends = {
        target: _ends(decision.quantizer)
        for target, decision in decisions.items()
        if decision.quantizer is not None
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
    values = {name: values[::every] for name, values in curve.values.items()}
    return curve.replaced(steps=curve.steps[::every], values=values)
