"""The steps that make the models of a run: rows, the captured model, its transforms and ranges, plans and files."""

from __future__ import annotations

from dataclasses import dataclass, replace

from octobert import targets
from octobert.config.recipe import Recipe
from octobert.config.rows import RowSelection
from octobert.config.training import Finetune, Qat, Training
from octobert.core import user_code
from octobert.models import source
from octobert.pipeline.artifacts import (
    Calibrated,
    CapturedModel,
    Checkpoint,
    FloatGraph,
    Planned,
    Rows,
    Statistics,
    TargetFiles,
    TrainedModel,
    Transformed,
)
from octobert.pipeline.contract import A, P, Stage, Step
from octobert.pipeline.facts import RunFacts
from octobert.pipeline.stages import (
    calibrate,
    capture,
    data,
    export,
    finetune,
    observe,
    qat,
    quantize,
    search,
    transform,
)
from octobert.quantization import methods

# What the steps of these names make, for those who plan a part of a run.
ROWS, CAPTURED = Rows(step="data"), CapturedModel(step="capture")


class Steps(list[Step]):
    """Steps in their order."""

    def add(self, stage: Stage[P, A], name: str, /, *inputs: P.args, **options: P.kwargs) -> A:
        """Add a step, and return what it makes.

        Args:
            name: that of the stage, or with a target or a candidate behind a slash.
            inputs, options: of the stage.
        """
        self.append(stage.step(name, *inputs, **options))
        return stage.makes(step=name)

    def launch(self, how: Training) -> None:
        """Run the last step in several processes."""
        self[-1] = replace(self[-1], launch=how)


@dataclass(frozen=True)
class MadeModels:
    """What is made of a model before it is measured.

    Args:
        checkpoint: that `finetune` trained.
        captured: the model itself.
        transformed: its graph after transforms.
        seen: the statistics of the graph that is calibrated.
        trained: by quantization-aware training.
        ranges: that plans are made from.
        quantized: target → its plan before any search.
        planned: target → its plan.
        exported: target → its files.
    """

    checkpoint: Checkpoint | None
    captured: CapturedModel
    transformed: Transformed | None
    seen: Statistics
    trained: TrainedModel | None
    ranges: Calibrated
    quantized: dict[str, Planned]
    planned: dict[str, Planned]
    exported: dict[str, TargetFiles]


def model_steps(facts: RunFacts) -> list[Step]:
    """Return the steps that make the models of a run and measure nothing; its rows are made."""
    steps = Steps()
    make(steps, facts, ROWS)
    return steps


def make(steps: Steps, facts: RunFacts, rows: Rows) -> MadeModels:
    """Add the steps from the user's model to the files of every target."""
    recipe = facts.recipe
    checkpoint = train(steps, facts, rows)
    captured = capture_model(steps, facts, rows, checkpoint)
    transformed = transform_graph(steps, facts, rows, captured)
    graph: FloatGraph = transformed or captured
    seen = observe_graph(steps, facts, rows, captured, graph)
    ranges = steps.add(
        calibrate.run,
        "calibrate",
        observed=seen,
        calibrate=recipe.calibrate,
        model_digest=facts.model.digest,
        source=facts.places.how,
        allow_leakage=recipe.data.allow_leakage,
    )
    trained = None
    if recipe.qat is not None:
        attached = recipe.qat.trained
        ranges = trained = steps.add(
            qat.run,
            "qat",
            capture=captured,
            data=rows,
            float_graph=graph,
            calibrated=ranges,
            trained=checkpoint,
            lesson=_lesson(facts, "qat", recipe.qat),
            attached=None if attached is None else source.resolve(attached),
        )
        if attached is None:
            steps.launch(recipe.training)
        graph = capture_model(steps, facts, rows, trained, "capture/trained")
    quantized, planned, exported = (
        dict[str, Planned](),
        dict[str, Planned](),
        dict[str, TargetFiles](),
    )
    before: Planned | None = None
    for target in recipe.targets:
        quantized[target] = before = planned[target] = steps.add(
            quantize.run,
            f"quantize/{target}",
            capture=captured,
            data=rows,
            float_graph=graph,
            ranges=ranges,
            before=before,
            target=target,
            method=facts.method(target),
            corrections=recipe.corrections,
            # A search needs to know what values cost.
            sensitivity=recipe.sensitivity or recipe.accuracy is not None,
            repair=recipe.repair,
            spec=facts.spec,
            supplement=facts.supplement,
            seed=recipe.seed,
        )
        if recipe.accuracy is not None:
            planned[target] = steps.add(
                search.run,
                f"search/{target}",
                capture=captured,
                data=rows,
                float_graph=graph,
                quantized=quantized[target],
                accuracy=recipe.accuracy,
                target=target,
                session=facts.session(target),
                machine=facts.machine,
                scored=facts.scored,
                seed=recipe.seed,
            )
        shape, rewrites = facts.shape(target), targets.load(target).capabilities.rewrites
        chooses = shape is not None and shape.shorter == "auto"
        exported[target] = steps.add(
            export.run,
            f"export/{target}",
            planned=planned[target],
            tokens=captured if chooses else None,
            rows=rows if chooses else None,
            spec=facts.spec,
            target=target,
            fast_norms=facts.here.cores <= rewrites.norms_up_to_cores,
            token_states=recipe.token_states,
            shape=shape,
            opset=recipe.opset,
            format=recipe.format,
            encoder=facts.reads_texts,
        )
    return MadeModels(
        checkpoint=checkpoint,
        captured=captured,
        transformed=transformed,
        seen=seen,
        trained=trained,
        ranges=ranges,
        quantized=quantized,
        planned=planned,
        exported=exported,
    )


def data_step(facts: RunFacts) -> Step:
    """Return the step that reads the rows."""
    settings, places = facts.recipe.data, facts.places
    return data.run.step(
        "data",
        spec=facts.spec,
        seed=facts.recipe.seed,
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
        preprocess=facts.preprocess,
        allow_leakage=settings.allow_leakage,
        reads=facts.reads,
    )


def read(steps: Steps, facts: RunFacts) -> Rows:
    """Add the step that reads the rows."""
    steps.append(data_step(facts))
    return ROWS


def _nameless(rows: RowSelection) -> RowSelection:
    """Return a selection without the name of its file or split: the content counts, not the name."""
    return rows.replaced(from_="")


def train(steps: Steps, facts: RunFacts, rows: Rows) -> Checkpoint | None:
    """Add the training of the base model, where the recipe asks for it."""
    recipe = facts.recipe
    if recipe.finetune is None:
        return None
    lesson = _lesson(facts, "finetune", recipe.finetune)
    trained = steps.add(finetune.run, "finetune", data=rows, lesson=lesson)
    steps.launch(recipe.training)
    return trained


def _lesson(facts: RunFacts, stage: str, settings: Finetune | Qat) -> finetune.Lesson:
    """Return what a training depends on."""
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


def capture_model(
    steps: Steps, facts: RunFacts, rows: Rows, trained: Checkpoint | None, name: str = "capture"
) -> CapturedModel:
    """Add the capture of the user's model, or of a trained one."""
    return steps.add(
        capture.run,
        name,
        trained=trained,
        feeds=None if facts.reads_texts else rows,
        model=facts.model,
        head=facts.head,
        # What octobert trained is no pickle.
        allow_pickle=facts.recipe.allow_pickle and trained is None,
        axes=facts.axes,
    )


def transform_graph(
    steps: Steps, facts: RunFacts, rows: Rows, captured: CapturedModel
) -> Transformed | None:
    """Add the transforms of the captured graph, where the recipe has any."""
    recipe = facts.recipe
    if not recipe.transforms:
        return None
    return steps.add(
        transform.run,
        "transform",
        capture=captured,
        data=rows,
        transforms=recipe.transforms,
        spec=facts.spec,
        supplement=facts.supplement,
        integer_targets=facts.integer_targets,
        seed=recipe.seed,
    )


def observe_graph(
    steps: Steps, facts: RunFacts, rows: Rows, captured: CapturedModel, graph: FloatGraph
) -> Statistics:
    """Add the pass over the calibration rows."""
    kinds = observed_kinds(facts.recipe)
    return steps.add(
        observe.run,
        "observe",
        capture=captured,
        data=rows,
        float_graph=graph,
        # Other recipes may share the pass.
        kinds=tuple(sorted({*kinds, *facts.kinds})) if kinds else (),
        provider=facts.recipe.calibration_provider,
        spec=facts.spec,
        supplement=facts.supplement,
    )


def observed_kinds(recipe: Recipe) -> tuple[str, ...]:
    """Return the kinds of sites that the recipe's method needs ranges of, for any of its targets."""
    capabilities = [targets.load(name).capabilities for name in recipe.targets]
    method = methods.PLUGINS.make(recipe.quantize)
    return method.observed_kinds(capabilities)
