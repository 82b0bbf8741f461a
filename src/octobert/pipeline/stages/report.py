"""Everything that was measured → `report.json`: scores, paired comparisons, latencies, the plans, and their sources; and
`evidence.json`: what the page shows beyond that."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

from octobert.core import environment
from octobert.core.evidence import EVIDENCE
from octobert.core.measurements import Comparison, SpeedGoal, Speedup
from octobert.core.plan import QuantPlan
from octobert.core.pruning import PruningFacts
from octobert.core.ranges import Ranges
from octobert.core.results import (
    CaptureFacts,
    DataFacts,
    RangeFacts,
    Report,
    Search,
    Sensitivity,
    Simulated,
    StageFacts,
    TaskFacts,
    TransformFacts,
)
from octobert.evaluation import candidates, latency, scoring
from octobert.evaluation.benchmarking import BenchmarkResult
from octobert.models.heads import head_of
from octobert.pipeline.contract import (
    WITH_MANIFESTS,
    Context,
    ScoredTask,
    StepResult,
    Summary,
    TaskSpec,
)
from octobert.pipeline.stages import _artifacts
from octobert.pipeline.stages._evidence import Evaluated, gather
from octobert.pipeline.store import manifest_of
from octobert.tasks import Task

REPORT = "report.json"


def run(
    context: Context,
    capture: StepResult,
    data: StepResult,
    ranges: StepResult,
    pruned: StepResult | None,
    transformed: StepResult | None,
    timed: StepResult | None,
    plans: dict[str, StepResult],
    sensitivities: dict[str, StepResult],
    simulations: dict[str, StepResult],
    tuned: dict[str, StepResult],
    evaluations: dict[str, StepResult],
    steps: Annotated[dict[str, StepResult], WITH_MANIFESTS],
    *,
    recipe: dict[str, Any],
    model_digest: str,
    absent: dict[str, str],
    scored: ScoredTask,
    seed: int,
) -> Summary:
    """Gather and compare.

    Args:
        plans, sensitivities, simulations, tuned: of each target.
        evaluations: of each candidate.
        steps: all of them, for how long they took.
        absent: candidate → why it was not measured.
    """
    task = scored.build()
    calibrated = ranges.read(_artifacts.RANGES, Ranges)
    evaluated = _evaluated(capture, data, evaluations, task)
    timings = dict(timed.read(_artifacts.TIMINGS, BenchmarkResult)) if timed is not None else {}
    figures = {
        "latencies": (),
        "footprints": (),
        "environment": environment.current(),
        "date": environment.today(),
        **timings,
    }
    searched = {
        target: plan for target, plan in plans.items() if plan.path(_artifacts.SEARCH).is_file()
    }
    report = Report(
        recipe=recipe,
        task=_task_facts(scored, task, data.read_json("evaluation.json")["inputs"]),
        data=DataFacts.model_validate(manifest_of(data).summary),
        model=capture.read(_artifacts.CAPTURED, CaptureFacts),
        model_digest=model_digest,
        ranges=RangeFacts(
            calibrator=calibrated.calibrator,
            options=calibrated.options,
            provenance=calibrated.provenance,
        ),
        plans={t: plan.read(_artifacts.PLAN, QuantPlan) for t, plan in plans.items()},
        pruning=pruned.read(_artifacts.PRUNING, PruningFacts) if pruned is not None else None,
        transforms=transformed.read(_artifacts.TRANSFORMS, TransformFacts)
        if transformed is not None
        else None,
        sensitivities={
            t: result.read(_artifacts.SENSITIVITY, Sensitivity)
            for t, result in sensitivities.items()
        },
        searches={t: plan.read(_artifacts.SEARCH, Search) for t, plan in searched.items()},
        simulations={
            t: result.read(_artifacts.SIMULATION, Simulated) for t, result in simulations.items()
        },
        tuned={
            t: result.read(_artifacts.TUNED, _artifacts.TunedResults).results
            for t, result in tuned.items()
        },
        scores={
            n: result.read(_artifacts.SCORES, _artifacts.Scores).scores
            for n, result in evaluations.items()
        },
        comparisons=tuple(_compared(task, evaluated, seed)),
        speed_goals=_speed_goals(
            recipe, tuple(plans), tuple(evaluations), timings.get("speedups", ())
        ),
        absent=absent,
        stages={name: _facts(result) for name, result in steps.items()},
        **{name: figure for name, figure in figures.items() if name in Report.model_fields},
    )
    evidence = gather(report, steps, task, evaluated)
    context.write(EVIDENCE, evidence)
    # What the changed rows of each model have in common.
    directions = {changed.candidate: changed.sentence for changed in evidence.changed}
    comparisons = [
        pair.model_copy(update={"direction": directions.get(pair.candidate, "")})
        for pair in report.comparisons
    ]
    context.write(REPORT, report.model_copy(update={"comparisons": tuple(comparisons)}))
    return {"comparisons": len(report.comparisons)}


def _speed_goals(
    recipe: Mapping[str, Any],
    wanted: Sequence[str],
    measured: Sequence[str],
    speedups: Sequence[Speedup],
) -> tuple[SpeedGoal, ...]:
    """Whether every target is as fast as the recipe wants."""
    goal = recipe.get("speed")
    if goal is None:
        return ()
    baselines = {target: candidates.baseline_of(target, measured).name for target in wanted}
    return latency.speed_goals(speedups, baselines, goal["min_speedup"])


def _task_facts(spec: TaskSpec, task: Task, texts: Sequence[Sequence[str]]) -> TaskFacts:
    """What a package must know to build the task again, and to refuse inputs of another form."""
    counts = {len(text) for text in texts} if head_of(task.head).shape == "classes" else set()
    stated = {
        **spec.stated.model_dump(),
        "labels": task.labels or spec.stated.labels,
        "texts": counts.pop() if len(counts) == 1 else 0,
    }
    return TaskFacts(
        name=spec.name, options=spec.options, head=task.head, primary=task.primary, **stated
    )


def _facts(result: StepResult) -> StageFacts:
    made = manifest_of(result)
    return StageFacts(
        summary=made.summary,
        seconds=made.seconds,
        peak_memory_bytes=made.peak_memory_bytes,
        key=made.key,
    )


def _evaluated(
    capture: StepResult, data: StepResult, evaluations: Mapping[str, StepResult], task: Task
) -> Evaluated | None:
    """What was evaluated; None where nothing was."""
    if not evaluations:
        return None
    _, encoded, gold = _artifacts.evaluation_rows(capture, data, task)
    outputs = {
        name: _artifacts.arrays_in(result.path(_artifacts.OUTPUTS))
        for name, result in evaluations.items()
    }
    return Evaluated(encoded, gold, outputs)


def _compared(task: Task, rows: Evaluated | None, seed: int) -> Iterator[Comparison]:
    """Every target compared with its float baseline, and every other baseline with ONNX Runtime's float32."""
    outputs = rows.outputs if rows is not None else {}
    for name in outputs:
        reference = candidates.reference_of(name, outputs)
        if rows is not None and reference is not None:
            pair = (outputs[name], outputs[reference])
            yield scoring.compare(task, (name, reference), pair, rows.encoded, rows.gold, seed=seed)
