"""Everything that was measured → `report.json`: scores, paired comparisons, latencies, the plans, and their sources; and
`evidence.json`: what the page shows beyond that."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from octobert.core import environment
from octobert.core.evidence import EVIDENCE, Evidence
from octobert.core.frozen import FrozenModel
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
from octobert.pipeline.contract import Context, ScoredTask, StepResult, Summary, TaskSpec
from octobert.pipeline.stages import (
    _artifacts,
    _rows,
    benchmark,
    evaluate,
    prune,
    search,
    sensitivity,
    simulate,
    transform,
    tune,
)
from octobert.pipeline.stages._evidence import Evaluated, gather
from octobert.pipeline.store import manifest_of
from octobert.tasks import Task

REPORT = "report.json"


class Inputs(FrozenModel):
    """Plan, sensitivity and simulation of each target, evaluation of each candidate; and all steps, for how long they took."""

    # How long the steps took is reported too, so their manifests count for the key, not only their files.
    READS_MANIFESTS: ClassVar = True

    capture: StepResult
    data: StepResult
    ranges: StepResult
    prune: StepResult | None = None
    transform: StepResult | None = None
    benchmark: StepResult | None = None
    plans: dict[str, StepResult]
    sensitivities: dict[str, StepResult]
    simulations: dict[str, StepResult]
    tuned: dict[str, StepResult]
    evaluations: dict[str, StepResult]
    steps: dict[str, StepResult]


class Options(FrozenModel):
    """What the report repeats: the recipe, and why a baseline was not measured."""

    recipe: dict[str, Any]
    model_digest: str
    absent: dict[str, str]
    task: ScoredTask
    seed: int


def run(context: Context[Inputs, Options]) -> Summary:
    """Gather and compare."""
    inputs, options = context.inputs, context.options
    task = options.task.build()
    ranges = inputs.ranges.read(_artifacts.RANGES, Ranges)
    evaluated = _evaluated(inputs, task)
    timings = inputs.benchmark.read(benchmark.TIMINGS, BenchmarkResult) if inputs.benchmark is not None else None
    searched = {target: plan for target, plan in inputs.plans.items() if plan.path(search.FACTS).is_file()}
    report = Report(
        recipe=options.recipe,
        task=_task_facts(options.task, task, inputs.data.read_json("evaluation.json")["inputs"]),
        data=DataFacts.model_validate(manifest_of(inputs.data).summary),
        model=inputs.capture.read("capture.json", CaptureFacts),
        model_digest=options.model_digest,
        ranges=RangeFacts(calibrator=ranges.calibrator, options=ranges.options, provenance=ranges.provenance),
        plans={t: plan.read(_artifacts.PLAN, QuantPlan) for t, plan in inputs.plans.items()},
        pruning=inputs.prune.read(prune.FACTS, PruningFacts) if inputs.prune is not None else None,
        transforms=inputs.transform.read(transform.FACTS, TransformFacts) if inputs.transform is not None else None,
        sensitivities={t: result.read(sensitivity.FACTS, Sensitivity) for t, result in inputs.sensitivities.items()},
        searches={t: plan.read(search.FACTS, Search) for t, plan in searched.items()},
        simulations={t: result.read(simulate.FACTS, Simulated) for t, result in inputs.simulations.items()},
        tuned={t: result.read(tune.TUNED, tune.Results).results for t, result in inputs.tuned.items()},
        scores={n: result.read(evaluate.SCORES, evaluate.Scores).scores for n, result in inputs.evaluations.items()},
        comparisons=tuple(_compared(task, evaluated, options.seed)),
        latencies=timings.latencies if timings else (),
        footprints=timings.footprints if timings else (),
        speedups=timings.speedups if timings else (),
        throughputs=timings.throughputs if timings else (),
        ratios=timings.ratios if timings else (),
        speed_goals=_speed_goals(options, inputs, timings.speedups if timings else ()),
        load=timings.load if timings else None,
        environment=timings.environment if timings else environment.current(),
        absent=options.absent,
        stages={name: _facts(result) for name, result in inputs.steps.items()},
    )
    evidence = gather(report, inputs.steps, task, evaluated)
    context.write(EVIDENCE, evidence)
    context.write(REPORT, _with_directions(report, evidence))
    return {"comparisons": len(report.comparisons)}


def _with_directions(report: Report, evidence: Evidence) -> Report:
    """The report with what the changed rows of each model have in common."""
    found = {changed.candidate: changed.sentence for changed in evidence.changed}
    told = (each.model_copy(update={"direction": found.get(each.candidate, "")}) for each in report.comparisons)
    return report.model_copy(update={"comparisons": tuple(told)})


def _speed_goals(options: Options, inputs: Inputs, found: Sequence[Speedup]) -> tuple[SpeedGoal, ...]:
    """Whether every target is as fast as the recipe wants."""
    goal = options.recipe.get("speed")
    if goal is None:
        return ()
    measured = tuple(inputs.evaluations)
    baselines = {target: candidates.baseline_of(target, measured).name for target in inputs.plans}
    return latency.speed_goals(found, baselines, goal["min_speedup"])


def _task_facts(spec: TaskSpec, task: Task, texts: Sequence[Sequence[str]]) -> TaskFacts:
    """What a package must know to build the task again, and to refuse inputs of another form."""
    counts = {len(text) for text in texts} if head_of(task.head).shape == "classes" else set()
    stated = {
        **spec.stated.model_dump(),
        "labels": task.labels or spec.stated.labels,
        "texts": counts.pop() if len(counts) == 1 else 0,
    }
    return TaskFacts(name=spec.name, options=spec.options, head=task.head, primary=task.primary, **stated)


def _facts(result: StepResult) -> StageFacts:
    made = manifest_of(result)
    return StageFacts(summary=made.summary, seconds=made.seconds, peak_memory_bytes=made.peak_memory_bytes, key=made.key)


def _evaluated(inputs: Inputs, task: Task) -> Evaluated | None:
    """What was evaluated; None where nothing was."""
    if not inputs.evaluations:
        return None
    encoded, gold = _rows.evaluation_rows(inputs.data, task, _rows.tokenizer_of(inputs.capture, task))
    outputs = {}
    for name, result in inputs.evaluations.items():
        with np.load(result.path(evaluate.OUTPUTS)) as arrays:
            outputs[name] = {k: arrays[k] for k in arrays.files}
    return Evaluated(encoded, gold, outputs)


def _compared(task: Task, found: Evaluated | None, seed: int) -> list[Comparison]:
    """Every target compared with its float baseline, and every other baseline with ONNX Runtime's float32."""
    compared: list[Comparison] = []
    if found is None:
        return compared
    for name in found.outputs:
        reference = candidates.reference_of(name, tuple(found.outputs))
        if reference is not None:
            pair = (found.outputs[name], found.outputs[reference])
            compared.append(scoring.compare(task, (name, reference), pair, found.encoded, found.gold, seed=seed))
    return compared
