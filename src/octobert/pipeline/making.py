"""The steps that make the models of a run: rows, the captured model, its transforms and ranges, plans and files."""

from __future__ import annotations

from dataclasses import dataclass, replace

from octobert.config.rows import RowSelection
from octobert.config.training import Finetune, Qat, Training
from octobert.core import user_code
from octobert.engine.contract import A, P, Stage, Step
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
from octobert.pipeline.run import Run
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


def model_steps(run: Run) -> list[Step]:
    """Return the steps that make the models of a run and measure nothing; its rows are made."""
    steps = Steps()
    make(steps, run, ROWS)
    return steps


def make(steps: Steps, run: Run, rows: Rows) -> MadeModels:
    """Add the steps from the user's model to the files of every target."""
    recipe = run.recipe
    checkpoint = train(steps, run, rows)
    captured = capture_model(steps, run, rows, checkpoint)
    transformed = transform_graph(steps, run, rows, captured)
    graph: FloatGraph = transformed or captured
    seen = observe_graph(steps, run, rows, captured, graph)
    ranges = steps.add(
        calibrate.run,
        "calibrate",
        observed=seen,
        calibrator=run.calibrator,
        model_digest=run.model.digest,
        source=run.places.how,
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
            lesson=_lesson(run, "qat", recipe.qat),
            targets=tuple((each.target, each.method) for each in run.targets),
            attached=None if attached is None else source.resolve(attached),
        )
        if attached is None:
            steps.launch(recipe.training)
        graph = capture_model(steps, run, rows, trained, "capture/trained")
    quantized, planned, exported = (
        dict[str, Planned](),
        dict[str, Planned](),
        dict[str, TargetFiles](),
    )
    before: Planned | None = None
    for each in run.targets:
        name, rewrites = each.name, each.target.capabilities.rewrites
        quantized[name] = before = planned[name] = steps.add(
            quantize.run,
            f"quantize/{name}",
            capture=captured,
            data=rows,
            float_graph=graph,
            ranges=ranges,
            before=before,
            target=each.target,
            method=each.method,
            corrections=run.corrections,
            # A search needs to know what values cost.
            sensitivity=recipe.sensitivity or recipe.accuracy is not None,
            repair=recipe.repair,
            spec=run.spec,
            supplement=run.supplement,
            seed=recipe.seed,
        )
        if recipe.accuracy is not None:
            planned[name] = steps.add(
                search.run,
                f"search/{name}",
                capture=captured,
                data=rows,
                float_graph=graph,
                quantized=quantized[name],
                accuracy=recipe.accuracy,
                target=each.target,
                session=each.session,
                machine=run.machine,
                scored=run.scored,
                seed=recipe.seed,
            )
        chooses = each.shape is not None and each.shape.shorter == "auto"
        exported[name] = steps.add(
            export.run,
            f"export/{name}",
            planned=planned[name],
            tokens=captured if chooses else None,
            rows=rows if chooses else None,
            spec=run.spec,
            target=each.target,
            fast_norms=run.here.cores <= rewrites.norms_up_to_cores,
            token_states=recipe.token_states,
            shape=each.shape,
            opset=recipe.opset,
            format=recipe.format,
            encoder=run.reads_texts,
            max_length=run.max_length,
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


def data_step(run: Run) -> Step:
    """Return the step that reads the rows."""
    settings, places = run.recipe.data, run.places
    return data.run.step(
        "data",
        spec=run.spec,
        seed=run.recipe.seed,
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
        preprocess=run.preprocess,
        allow_leakage=settings.allow_leakage,
        reads=run.reads,
    )


def read(steps: Steps, run: Run) -> Rows:
    """Add the step that reads the rows."""
    steps.append(data_step(run))
    return ROWS


def _nameless(rows: RowSelection) -> RowSelection:
    """Return a selection without the name of its file or split: the content counts, not the name."""
    return rows.replaced(from_="")


def train(steps: Steps, run: Run, rows: Rows) -> Checkpoint | None:
    """Add the training of the base model, where the recipe asks for it."""
    recipe = run.recipe
    if recipe.finetune is None:
        return None
    lesson = _lesson(run, "finetune", recipe.finetune)
    trained = steps.add(finetune.run, "finetune", data=rows, lesson=lesson)
    steps.launch(recipe.training)
    return trained


def _lesson(run: Run, stage: str, settings: Finetune | Qat) -> finetune.Lesson:
    """Return what a training depends on."""
    recipe = run.recipe
    teacher = None if settings.distill is None else settings.distill.teacher
    return finetune.Lesson(
        base=run.model,
        teacher=None
        if teacher is None
        else source.resolve(teacher, allow_pickle=recipe.allow_pickle),
        code=None
        if settings.code is None
        else user_code.at(settings.code, "train", where=f"{stage}.code"),
        allow_pickle=recipe.allow_pickle,
        training=recipe.training,
        spec=run.spec,
        seed=recipe.seed,
        settings=settings,
    )


def capture_model(
    steps: Steps, run: Run, rows: Rows, trained: Checkpoint | None, name: str = "capture"
) -> CapturedModel:
    """Add the capture of the user's model, or of a trained one."""
    return steps.add(
        capture.run,
        name,
        trained=trained,
        feeds=None if run.reads_texts else rows,
        model=run.model,
        head=run.head,
        # What octobert trained is no pickle.
        allow_pickle=run.recipe.allow_pickle and trained is None,
        axes=run.axes,
    )


def transform_graph(
    steps: Steps, run: Run, rows: Rows, captured: CapturedModel
) -> Transformed | None:
    """Add the transforms of the captured graph, where the recipe has any."""
    if not run.transforms:
        return None
    return steps.add(
        transform.run,
        "transform",
        capture=captured,
        data=rows,
        transforms=run.transforms,
        spec=run.spec,
        supplement=run.supplement,
        integer_targets=run.integer_targets,
        seed=run.recipe.seed,
    )


def observe_graph(
    steps: Steps, run: Run, rows: Rows, captured: CapturedModel, graph: FloatGraph
) -> Statistics:
    """Add the pass over the calibration rows."""
    kinds = run.observed_kinds
    return steps.add(
        observe.run,
        "observe",
        capture=captured,
        data=rows,
        float_graph=graph,
        # Other recipes may share the pass.
        kinds=tuple(sorted({*kinds, *run.kinds})) if kinds else (),
        provider=run.recipe.calibration_provider,
        spec=run.spec,
        supplement=run.supplement,
    )
