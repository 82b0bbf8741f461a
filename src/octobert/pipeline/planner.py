"""A recipe becomes steps: which stage runs on what, with which options. What can be refused beforehand is refused here.

`steps_for` is a run from top to bottom, and `making.make` the part of it that makes models. Steps that measure run only with
`measure: true`.
"""

from __future__ import annotations

from collections.abc import Sequence

from octobert.config.loading import as_stored
from octobert.config.recipe import Choice, Recipe
from octobert.core import user_code
from octobert.core.errors import RecipeError
from octobert.core.user_code import UserCode
from octobert.engine.contract import Step, StepResult
from octobert.evaluation import candidates
from octobert.inspection import inspector, profilers
from octobert.pipeline import making
from octobert.pipeline.artifacts import (
    CapturedModel,
    Checkpoint,
    Compared,
    Evaluated,
    Planned,
    Profiled,
    Rows,
    TargetFiles,
    Timings,
)
from octobert.pipeline.resolve import resolve
from octobert.pipeline.run import Run
from octobert.pipeline.stages import (
    benchmark,
    evaluate,
    package,
    profile,
    report,
    simulate,
    sweep,
    tune,
)
from octobert.quantization.calibrators import PLUGINS


def steps_of(recipe: Recipe) -> list[Step]:
    """Return the steps of a recipe, in order.

    Raises:
        OctobertError: the model or the data cannot be found, a target is not installed, or a length is beyond the model.
    """
    return steps_for(resolve(recipe))


def steps_for(run: Run) -> list[Step]:
    """Return the steps of a run, in order."""
    recipe, steps = run.recipe, making.Steps()
    rows = making.read(steps, run)
    models = making.make(steps, run, rows)
    evaluated, simulated, timed, profiled = _measure(steps, run, rows, models)
    tuned = {
        each.name: steps.add(
            tune.run,
            f"tune/{each.name}",
            capture=models.captured,
            data=rows,
            export=models.exported[each.name],
            target=each.name,
            goals=tuple(sorted(recipe.tune)),
            entries=each.entries,
            quick=recipe.quick,
            machine=run.machine,
            spec=run.spec,
            seed=recipe.seed,
        )
        for each in run.targets
        if recipe.tune and each.name in run.candidates
    }
    trainings = {"finetune": models.checkpoint, "qat": models.trained}
    reported = steps.add(
        report.run,
        "report",
        steps={step.name: step.result for step in steps},
        data=rows,
        capture=models.captured,
        transformed=models.transformed,
        observed=models.seen,
        ranges=models.ranges,
        trainings={name: made for name, made in trainings.items() if made is not None},
        quantized=models.quantized,
        planned=models.planned,
        evaluated=evaluated,
        timed=timed,
        simulated=simulated,
        profiled=profiled,
        tuned=tuned,
        recipe=as_stored(recipe),
        model_digest=run.model.digest,
        absent=run.absent,
        scored=run.scored,
        choice=run.choice,
        seed=recipe.seed,
    )
    _package(steps, run, models, reported)
    return _checked(steps)


def _package(
    steps: making.Steps, run: Run, models: making.MadeModels, reported: StepResult
) -> None:
    """Add the steps that package the files of every target."""
    for each in run.targets:
        steps.add(
            package.run,
            f"package/{each.name}",
            capture=models.captured,
            ranges=models.ranges,
            export=models.exported[each.name],
            report=reported,
            target=each.name,
            entries=each.session,
            float_model=run.recipe.float_model,
        )


def sweep_steps(recipe: Recipe, calibrators: Sequence[Choice]) -> list[Step]:
    """Return the steps that compare calibrators for the recipe's first target.

    Raises:
        OctobertError: as `steps_of`, or a method that calibrates nothing.
    """
    # Ranges of quantization-aware training are not calibrated.
    run, steps = resolve(recipe.replaced(qat=None), tune=True), making.Steps()
    if not run.observed_kinds:
        raise RecipeError(
            "the method calibrates nothing",
            where="quantize",
            got=recipe.quantize.name,
            fix="use static",
        )
    first, *_ = run.targets
    rows = making.read(steps, run)
    captured = making.capture_model(steps, run, rows, making.train(steps, run, rows))
    graph = making.transform_graph(steps, run, rows, captured) or captured
    steps.add(
        sweep.run,
        f"sweep/{first.name}",
        capture=captured,
        data=rows,
        float_graph=graph,
        observed=making.observe_graph(steps, run, rows, captured, graph),
        target=first.target,
        session=first.session,
        method=first.method,
        calibrators=tuple(PLUGINS.make(choice) for choice in calibrators),
        spec=run.spec,
    )
    return _checked(steps)


def _checked(steps: list[Step]) -> list[Step]:
    """Return steps whose code of the user can be imported and called.

    Raises:
        RecipeError: it cannot.
    """
    codes = {
        code.digest: code for step in steps for code in step.reads if isinstance(code, UserCode)
    }
    user_code.check(list(codes.values()))
    return steps


def finetune_steps(recipe: Recipe) -> list[Step]:
    """Return the steps that train a float model and evaluate it.

    Raises:
        OctobertError: as `steps_of`, or a recipe without training.
    """
    if recipe.finetune is None:
        raise RecipeError(
            "the recipe trains nothing",
            where="finetune",
            fix="give it settings, such as finetune: {epochs: 3}",
        )
    run, steps = resolve(recipe, tune=False), making.Steps()
    rows = making.read(steps, run)
    checkpoint = making.train(steps, run, rows)
    captured = making.capture_model(steps, run, rows, checkpoint)
    _evaluate(steps, run, rows, candidates.CHECKPOINT.name, captured, checkpoint)
    return _checked(steps)


def _measure(
    steps: making.Steps, run: Run, rows: Rows, models: making.MadeModels
) -> tuple[dict[str, Evaluated], dict[str, Compared], Timings | None, dict[str, Profiled]]:
    """Add the steps that measure: evaluation of every candidate, the trained model beside the exported one, one benchmark of
    all, and what each target that can run here executes. None where the recipe does not ask for it."""
    recipe = run.recipe
    if not recipe.measure:
        return {}, {}, None, {}
    here = [each for each in run.targets if each.name in run.candidates]
    elsewhere = [each.name for each in run.simulated]
    evaluated = {
        name: _evaluate(
            steps,
            run,
            rows,
            name,
            models.captured,
            models.checkpoint,
            models.exported.get(name),
            models.planned[name] if name in elsewhere else None,
        )
        for name in (*run.answering, *elsewhere)
    }
    simulated = {
        each.name: steps.add(
            simulate.run,
            f"simulate/{each.name}",
            capture=models.captured,
            data=rows,
            qat=models.trained,
            planned=models.planned[each.name],
            evaluated=evaluated[each.name],
            scored=run.scored,
            seed=recipe.seed,
        )
        for each in here
        if models.trained is not None
    }
    timed = steps.add(
        benchmark.run,
        "benchmark",
        capture=models.captured,
        data=rows,
        trained=models.checkpoint,
        exports=models.exported,
        candidates=run.candidates,
        session={name: run.entries(name) for name in run.candidates},
        benchmark=run.benchmark,
        model=run.model,
        allow_pickle=recipe.allow_pickle,
        machine=run.machine,
        spec=run.spec,
        seed=recipe.seed,
    )
    if not recipe.profile or not run.reads_texts:
        return evaluated, simulated, timed, {}
    # The shape that is timed too, so that times can be compared.
    lengths = [length for length in run.benchmark.sequence if length != "data"]
    profiled = {
        each.name: steps.add(
            profile.run,
            f"profile/{each.name}",
            capture=models.captured,
            export=models.exported[each.name],
            target=each.target,
            entries=each.entries,
            batch=min(run.benchmark.batch),
            sequence=lengths[0] if lengths else min(inspector.DEFAULT_TOKENS, run.max_length),
            threads=run.benchmark.threads,
            runs=profile.QUICK_RUNS if recipe.quick else profile.RUNS,
            machine=run.machine,
            seed=recipe.seed,
        )
        for each in here
        if each.name in profilers.targets()
    }
    return evaluated, simulated, timed, profiled


def _evaluate(
    steps: making.Steps,
    run: Run,
    rows: Rows,
    candidate: str,
    captured: CapturedModel,
    trained: Checkpoint | None,
    exported: TargetFiles | None = None,
    simulated: Planned | None = None,
) -> Evaluated:
    """Add the evaluation of a candidate."""
    return steps.add(
        evaluate.run,
        f"evaluate/{candidate}",
        capture=captured,
        data=rows,
        trained=trained,
        export=exported,
        simulated=simulated,
        candidate=candidate,
        entries=run.entries(candidate),
        model=run.model,
        # What octobert trained is no pickle.
        allow_pickle=run.recipe.allow_pickle and trained is None,
        machine=run.machine,
        scored=run.scored,
        seed=run.recipe.seed,
    )
