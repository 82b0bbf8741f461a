"""A recipe becomes steps: which stage runs on what, with which options. What can be refused beforehand is refused here.

    data ─┬────────────────────────┐
          └─ [finetune] ─ capture ─┴─ transform ─ observe ─ calibrate ─┬────────────────────────┬─ quantize/T ─┐
                                                                       └ [qat ─ capture/trained] ┘             │
  package/T ─ report ─ evaluate/C, benchmark, profile/T, [simulate/T] ─ export/T ─ [search/T] ─────────────────┘

T runs over targets, C over candidates (baselines and targets). A step in brackets runs where the recipe asks for it. Steps
that measure run only with `measure: true`. quantize/T takes the corrected weights of the target before it where they are the
same.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence

from octobert import targets
from octobert.config.loading import as_stored, options_of
from octobert.config.recipe import Choice, Recipe
from octobert.config.rows import RowSelection
from octobert.config.training import Finetune, Qat, Training
from octobert.core import user_code
from octobert.core.errors import RecipeError
from octobert.core.user_code import UserCode
from octobert.evaluation import candidates
from octobert.inspection import inspector, profilers
from octobert.models import source
from octobert.pipeline.contract import Stage, Step, signature_of
from octobert.pipeline.facts import RunFacts, facts_of
from octobert.pipeline.stages import (
    benchmark,
    calibrate,
    capture,
    data,
    evaluate,
    export,
    finetune,
    observe,
    package,
    profile,
    qat,
    quantize,
    report,
    search,
    simulate,
    sweep,
    transform,
    tune,
)
from octobert.quantization import methods


def planned(
    facts: RunFacts, name: str, run: Stage, launch: Training | None = None, /, **values: object
) -> Step:
    """A step of a run.

    Args:
        name: of the step: that of its stage, or with a target or a candidate behind a slash.
        run: the stage.
        values: parameters of the stage by name. The others are filled in: `target` and `candidate` from the step's name, then
            facts of the run, then keys of the recipe.

    Raises:
        ValueError: a parameter is missing, unknown, or of another type.
    """
    signature, of = signature_of(run), name.partition("/")[2]
    for parameter in {
        **signature.inputs.model_fields,
        **signature.options.model_fields,
    }.keys() - values.keys():
        if parameter in ("target", "candidate"):
            values[parameter] = of
        elif hasattr(facts, parameter):
            fact = getattr(facts, parameter)
            values[parameter] = fact(of) if inspect.ismethod(fact) else fact
        elif parameter in type(facts.recipe).model_fields:
            values[parameter] = getattr(facts.recipe, parameter)
    inputs = {
        parameter: values.pop(parameter)
        for parameter in signature.inputs.model_fields
        if parameter in values
    }
    return Step(
        name,
        run.__module__.rpartition(".")[2],
        signature.inputs(**inputs),
        signature.options(**values),
        launch,
    )


def steps_of(recipe: Recipe) -> list[Step]:
    """The steps of a recipe, in order.

    Raises:
        OctobertError: the model or the data cannot be found, a target is not installed, or a length is beyond the model.
    """
    return steps_for(run_facts(recipe))


def run_facts(recipe: Recipe) -> RunFacts:
    """The facts of the run of a recipe without a search over recipes; it raises what `steps_of` raises."""
    return facts_of(recipe, tune=recipe.accuracy is not None)


def steps_for(facts: RunFacts) -> list[Step]:
    """The steps of a run, in order."""
    steps = [data_step(facts), *model_steps(facts), *_measuring(facts)]
    return _checked([*steps, _report(facts, steps), *package_steps(facts)])


def model_steps(facts: RunFacts) -> list[Step]:
    """The steps that make the models of a run, and measure nothing."""
    return [*_finetune(facts), *_model(facts), *_targets(facts)]


def sweep_steps(recipe: Recipe, calibrators: Sequence[Choice]) -> list[Step]:
    """The steps that compare calibrators for the recipe's first target.

    Raises:
        OctobertError: as `steps_of`, or a method that calibrates nothing.
    """
    # Ranges of quantization-aware training are not calibrated.
    facts = facts_of(recipe.replaced(qat=None), tune=True)
    if not observed_kinds(recipe):
        raise RecipeError(
            "the method calibrates nothing",
            where="quantize",
            got=recipe.quantize.name,
            fix="use static",
        )
    compared = planned(
        facts, f"sweep/{recipe.targets[0]}", sweep.run, calibrators=tuple(calibrators)
    )
    needed = [step for step in _model(facts) if step.stage in ("capture", "transform", "observe")]
    return _checked([data_step(facts), *_finetune(facts), *needed, compared])


def _checked(steps: list[Step]) -> list[Step]:
    """Steps whose code of the user can be imported and called.

    Raises:
        RecipeError: it cannot.
    """
    codes = {
        code.digest: code for step in steps for code in step.reads if isinstance(code, UserCode)
    }
    user_code.check(list(codes.values()))
    return steps


def finetune_steps(recipe: Recipe) -> list[Step]:
    """The steps that train a float model and evaluate it.

    Raises:
        OctobertError: as `steps_of`, or a recipe without training.
    """
    if recipe.finetune is None:
        raise RecipeError(
            "the recipe trains nothing",
            where="finetune",
            fix="give it settings, such as finetune: {epochs: 3}",
        )
    facts, name = facts_of(recipe, tune=False), f"evaluate/{candidates.CHECKPOINT.name}"
    evaluated = planned(facts, name, evaluate.run, allow_pickle=False)
    return _checked(
        [data_step(facts), *_finetune(facts), planned(facts, "capture", capture.run), evaluated]
    )


def data_step(facts: RunFacts) -> Step:
    """The step that reads the rows."""
    settings, places = facts.recipe.data, facts.places
    return planned(
        facts,
        "data",
        data.run,
        places=places.parts,
        content=places.content(),
        alone=places.alone,
        how=places.how,
        tune_from=""
        if places.tune is None
        else "one file for all parts"
        if places.alone
        else settings.tune.from_,
        hub=places.hub,
        revision=settings.revision,
        columns=settings.columns,
        calibrate=_nameless(settings.calibrate),
        evaluate=_nameless(settings.evaluate),
        tune=_nameless(settings.tune) if places.tune is not None else None,
        finetune=_nameless(settings.finetune) if places.train is not None else None,
        functions={
            part: places.functions[place]
            for part, place in places.parts.items()
            if place in places.functions
        },
        allow_leakage=settings.allow_leakage,
    )


def _nameless(rows: RowSelection) -> RowSelection:
    """A selection without the name of its file or split: the content counts, not the name."""
    return rows.replaced(from_="")


def _finetune(facts: RunFacts) -> list[Step]:
    """Training of the base model, where the recipe asks for it."""
    settings = facts.recipe.finetune
    if settings is None:
        return []
    return [
        planned(
            facts,
            "finetune",
            finetune.run,
            facts.recipe.training,
            lesson=_lesson(facts, "finetune", settings),
        )
    ]


def _lesson(facts: RunFacts, stage: str, settings: Finetune | Qat) -> finetune.Lesson:
    """What a training depends on."""
    recipe = facts.recipe
    teacher = None if settings.distill is None else settings.distill.teacher
    return finetune.Lesson(
        base=facts.model,
        teacher=None
        if teacher is None
        else source.resolve(teacher, allow_pickle=recipe.allow_pickle),
        code=None
        if settings.code is None
        else user_code.at(settings.code, "train", where=f"{stage}.code"),
        allow_pickle=recipe.allow_pickle,
        training=recipe.training,
        spec=facts.spec,
        seed=recipe.seed,
        settings=settings,
        methods={name: facts.method(name) for name in recipe.targets} if stage == "qat" else {},
    )


def observed_kinds(recipe: Recipe) -> tuple[str, ...]:
    """Kinds of sites that the recipe's method needs ranges of, for any of its targets."""
    capabilities = [targets.load(name).CAPABILITIES for name in recipe.targets]
    return tuple(
        methods.load(recipe.quantize.name).observed_kinds(
            options_of(recipe.quantize, "methods"), capabilities
        )
    )


def _model(facts: RunFacts) -> list[Step]:
    """The float graph and its ranges; with quantization-aware training, the graph and ranges that came of it."""
    recipe, graph = facts.recipe, facts.observed_graph
    steps = [planned(facts, "capture", capture.run)]
    if recipe.transforms:
        steps.append(planned(facts, "transform", transform.run))
    kinds = observed_kinds(recipe)
    # Other recipes may share the pass.
    kinds = tuple(sorted({*kinds, *facts.kinds})) if kinds else ()
    steps += [
        planned(
            facts,
            "observe",
            observe.run,
            float_graph=graph,
            kinds=kinds,
            provider=recipe.calibration_provider,
        ),
        planned(
            facts,
            "calibrate",
            calibrate.run,
            source=facts.places.how,
            allow_leakage=recipe.data.allow_leakage,
        ),
    ]
    if recipe.qat is None:
        return steps
    trained = planned(
        facts,
        "qat",
        qat.run,
        recipe.training if recipe.qat.trained is None else None,
        float_graph=graph,
        lesson=_lesson(facts, "qat", recipe.qat),
        attached=None if recipe.qat.trained is None else source.resolve(recipe.qat.trained),
    )
    return [
        *steps,
        trained,
        planned(facts, "capture/trained", capture.run, trained=trained.result, allow_pickle=False),
    ]


def _targets(facts: RunFacts) -> list[Step]:
    """For every target a plan and its model. The plan is searched for where the recipe has a criterion."""
    recipe, steps = facts.recipe, []
    for target in recipe.targets:
        # A search needs to know what values cost.
        estimated = recipe.sensitivity or recipe.accuracy is not None
        steps.append(planned(facts, f"quantize/{target}", quantize.run, sensitivity=estimated))
        if recipe.accuracy is not None:
            steps.append(planned(facts, f"search/{target}", search.run))
        shape, rewrites = facts.shape(target), targets.load(target).CAPABILITIES.rewrites
        chooses = shape is not None and shape.shorter == "auto"
        by = (
            {"tokens": facts.capture, "rows": facts.data}
            if chooses
            else {"tokens": None, "rows": None}
        )
        form = {
            "fast_norms": facts.here.cores <= rewrites.norms_up_to_cores,
            "encoder": facts.feeds is None,
        }
        steps.append(planned(facts, f"export/{target}", export.run, **form, **by))
    return steps


def _measuring(facts: RunFacts) -> list[Step]:
    """Evaluation of every candidate, simulation, one benchmark of all, what each target that can run here executes, and the
    search for its fastest settings, where the recipe asks for them."""
    recipe, timed, steps = facts.recipe, facts.benchmark, list[Step]()
    here = [target for target in recipe.targets if target in facts.candidates]
    if recipe.measure:
        evaluated = (*facts.candidates, *filter(facts.simulated, recipe.targets))
        steps += [planned(facts, f"evaluate/{name}", evaluate.run) for name in evaluated]
        trained = here if recipe.qat is not None else ()
        steps += [
            planned(facts, f"simulate/{target}", simulate.run, qat=facts.ranges)
            for target in trained
        ]
        exports = {target: facts.export(target) for target in recipe.targets}
        session = {name: facts.entries(name) for name in facts.candidates}
        steps.append(planned(facts, "benchmark", benchmark.run, exports=exports, session=session))
    if recipe.measure and recipe.profile and facts.feeds is None:
        # The shape that is timed too, so that times can be compared.
        lengths = [length for length in timed.sequence if length != "data"]
        shape = {
            "batch": min(timed.batch),
            "sequence": lengths[0] if lengths else min(inspector.DEFAULT_TOKENS, facts.max_length),
            "threads": timed.threads,
            "runs": profile.QUICK_RUNS if recipe.quick else profile.RUNS,
        }
        profiled = [target for target in here if target in profilers.targets()]
        steps += [planned(facts, f"profile/{target}", profile.run, **shape) for target in profiled]
    goals = tuple(sorted(recipe.tune))
    return steps + [
        planned(facts, f"tune/{target}", tune.run, goals=goals) for target in here if goals
    ]


def _report(facts: RunFacts, steps: Sequence[Step]) -> Step:
    """The report of all steps before it."""
    return planned(
        facts,
        "report",
        report.run,
        steps={step.name: step.result for step in steps},
        recipe=as_stored(facts.recipe),
    )


def package_steps(facts: RunFacts, chosen: str | None = None) -> list[Step]:
    """A package for every target.

    Args:
        chosen: why a search has chosen the model, in one sentence; None without a search.
    """
    names = facts.recipe.targets
    return [
        planned(facts, f"package/{t}", package.run, entries=facts.session(t), chosen=chosen)
        for t in names
    ]
