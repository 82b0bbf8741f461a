"""A recipe becomes steps: which stage runs on what, with which options. What can be refused beforehand is refused here.

`steps_for` is a run from top to bottom, and `making.make` the part of it that makes models. Steps that measure run only with
`measure: true`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from octobert.config.loading import as_stored
from octobert.config.recipe import Choice, Recipe
from octobert.core import user_code
from octobert.core.errors import RecipeError
from octobert.core.user_code import UserCode
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
from octobert.pipeline.contract import Step, StepResult
from octobert.pipeline.facts import RunFacts, facts_of
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


def steps_of(recipe: Recipe) -> list[Step]:
    """Return the steps of a recipe, in order.

    Raises:
        OctobertError: the model or the data cannot be found, a target is not installed, or a length is beyond the model.
    """
    return steps_for(run_facts(recipe))


def run_facts(recipe: Recipe) -> RunFacts:
    """Return the facts of the run of a recipe without a search over recipes; it raises what `steps_of` raises."""
    return facts_of(recipe, tune=recipe.accuracy is not None)


def steps_for(facts: RunFacts) -> list[Step]:
    """Return the steps of a run, in order."""
    recipe, steps = facts.recipe, making.Steps()
    rows = making.read(steps, facts)
    models = making.make(steps, facts, rows)
    evaluated, simulated, timed, profiled = _measure(steps, facts, rows, models)
    tuned = {
        target: steps.add(
            tune.run,
            f"tune/{target}",
            capture=models.captured,
            data=rows,
            export=models.exported[target],
            target=target,
            goals=tuple(sorted(recipe.tune)),
            entries=facts.entries(target),
            quick=recipe.quick,
            machine=facts.machine,
            spec=facts.spec,
            seed=recipe.seed,
        )
        for target in recipe.targets
        if recipe.tune and target in facts.candidates
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
        model_digest=facts.model.digest,
        absent=facts.absent,
        scored=facts.scored,
        seed=recipe.seed,
    )
    _package(steps, facts, models, reported)
    return _checked(steps)


def packages(steps: Sequence[Step], chosen: str | None) -> list[Step]:
    """Return the steps of a run that package the files of every target, with why a search has chosen the model.

    Args:
        chosen: in one sentence; None without a search.
    """
    return [
        replace(step, options=step.options.replaced(chosen=chosen))
        for step in steps
        if step.stage == "package"
    ]


def _package(
    steps: making.Steps, facts: RunFacts, models: making.MadeModels, reported: StepResult
) -> None:
    """Add the steps that package the files of every target."""
    for target in facts.recipe.targets:
        steps.add(
            package.run,
            f"package/{target}",
            capture=models.captured,
            ranges=models.ranges,
            export=models.exported[target],
            report=reported,
            target=target,
            entries=facts.session(target),
            chosen=None,
            float_model=facts.recipe.float_model,
        )


def sweep_steps(recipe: Recipe, calibrators: Sequence[Choice]) -> list[Step]:
    """Return the steps that compare calibrators for the recipe's first target.

    Raises:
        OctobertError: as `steps_of`, or a method that calibrates nothing.
    """
    # Ranges of quantization-aware training are not calibrated.
    facts, steps, target = (
        facts_of(recipe.replaced(qat=None), tune=True),
        making.Steps(),
        recipe.targets[0],
    )
    if not making.observed_kinds(recipe):
        raise RecipeError(
            "the method calibrates nothing",
            where="quantize",
            got=recipe.quantize.name,
            fix="use static",
        )
    rows = making.read(steps, facts)
    captured = making.capture_model(steps, facts, rows, making.train(steps, facts, rows))
    graph = making.transform_graph(steps, facts, rows, captured) or captured
    steps.add(
        sweep.run,
        f"sweep/{target}",
        capture=captured,
        data=rows,
        float_graph=graph,
        observed=making.observe_graph(steps, facts, rows, captured, graph),
        target=target,
        session=facts.session(target),
        method=facts.method(target),
        calibrators=tuple(calibrators),
        spec=facts.spec,
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
    facts, steps = facts_of(recipe, tune=False), making.Steps()
    rows = making.read(steps, facts)
    checkpoint = making.train(steps, facts, rows)
    captured = making.capture_model(steps, facts, rows, checkpoint)
    _evaluate(steps, facts, rows, candidates.CHECKPOINT.name, captured, checkpoint)
    return _checked(steps)


def _measure(
    steps: making.Steps, facts: RunFacts, rows: Rows, models: making.MadeModels
) -> tuple[dict[str, Evaluated], dict[str, Compared], Timings | None, dict[str, Profiled]]:
    """Add the steps that measure: evaluation of every candidate, the trained model beside the exported one, one benchmark of
    all, and what each target that can run here executes. None where the recipe does not ask for it."""
    recipe = facts.recipe
    if not recipe.measure:
        return {}, {}, None, {}
    here = [target for target in recipe.targets if target in facts.candidates]
    evaluated = {
        name: _evaluate(
            steps,
            facts,
            rows,
            name,
            models.captured,
            models.checkpoint,
            models.exported.get(name),
            models.planned[name] if name in facts.simulated else None,
        )
        for name in (*facts.candidates, *facts.simulated)
    }
    simulated = {
        target: steps.add(
            simulate.run,
            f"simulate/{target}",
            capture=models.captured,
            data=rows,
            qat=models.trained,
            planned=models.planned[target],
            evaluated=evaluated[target],
            scored=facts.scored,
            seed=recipe.seed,
        )
        for target in here
        if models.trained is not None
    }
    timed = steps.add(
        benchmark.run,
        "benchmark",
        capture=models.captured,
        data=rows,
        trained=models.checkpoint,
        exports=models.exported,
        candidates=facts.candidates,
        session={name: facts.entries(name) for name in facts.candidates},
        benchmark=facts.benchmark,
        model=facts.model,
        allow_pickle=recipe.allow_pickle,
        machine=facts.machine,
        spec=facts.spec,
        seed=recipe.seed,
    )
    if not recipe.profile or not facts.reads_texts:
        return evaluated, simulated, timed, {}
    # The shape that is timed too, so that times can be compared.
    lengths = [length for length in facts.benchmark.sequence if length != "data"]
    profiled = {
        target: steps.add(
            profile.run,
            f"profile/{target}",
            capture=models.captured,
            export=models.exported[target],
            target=target,
            entries=facts.entries(target),
            batch=min(facts.benchmark.batch),
            sequence=lengths[0] if lengths else min(inspector.DEFAULT_TOKENS, facts.max_length),
            threads=facts.benchmark.threads,
            runs=profile.QUICK_RUNS if recipe.quick else profile.RUNS,
            machine=facts.machine,
            seed=recipe.seed,
        )
        for target in here
        if target in profilers.targets()
    }
    return evaluated, simulated, timed, profiled


def _evaluate(
    steps: making.Steps,
    facts: RunFacts,
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
        entries=facts.entries(candidate),
        model=facts.model,
        # What octobert trained is no pickle.
        allow_pickle=facts.recipe.allow_pickle and trained is None,
        machine=facts.machine,
        scored=facts.scored,
        seed=facts.recipe.seed,
    )
