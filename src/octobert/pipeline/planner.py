"""A recipe becomes steps: which stage runs on what, with which options. What can be refused beforehand is refused here.

    data ─┬────────────────────────┐
          └─ [finetune] ─ capture ─┴─ [prune] ─ transform ─ observe ─ calibrate ─┬────────────────────────┬─ quantize/T ─┐
                                                                                 └ [qat ─ capture/trained] ┘             │
  package/T ─ report ─ evaluate/C, benchmark, profile/T, [simulate/T] ─ export/T ─ [sensitivity/T ─ search/T] ───────────┘

T runs over targets, C over candidates (baselines and targets). A step in brackets runs where the recipe asks for it. Steps that
measure run only with `measure: true`. With `zip: true` each package is followed by archive/T.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace

from octobert import targets
from octobert.config.loading import options_of
from octobert.config.pruning import Prune
from octobert.config.recipe import Choice, Recipe, RowSelection
from octobert.config.training import TrainingSettings
from octobert.core import user_code
from octobert.core.errors import RecipeError
from octobert.core.user_code import UserCode
from octobert.evaluation import candidates
from octobert.models import source
from octobert.models.source import ModelSource
from octobert.pipeline import measuring, preflight
from octobert.pipeline.contract import Step, StepResult, step
from octobert.pipeline.facts import CAPTURE, DATA, OBSERVE, PRUNE, RunFacts, facts_of
from octobert.pipeline.stages import (
    archive,
    calibrate,
    capture,
    data,
    export,
    finetune,
    observe,
    package,
    prune,
    qat,
    quantize,
    report,
    search,
    sensitivity,
    sweep,
    transform,
)
from octobert.quantization import methods

# Tokens of a short row, so that enough rows are read.
FEWEST_TOKENS = 8


def steps_of(recipe: Recipe) -> list[Step]:
    """The steps of a recipe, in order.

    Raises:
        OctobertError: the model or the data cannot be found, a target is not installed, or a length is beyond the model.
    """
    return steps_for(facts_of(recipe, tune=recipe.accuracy is not None))


def steps_for(facts: RunFacts) -> list[Step]:
    """The steps of a run, in order."""
    steps = [_data(facts), *_finetune(facts), *_model(facts), *_targets(facts)]
    steps += [*measuring.measure_steps(facts), *measuring.profile_steps(facts), *measuring.tune_steps(facts)]
    steps.append(_report(facts, steps))
    return _checked([*steps, *_packages(facts)])


def model_steps(facts: RunFacts) -> list[Step]:
    """The steps that make the models of a run, and measure nothing."""
    return [*_finetune(facts), *_model(facts), *_targets(facts)]


def package_steps(facts: RunFacts, chosen: str) -> list[Step]:
    """The steps that package the model that a search has chosen.

    Args:
        chosen: why, in one sentence.
    """
    return _packages(facts, chosen)


def data_step(facts: RunFacts) -> Step:
    """The step that reads the rows."""
    return _data(facts)


def sweep_steps(recipe: Recipe, calibrators: Sequence[Choice]) -> list[Step]:
    """The steps that compare calibrators for the recipe's first target.

    Raises:
        OctobertError: as `steps_of`, or a method that calibrates nothing.
    """
    facts = facts_of(_without_qat(recipe), tune=True)
    if not observed_kinds(recipe):
        raise RecipeError("the method calibrates nothing", where="quantize", got=recipe.quantize.name, fix="use static")
    target = recipe.targets[0]
    compared = step(
        f"sweep/{target}",
        sweep.run,
        sweep.Inputs(capture=CAPTURE, data=DATA, float_graph=facts.float_graph, observe=OBSERVE),
        sweep.Options(
            target=target,
            entries=facts.session(target),
            method=facts.method(target),
            calibrators=tuple(calibrators),
            task=facts.task,
            seed=recipe.seed,
        ),
    )
    needed = [each for each in _model(facts) if each.stage in ("capture", "prune", "transform", "observe")]
    return _checked([_data(facts), *_finetune(facts), *needed, compared])


def _checked(steps: list[Step]) -> list[Step]:
    """Steps whose code of the user can be imported and called.

    Raises:
        RecipeError: it cannot.
    """
    codes = {code.digest: code for each in steps for code in each.reads if isinstance(code, UserCode)}
    user_code.check(list(codes.values()))
    return steps


def _without_qat(recipe: Recipe) -> Recipe:
    """The recipe without quantization-aware training, whose ranges are not calibrated."""
    return recipe.model_copy(update={"qat": None})


def finetune_steps(recipe: Recipe) -> list[Step]:
    """The steps that train a float model and evaluate it.

    Raises:
        OctobertError: as `steps_of`, or a recipe without training.
    """
    if recipe.finetune is None:
        raise RecipeError("the recipe trains nothing", where="finetune", fix="give it settings, such as finetune: {epochs: 3}")
    facts = replace(facts_of(recipe, tune=False), allow_pickle=False)
    return _checked(
        [_data(facts), *_finetune(facts), _capture(facts), measuring.evaluate_step(facts, candidates.CHECKPOINT.name)]
    )


def _data(facts: RunFacts) -> Step:
    settings, places = facts.recipe.data, facts.places
    parts = {"calibrate": places.calibrate, "evaluate": places.evaluate, "tune": places.tune, "train": places.train}
    return step(
        "data",
        data.run,
        data.Inputs(),
        data.Options(
            task=facts.task,
            seed=facts.recipe.seed,
            places={part: place for part, place in parts.items() if place is not None},
            content=places.content(),
            alone=places.alone,
            how=places.how,
            hub=places.hub,
            revision=settings.revision,
            columns=settings.columns,
            calibrate=_nameless(settings.calibrate),
            evaluate=_nameless(settings.evaluate),
            tune=_nameless(settings.tune) if places.tune is not None else None,
            finetune=_nameless(settings.finetune) if places.train is not None else None,
            fitting=_fitting(facts.recipe),
            functions={part: places.functions[place] for part, place in parts.items() if place and place in places.functions},
            preprocess=facts.preprocess,
            allow_leakage=settings.allow_leakage,
        ),
    )


def _fitting(recipe: Recipe) -> int | None:
    """Rows that pruning may fit weights to: more than their tokens are worth, as their lengths are not known yet."""
    searched = recipe.choose is not None and "prune" in (recipe.choose.vary or ())
    settings = recipe.prune or (Prune() if searched else None)
    if settings is None:
        return None
    # With training, all rows unless it says how many.
    trained = 0 if settings.recover is None else settings.recover.samples or sys.maxsize
    return max(settings.tokens // FEWEST_TOKENS, trained)


def _nameless(rows: RowSelection) -> RowSelection:
    """A selection without the name of its file or split: the content counts, not the name."""
    return rows.model_copy(update={"from_": ""})


def _finetune(facts: RunFacts) -> list[Step]:
    """Training of the base model, where the recipe asks for it."""
    recipe, settings = facts.recipe, facts.recipe.finetune
    if settings is None:
        return []
    options = finetune.Options(
        model=facts.model,
        teacher=_teacher(recipe, settings),
        code=_code("finetune", settings),
        allow_pickle=recipe.allow_pickle,
        training=recipe.training,
        task=facts.task,
        seed=recipe.seed,
        settings=settings,
    )
    return [step("finetune", finetune.run, finetune.Inputs(data=DATA), options, recipe.training)]


def _teacher(recipe: Recipe, settings: TrainingSettings) -> ModelSource | None:
    """The checkpoint that a model in training follows, where it is not the one it starts from."""
    if settings.distill is None or settings.distill.teacher is None:
        return None
    return source.resolve(settings.distill.teacher, allow_pickle=recipe.allow_pickle)


def _code(stage: str, settings: TrainingSettings) -> UserCode | None:
    """The user's training function."""
    return None if settings.code is None else user_code.at(settings.code, "train", where=f"{stage}.code")


def _capture(facts: RunFacts) -> Step:
    options = capture.Options(model=facts.model, head=facts.head, allow_pickle=facts.recipe.allow_pickle)
    return step("capture", capture.run, capture.Inputs(trained=facts.trained), options)


def observed_kinds(recipe: Recipe) -> tuple[str, ...]:
    """Kinds of sites that the recipe's method needs ranges of, for any of its targets."""
    capabilities = [targets.load(name).CAPABILITIES for name in recipe.targets]
    return tuple(methods.load(recipe.quantize.name).observed_kinds(options_of(recipe.quantize, "methods"), capabilities))


def _shared_kinds(facts: RunFacts) -> tuple[str, ...]:
    """Kinds of sites to observe: those of the recipe's method, and those of other recipes that share the pass."""
    own = observed_kinds(facts.recipe)
    return tuple(sorted({*own, *facts.kinds})) if own else ()


def _model(facts: RunFacts) -> list[Step]:
    """The float graph and its ranges; with quantization-aware training, the graph and ranges that came of it."""
    recipe = facts.recipe
    steps = [_capture(facts)]
    if recipe.prune is not None:
        steps.append(_prune(facts, recipe.prune))
    if recipe.transforms:
        transformed = transform.Options(transforms=recipe.transforms, task=facts.task, seed=recipe.seed)
        prepared = transform.Inputs(capture=CAPTURE, data=DATA, float_graph=facts.prepared_graph)
        steps.append(step("transform", transform.run, prepared, transformed))
    graph = facts.observed_graph
    steps += [
        step(
            "observe",
            observe.run,
            observe.Inputs(capture=CAPTURE, data=DATA, float_graph=graph),
            observe.Options(kinds=_shared_kinds(facts), provider=recipe.calibration_provider, task=facts.task),
        ),
        step(
            "calibrate",
            calibrate.run,
            calibrate.Inputs(observe=OBSERVE),
            calibrate.Options(
                calibrator=recipe.calibrate,
                model_digest=facts.model.digest,
                source=facts.places.how,
                allow_leakage=recipe.data.allow_leakage,
            ),
        ),
    ]
    if recipe.qat is None:
        return steps
    options = qat.Options(
        model=facts.model,
        teacher=_teacher(recipe, recipe.qat),
        code=_code("qat", recipe.qat),
        allow_pickle=recipe.allow_pickle,
        training=recipe.training,
        task=facts.task,
        seed=recipe.seed,
        settings=recipe.qat,
        methods={name: facts.method(name) for name in recipe.targets},
        trained=None if recipe.qat.trained is None else source.resolve(recipe.qat.trained),
    )
    calibrated = StepResult(step="calibrate")
    inputs = qat.Inputs(capture=CAPTURE, data=DATA, float_graph=graph, calibrate=calibrated, finetune=facts.trained)
    trained = step("qat", qat.run, inputs, options, recipe.training if recipe.qat.trained is None else None)
    captured = capture.Options(model=facts.model, head=facts.head, allow_pickle=False)
    return [*steps, trained, step("capture/trained", capture.run, capture.Inputs(trained=trained.result), captured)]


def _targets(facts: RunFacts) -> list[Step]:
    """For every target a plan and its model. The plan is searched for where the recipe has a criterion."""
    recipe, steps = facts.recipe, []
    rows = {"capture": CAPTURE, "data": DATA, "float_graph": facts.float_graph}
    for target in recipe.targets:
        planned = step(
            f"quantize/{target}",
            quantize.run,
            quantize.Inputs(**rows, ranges=facts.ranges),
            quantize.Options(
                target=target,
                method=facts.method(target),
                corrections=recipe.corrections,
                strict=recipe.strict,
                task=facts.task,
            ),
        )
        steps.append(planned)
        if recipe.sensitivity or recipe.accuracy is not None:
            inputs = sensitivity.Inputs(**rows, quantize=planned.result, observe=OBSERVE)
            steps.append(
                step(
                    f"sensitivity/{target}",
                    sensitivity.run,
                    inputs,
                    sensitivity.Options(task=facts.task, seed=recipe.seed),
                )
            )
        if recipe.accuracy is not None:
            options = search.Options(
                accuracy=recipe.accuracy,
                target=target,
                entries=facts.session(target),
                machine=facts.machine,
                task=facts.scored,
                seed=recipe.seed,
            )
            measured = StepResult(step=f"sensitivity/{target}")
            searched = search.Inputs(**rows, quantize=planned.result, sensitivity=measured)
            steps.append(step(f"search/{target}", search.run, searched, options))
        form = _form(facts, target)
        steps.append(step(f"export/{target}", export.run, export.Inputs(quantize=facts.chosen(target)), form))
    return steps


def _form(facts: RunFacts, target: str) -> export.Options:
    """What a target's files are like."""
    recipe, capabilities = facts.recipe, targets.load(target).CAPABILITIES
    return export.Options(
        target=target,
        fast_norms=facts.here.cores <= capabilities.fast_norms,
        token_states=recipe.token_states,
        shape=facts.shape(capabilities),
        opset=recipe.opset,
        format=recipe.format,
    )


def _prune(facts: RunFacts, settings: Prune) -> Step:
    """Pruning for the kernels of one target."""
    recipe, timed, target = facts.recipe, facts.benchmark, preflight.pruned_for(facts.recipe)
    # Lengths that the user has named; else those of the rows.
    named = recipe.benchmark.sequence if "sequence" in recipe.benchmark.model_fields_set else ()
    options = prune.Options(
        settings=settings,
        target=target,
        method=facts.method(target),
        entries=facts.entries(target),
        form=_form(facts, target),
        lengths=tuple(length for length in named if length != "data"),
        batch=min(timed.batch),
        threads=timed.threads,
        machine=facts.machine,
        task=facts.scored,
        seed=recipe.seed,
    )
    return step("prune", prune.run, prune.Inputs(capture=CAPTURE, data=DATA), options)


def _report(facts: RunFacts, steps: Sequence[Step]) -> Step:
    """The report of all steps before it."""

    def by_suffix(stage: str) -> dict[str, StepResult]:
        return {each.name.partition("/")[2]: each.result for each in steps if each.stage == stage}

    timed = [each.result for each in steps if each.stage == "benchmark"]
    inputs = report.Inputs(
        capture=CAPTURE,
        data=DATA,
        ranges=facts.ranges,
        prune=PRUNE if facts.recipe.prune is not None else None,
        transform=StepResult(step="transform") if facts.recipe.transforms else None,
        benchmark=timed[0] if timed else None,
        plans={target: facts.chosen(target) for target in facts.recipe.targets},
        sensitivities=by_suffix("sensitivity"),
        simulations=by_suffix("simulate"),
        tuned=by_suffix("tune"),
        evaluations=by_suffix("evaluate"),
        steps={each.name: each.result for each in steps},
    )
    options = report.Options(
        # Where results are stored says nothing about them.
        recipe=facts.recipe.model_dump(mode="json", by_alias=True, exclude={"cache", "log_level"}),
        model_digest=facts.model.digest,
        absent=facts.absent,
        task=facts.scored,
        seed=facts.recipe.seed,
    )
    return step("report", report.run, inputs, options)


def _packages(facts: RunFacts, chosen: str | None = None) -> list[Step]:
    """A package for every target; also as a zip file where the recipe asks for it."""
    reported = StepResult(step="report")
    steps = [
        step(
            f"package/{target}",
            package.run,
            package.Inputs(capture=CAPTURE, ranges=facts.ranges, export=StepResult(step=f"export/{target}"), report=reported),
            package.Options(target=target, entries=facts.session(target), chosen=chosen),
        )
        for target in facts.recipe.targets
    ]
    for target in facts.recipe.targets if facts.recipe.zip else ():
        packaged = archive.Inputs(package=StepResult(step=f"package/{target}"))
        steps.append(step(f"archive/{target}", archive.run, packaged, archive.Options(target=target)))
    return steps
