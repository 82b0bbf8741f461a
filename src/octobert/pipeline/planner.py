"""A recipe becomes steps: which stage runs on what, with which options. What can be refused beforehand is refused here.

    data ─┬────────────────────────┐
          └─ [finetune] ─ capture ─┴─ transform ─ observe ─ calibrate ─┬────────────────────────┬─ quantize/T ─┐
                                                                       └ [qat ─ capture/trained] ┘             │
             package/T ─ report ─ evaluate/C, benchmark, [simulate/T] ─ export/T ─ [sensitivity/T ─ search/T] ─┘

T runs over targets, C over candidates (baselines and targets). A step in brackets runs where the recipe asks for it. Steps that
measure run only with `measure: true`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from octobert import targets
from octobert.config.loading import options_of
from octobert.config.recipe import Benchmark, Choice, Recipe, RowSelection
from octobert.config.training import Finetune
from octobert.core import environment
from octobert.core.capability import Capabilities, saturates
from octobert.core.errors import RecipeError
from octobert.core.files import canonical_digest, file_digest
from octobert.core.session import StaticShape
from octobert.data import readers, sources
from octobert.evaluation import candidates
from octobert.evaluation.latency import fit_lengths
from octobert.models import heads, source
from octobert.models.source import ModelSource
from octobert.pipeline import preflight
from octobert.pipeline.contract import Step, StepResult, TaskSpec, step
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
    qat,
    quantize,
    report,
    search,
    sensitivity,
    simulate,
    sweep,
    transform,
)
from octobert.quantization import methods
from octobert.tasks._task import build, files_of


def steps_of(recipe: Recipe) -> list[Step]:
    """The steps of a recipe, in order.

    Raises:
        OctobertError: the model or the data cannot be found, a target is not installed, or a length is beyond the model.
    """
    plan = _plan_of(recipe, tune=recipe.accuracy is not None)
    steps = [_data(plan), *_finetune(plan), *_model(plan), *_targets(plan), *_measure(plan)]
    steps.append(_report(plan, steps))
    return [*steps, *_packages(plan)]


def sweep_steps(recipe: Recipe, calibrators: Sequence[Choice]) -> list[Step]:
    """The steps that compare calibrators for the recipe's first target.

    Raises:
        OctobertError: as `steps_of`, or a method that calibrates nothing.
    """
    plan = _plan_of(_without_qat(recipe), tune=True)
    if not _observed_kinds(recipe):
        raise RecipeError("the method calibrates nothing", where="quantize", got=recipe.quantize.name, fix="use static")
    target = recipe.targets[0]
    compared = step(
        f"sweep/{target}",
        sweep.run,
        sweep.Inputs(capture=_CAPTURE, data=_DATA, float_graph=plan.float_graph, observe=_OBSERVE),
        sweep.Options(
            target=target,
            method=plan.method(target),
            calibrators=tuple(calibrators),
            task=plan.task,
            seed=recipe.seed,
        ),
    )
    needed = [each for each in _model(plan) if each.stage in ("capture", "transform", "observe")]
    return [_data(plan), *_finetune(plan), *needed, compared]


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
    plan = replace(_plan_of(recipe, tune=False), allow_pickle=False)
    return [_data(plan), *_finetune(plan), _capture(plan), _evaluate(plan, candidates.CHECKPOINT.name)]


_DATA, _CAPTURE, _OBSERVE = (StepResult(step=name) for name in ("data", "capture", "observe"))


@dataclass(frozen=True)
class _Plan:
    """What the steps of one recipe have in common.

    Args:
        model: the user's.
        absent: candidate → why it cannot run here.
    """

    recipe: Recipe
    model: ModelSource
    places: sources.Places
    task: TaskSpec
    head: str
    max_length: int
    benchmark: Benchmark
    candidates: tuple[str, ...]
    absent: dict[str, str]
    here: environment.Environment
    allow_pickle: bool

    @property
    def machine(self) -> str:
        """What figures of this machine and its runtimes are keyed by."""
        return canonical_digest(self.here.model_dump(mode="json"))

    @property
    def float_graph(self) -> StepResult:
        """The step whose graph is quantized."""
        if self.recipe.qat is not None:
            return StepResult(step="capture/trained")
        return self.observed_graph

    @property
    def observed_graph(self) -> StepResult:
        """The step whose graph is calibrated."""
        return StepResult(step="transform") if self.recipe.transforms else _CAPTURE

    @property
    def ranges(self) -> StepResult:
        """The step whose ranges plans are made from."""
        return StepResult(step="calibrate" if self.recipe.qat is None else "qat")

    @property
    def trained(self) -> StepResult | None:
        """The step whose checkpoint takes the place of the user's."""
        return StepResult(step="finetune") if self.recipe.finetune is not None else None

    def chosen(self, target: str) -> StepResult:
        """The step whose plan a target gets."""
        return StepResult(step=f"{'quantize' if self.recipe.accuracy is None else 'search'}/{target}")

    def method(self, target: str) -> Choice:
        """The method with `reduce_range: auto` decided: it depends on the CPU, and so must the key."""
        choice, capabilities = self.recipe.quantize, targets.load(target).CAPABILITIES
        options = options_of(choice, "methods")
        if options.reduce_range == "auto":
            options = options.model_copy(update={"reduce_range": saturates(capabilities, self.here.features)})
        return Choice(name=choice.name, options=options.model_dump(mode="json"))

    def shape(self, capabilities: Capabilities) -> StaticShape | None:
        """The shape that a target's model is made for; None where it is free."""
        if capabilities.shapes == "dynamic":
            return None
        return self.recipe.shape or StaticShape(sequence=self.max_length)


def _plan_of(recipe: Recipe, *, tune: bool) -> _Plan:
    """What is known before anything runs.

    Raises:
        OctobertError: the model or the data cannot be found, a target is not installed, or a length is beyond the model.
    """
    model = source.resolve(recipe.model, revision=recipe.revision, allow_pickle=recipe.allow_pickle)
    trains = recipe.finetune is not None or recipe.qat is not None
    places = sources.places(recipe.data, tune=tune, train=trains, prefer=files_of(recipe.task.name))
    labels = _labels(recipe, model, places)
    task = build(recipe.task.name, recipe.task.options, labels)
    timed = fit_lengths(recipe.benchmark, model.longest_input)
    preflight.check(recipe, model, task, timed, places)
    available = [name for name in recipe.targets if targets.load(name).probe().available]
    baselines = candidates.baselines_of(available, recipe.baselines)
    absent = {each.name: candidates.why_not(each, is_checkpoint=model.is_checkpoint) for each in baselines}
    absent |= {name: targets.load(name).probe().missing for name in recipe.targets}
    return _Plan(
        recipe=recipe,
        model=model,
        places=places,
        task=TaskSpec(name=recipe.task.name, options=recipe.task.options, labels=labels),
        head=task.head,
        max_length=task.max_length or model.longest_input,
        benchmark=timed,
        candidates=tuple(name for name, why in absent.items() if why is None),
        absent={name: why for name, why in absent.items() if why is not None},
        here=environment.current(),
        allow_pickle=recipe.allow_pickle,
    )


def _data(plan: _Plan) -> Step:
    settings, places = plan.recipe.data, plan.places
    parts = {"calibrate": places.calibrate, "evaluate": places.evaluate, "tune": places.tune, "train": places.train}
    return step(
        "data",
        data.run,
        data.Inputs(),
        data.Options(
            task=plan.task,
            seed=plan.recipe.seed,
            places={part: place for part, place in parts.items() if place is not None},
            content=tuple(places.content(settings.revision)),
            alone=places.alone,
            how=places.how,
            hub=places.hub,
            config=settings.config,
            revision=settings.revision,
            columns=settings.columns,
            calibrate=_nameless(settings.calibrate),
            evaluate=_nameless(settings.evaluate),
            tune=_nameless(settings.tune) if places.tune is not None else None,
            finetune=_nameless(settings.finetune) if places.train is not None else None,
            allow_leakage=settings.allow_leakage,
        ),
    )


def _nameless(rows: RowSelection) -> RowSelection:
    """A selection without the name of its file or split: the content counts, not the name."""
    return rows.model_copy(update={"from_": ""})


def _finetune(plan: _Plan) -> list[Step]:
    """Training of the base model, where the recipe asks for it."""
    recipe, settings = plan.recipe, plan.recipe.finetune
    if settings is None:
        return []
    teacher, code_digest = _teacher(recipe, settings), _code_digest(settings)
    options = finetune.Options(
        model=plan.model,
        teacher=teacher,
        code_digest=code_digest,
        allow_pickle=recipe.allow_pickle,
        training=recipe.training,
        task=plan.task,
        seed=recipe.seed,
        settings=settings,
    )
    return [step("finetune", finetune.run, finetune.Inputs(data=_DATA), options, recipe.training)]


def _teacher(recipe: Recipe, settings: Finetune) -> ModelSource | None:
    """The checkpoint that a model in training follows, where it is not the one it starts from."""
    if settings.distill is None or settings.distill.teacher is None:
        return None
    return source.resolve(settings.distill.teacher, allow_pickle=recipe.allow_pickle)


def _code_digest(settings: Finetune) -> str | None:
    """The digest of the user's training function.

    Raises:
        RecipeError: the file does not exist.
    """
    if settings.code is None:
        return None
    file = Path(settings.code.rpartition(":")[0])
    if not file.is_file():
        raise RecipeError("the Python file does not exist", where="code", got=settings.code, expected="file.py:function")
    return file_digest(file)


def _capture(plan: _Plan) -> Step:
    options = capture.Options(model=plan.model, head=plan.head, allow_pickle=plan.recipe.allow_pickle)
    return step("capture", capture.run, capture.Inputs(trained=plan.trained), options)


def _observed_kinds(recipe: Recipe) -> tuple[str, ...]:
    """Kinds of sites that the recipe's method needs ranges of, for any of its targets."""
    capabilities = [targets.load(name).CAPABILITIES for name in recipe.targets]
    return tuple(methods.load(recipe.quantize.name).observed_kinds(options_of(recipe.quantize, "methods"), capabilities))


def _model(plan: _Plan) -> list[Step]:
    """The float graph and its ranges; with quantization-aware training, the graph and ranges that came of it."""
    recipe = plan.recipe
    steps = [_capture(plan)]
    if recipe.transforms:
        transformed = transform.Options(transforms=recipe.transforms, task=plan.task, seed=recipe.seed)
        steps.append(step("transform", transform.run, transform.Inputs(capture=_CAPTURE, data=_DATA), transformed))
    graph = plan.observed_graph
    steps += [
        step(
            "observe",
            observe.run,
            observe.Inputs(capture=_CAPTURE, data=_DATA, float_graph=graph),
            observe.Options(kinds=_observed_kinds(recipe), task=plan.task),
        ),
        step(
            "calibrate",
            calibrate.run,
            calibrate.Inputs(observe=_OBSERVE),
            calibrate.Options(
                calibrator=recipe.calibrate,
                model_digest=plan.model.digest,
                source=plan.places.how,
                allow_leakage=recipe.data.allow_leakage,
            ),
        ),
    ]
    if recipe.qat is None:
        return steps
    options = qat.Options(
        model=plan.model,
        teacher=_teacher(recipe, recipe.qat),
        code_digest=_code_digest(recipe.qat),
        allow_pickle=recipe.allow_pickle,
        training=recipe.training,
        task=plan.task,
        seed=recipe.seed,
        settings=recipe.qat,
        methods={name: plan.method(name) for name in recipe.targets},
    )
    calibrated = StepResult(step="calibrate")
    inputs = qat.Inputs(capture=_CAPTURE, data=_DATA, float_graph=graph, calibrate=calibrated, finetune=plan.trained)
    trained = step("qat", qat.run, inputs, options, recipe.training)
    captured = capture.Options(model=plan.model, head=plan.head, allow_pickle=False)
    return [*steps, trained, step("capture/trained", capture.run, capture.Inputs(trained=trained.result), captured)]


def _targets(plan: _Plan) -> list[Step]:
    """For every target a plan and its model; the plan is searched for where the recipe has a criterion."""
    recipe, steps = plan.recipe, []
    rows = {"capture": _CAPTURE, "data": _DATA, "float_graph": plan.float_graph}
    for target in recipe.targets:
        capabilities = targets.load(target).CAPABILITIES
        planned = step(
            f"quantize/{target}",
            quantize.run,
            quantize.Inputs(**rows, ranges=plan.ranges),
            quantize.Options(
                target=target,
                method=plan.method(target),
                corrections=recipe.corrections,
                strict=recipe.strict,
                task=plan.task,
            ),
        )
        steps.append(planned)
        if recipe.sensitivity or recipe.accuracy is not None:
            inputs = sensitivity.Inputs(**rows, quantize=planned.result, observe=_OBSERVE)
            steps.append(
                step(
                    f"sensitivity/{target}",
                    sensitivity.run,
                    inputs,
                    sensitivity.Options(task=plan.task, seed=recipe.seed),
                )
            )
        if recipe.accuracy is not None:
            options = search.Options(
                accuracy=recipe.accuracy, target=target, machine=plan.machine, task=plan.task, seed=recipe.seed
            )
            measured = StepResult(step=f"sensitivity/{target}")
            searched = search.Inputs(**rows, quantize=planned.result, sensitivity=measured)
            steps.append(step(f"search/{target}", search.run, searched, options))
        form = export.Options(
            target=target,
            fast_norms=plan.here.cores <= capabilities.fast_norms,
            shape=plan.shape(capabilities),
        )
        steps.append(step(f"export/{target}", export.run, export.Inputs(quantize=plan.chosen(target)), form))
    return steps


def _measure(plan: _Plan) -> list[Step]:
    """Evaluation of every candidate, and one benchmark of all."""
    recipe = plan.recipe
    if not recipe.measure:
        return []
    steps = [_evaluate(plan, name) for name in plan.candidates]
    for target in recipe.targets if recipe.qat is not None else ():
        if target in plan.candidates:
            inputs = simulate.Inputs(
                capture=_CAPTURE,
                data=_DATA,
                qat=plan.ranges,
                quantize=plan.chosen(target),
                evaluate=StepResult(step=f"evaluate/{target}"),
            )
            options = simulate.Options(task=plan.task, seed=recipe.seed)
            steps.append(step(f"simulate/{target}", simulate.run, inputs, options))
    exports = {target: StepResult(step=f"export/{target}") for target in recipe.targets}
    timed = benchmark.Options(
        candidates=plan.candidates,
        benchmark=plan.benchmark,
        model=plan.model,
        allow_pickle=plan.allow_pickle,
        machine=plan.machine,
        task=plan.task,
        seed=recipe.seed,
    )
    rows = benchmark.Inputs(capture=_CAPTURE, data=_DATA, trained=plan.trained, exports=exports)
    return [*steps, step("benchmark", benchmark.run, rows, timed)]


def _evaluate(plan: _Plan, candidate: str) -> Step:
    exported = StepResult(step=f"export/{candidate}") if candidate in plan.recipe.targets else None
    # Figures belong to a machine and its runtimes; on another one they are measured again.
    options = evaluate.Options(
        candidate=candidate,
        model=plan.model,
        allow_pickle=plan.allow_pickle,
        machine=plan.machine,
        task=plan.task,
        seed=plan.recipe.seed,
    )
    inputs = evaluate.Inputs(capture=_CAPTURE, data=_DATA, trained=plan.trained, export=exported)
    return step(f"evaluate/{candidate}", evaluate.run, inputs, options)


def _report(plan: _Plan, steps: Sequence[Step]) -> Step:
    """The report of all steps before it."""

    def by_suffix(stage: str) -> dict[str, StepResult]:
        return {each.name.partition("/")[2]: each.result for each in steps if each.stage == stage}

    timed = [each.result for each in steps if each.stage == "benchmark"]
    inputs = report.Inputs(
        capture=_CAPTURE,
        data=_DATA,
        ranges=plan.ranges,
        transform=StepResult(step="transform") if plan.recipe.transforms else None,
        benchmark=timed[0] if timed else None,
        plans={target: plan.chosen(target) for target in plan.recipe.targets},
        sensitivities=by_suffix("sensitivity"),
        simulations=by_suffix("simulate"),
        evaluations=by_suffix("evaluate"),
        steps={each.name: each.result for each in steps},
    )
    options = report.Options(
        recipe=plan.recipe.model_dump(mode="json", by_alias=True),
        model_digest=plan.model.digest,
        absent=plan.absent,
        task=plan.task,
        seed=plan.recipe.seed,
    )
    return step("report", report.run, inputs, options)


def _packages(plan: _Plan) -> list[Step]:
    """A package for every target."""
    reported = StepResult(step="report")
    return [
        step(
            f"package/{target}",
            package.run,
            package.Inputs(capture=_CAPTURE, ranges=plan.ranges, export=StepResult(step=f"export/{target}"), report=reported),
            package.Options(target=target),
        )
        for target in plan.recipe.targets
    ]


def _labels(recipe: Recipe, model: ModelSource, places: sources.Places) -> tuple[str, ...]:
    """Class names: as the model's config states them, or for a model that gets a new head, as the training rows have them."""
    blank = build(recipe.task.name, recipe.task.options, ())
    if recipe.finetune is None or (model.is_checkpoint and heads.has_head(model, blank.head)):
        return model.labels
    if blank.labels or places.train is None:
        return blank.labels
    settings = recipe.data
    where, rows = readers.read(
        places.train, hub=places.hub, config=settings.config, revision=settings.revision, columns=settings.columns
    )
    return blank.labels_in(rows, where=where)
