"""The steps of a run that measure its models: evaluation, simulation, the benchmark, profiles, and tuning."""

from __future__ import annotations

from octobert.inspection import inspector, profilers
from octobert.pipeline.contract import Step, StepResult, step
from octobert.pipeline.facts import CAPTURE, DATA, RunFacts
from octobert.pipeline.stages import benchmark, evaluate, profile, simulate, tune


def measure_steps(facts: RunFacts) -> list[Step]:
    """Evaluation of every candidate, and one benchmark of all."""
    recipe = facts.recipe
    if not recipe.measure:
        return []
    steps = [evaluate_step(facts, name) for name in facts.candidates]
    for target in recipe.targets if recipe.qat is not None else ():
        if target in facts.candidates:
            inputs = simulate.Inputs(
                capture=CAPTURE,
                data=DATA,
                qat=facts.ranges,
                quantize=facts.chosen(target),
                evaluate=StepResult(step=f"evaluate/{target}"),
            )
            options = simulate.Options(task=facts.scored, seed=recipe.seed)
            steps.append(step(f"simulate/{target}", simulate.run, inputs, options))
    exports = {target: StepResult(step=f"export/{target}") for target in recipe.targets}
    timed = benchmark.Options(
        candidates=facts.candidates,
        session={name: facts.entries(name) for name in facts.candidates},
        benchmark=facts.benchmark,
        model=facts.model,
        allow_pickle=facts.allow_pickle,
        machine=facts.machine,
        task=facts.task,
        seed=recipe.seed,
    )
    rows = benchmark.Inputs(capture=CAPTURE, data=DATA, trained=facts.trained, exports=exports)
    return [*steps, step("benchmark", benchmark.run, rows, timed)]


def profile_steps(facts: RunFacts) -> list[Step]:
    """What every target that can run here executes, where its runtime has a profiler."""
    recipe, timed = facts.recipe, facts.benchmark
    if not (recipe.measure and recipe.profile):
        return []
    # The shape that is timed too, so that times can be compared.
    lengths = [length for length in timed.sequence if length != "data"]
    sequence = lengths[0] if lengths else min(inspector.DEFAULT_TOKENS, facts.max_length)
    return [
        step(
            f"profile/{target}",
            profile.run,
            profile.Inputs(capture=CAPTURE, export=StepResult(step=f"export/{target}")),
            profile.Options(
                target=target,
                entries=facts.entries(target),
                batch=min(timed.batch),
                sequence=sequence,
                threads=timed.threads,
                runs=profile.QUICK_RUNS if recipe.quick else profile.RUNS,
                machine=facts.machine,
                seed=recipe.seed,
            ),
        )
        for target in recipe.targets
        if target in facts.candidates and target in profilers.targets()
    ]


def tune_steps(facts: RunFacts) -> list[Step]:
    """The search for the fastest settings of every target that can run here, where the recipe asks for it."""
    recipe = facts.recipe
    return [
        step(
            f"tune/{target}",
            tune.run,
            tune.Inputs(capture=CAPTURE, data=DATA, export=StepResult(step=f"export/{target}")),
            tune.Options(
                target=target,
                goals=tuple(sorted(recipe.tune)),
                entries=facts.entries(target),
                quick=recipe.quick,
                machine=facts.machine,
                task=facts.task,
                seed=recipe.seed,
            ),
        )
        for target in recipe.targets
        if recipe.tune and target in facts.candidates
    ]


def evaluate_step(facts: RunFacts, candidate: str) -> Step:
    """Evaluation of one candidate."""
    exported = StepResult(step=f"export/{candidate}") if candidate in facts.recipe.targets else None
    # Figures belong to a machine and its runtimes; on another one they are measured again.
    options = evaluate.Options(
        candidate=candidate,
        entries=facts.entries(candidate),
        model=facts.model,
        allow_pickle=facts.allow_pickle,
        machine=facts.machine,
        task=facts.scored,
        seed=facts.recipe.seed,
    )
    inputs = evaluate.Inputs(capture=CAPTURE, data=DATA, trained=facts.trained, export=exported)
    return step(f"evaluate/{candidate}", evaluate.run, inputs, options)
