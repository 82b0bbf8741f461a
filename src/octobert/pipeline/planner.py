"""A recipe becomes steps: which stage runs on what, with which options. What can be refused beforehand is refused here.

    data ─┬────────────────────────┐
          └─ [finetune] ─ capture ─┴─ prepare ─ observe ─ calibrate ─┬────────────────────────┬─ quantize/T ─┐
                                                                     └ [qat ─ capture/trained] ┘             │
           package/T ─ report ─ evaluate/C, benchmark, [simulate/T] ─ export/T ─ [sensitivity/T ─ search/T] ─┘

T runs over targets, C over candidates (baselines and targets). What is in brackets runs where a recipe asks for it, and what
measures only with `measure: true`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from octobert.config.loading import options_of
from octobert.config.recipe import Benchmark, Choice, Recipe
from octobert.config.training import Finetune, Training
from octobert.core import environment, plugins
from octobert.core.capability import Capabilities, saturates
from octobert.core.errors import RecipeError
from octobert.core.files import canonical_digest, file_digest
from octobert.core.session import StaticShape
from octobert.data import sources
from octobert.data.tokenization import longest
from octobert.evaluation import candidates
from octobert.evaluation.latency import within
from octobert.models import checkpoint
from octobert.pipeline import preflight
from octobert.tasks._task import build, files_of


@dataclass(frozen=True)
class Step:
    """One stage with what it is given.

    Args:
        name: unique in the run, `export/ort-cpu`.
        stage: module in `stages`.
        inputs: name inside the stage → name of the step that makes it.
        options: part of the key.
        locations: not part of the key.
        launch: in how many processes, on how many machines; not part of the key.
    """

    name: str
    stage: str
    inputs: dict[str, str] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    locations: dict[str, str] = field(default_factory=dict)
    launch: Training | None = None


# What a sweep compares: percentiles have a cliff on either side, which shows only when several stand side by side.
SWEPT = (
    Choice(name="minmax"),
    *(Choice(name="percentile", options={"keep": keep}) for keep in (99.9, 99.99, 99.999, 99.9999)),
    Choice(name="mse"),
    Choice(name="entropy"),
    Choice(name="mean-minmax"),
    Choice(name="moving-average"),
)


def steps_of(recipe: Recipe) -> list[Step]:
    """The steps of a recipe, in order; whatever can be known to be wrong without running anything is refused here.

    Raises:
        OctobertError: the model or the data cannot be found, a target is not installed, or a length is beyond the model.
    """
    facts, places = _facts_of(recipe, tune=recipe.accuracy is not None)
    return [
        _data_step(facts, places),
        *_finetune_steps(facts),
        *_model_steps(facts, places.how),
        *_measure_steps(facts),
        *_result_steps(facts),
    ]


def sweep_steps(recipe: Recipe, calibrators: Sequence[Choice]) -> list[Step]:
    """The steps that compare calibrators for the recipe's first target.

    Raises:
        OctobertError: as `steps_of`, or a method that calibrates nothing.
    """
    facts, places = _facts_of(recipe, tune=True)
    needed = [s for s in _model_steps(facts, places.how) if s.stage in ("capture", "prepare", "observe")]
    if not needed[-1].options["kinds"]:
        raise RecipeError("the method calibrates nothing", where="quantize", got=recipe.quantize.name, fix="use static")
    target = recipe.targets[0]
    inputs = {"capture": "capture", "data": "data", "float": facts.float_step, "observe": "observe"}
    options = {
        **facts.task,
        "target": target,
        "method": _on_this_cpu(recipe.quantize, plugins.load("targets", target).CAPABILITIES, facts.here),
        "calibrators": [one.model_dump() for one in calibrators],
    }
    return [_data_step(facts, places), *_finetune_steps(facts), *needed, Step(f"sweep/{target}", "sweep", inputs, options)]


def finetune_steps(recipe: Recipe) -> list[Step]:
    """The steps that train a float model and judge it, and no more.

    Raises:
        OctobertError: as `steps_of`, or a recipe without training.
    """
    if recipe.finetune is None:
        raise RecipeError("the recipe trains nothing", where="finetune", fix="give it settings, such as finetune: {epochs: 3}")
    facts, places = _facts_of(recipe, tune=False)
    capture = _model_steps(facts, places.how)[0]
    judged = {"capture": "capture", "data": "data", **facts.trained}
    options = {**facts.task, "machine": facts.machine, "allow_pickle": False, "candidate": "torch-f32"}
    evaluate = Step("evaluate/torch-f32", "evaluate", judged, options, {"model": facts.model})
    return [_data_step(facts, places), *_finetune_steps(facts), capture, evaluate]


def _facts_of(recipe: Recipe, *, tune: bool) -> tuple[_Facts, sources.Places]:
    """What is known before anything runs.

    Raises:
        OctobertError: the model or the data cannot be found, a target is not installed, or a length is beyond the model.
    """
    source = checkpoint.locate(recipe.model, revision=recipe.revision, allow_pickle=recipe.allow_pickle)
    folder = checkpoint.side_folder(source)
    places = sources.places(recipe.data, tune=tune, train=_trains(recipe), prefer=files_of(recipe.task.name))
    labels = _labels(recipe, source, places)
    task = build(recipe.task.name, recipe.task.options, labels)
    benchmark = within(recipe.benchmark, longest(folder))
    preflight.check(recipe, source, task, benchmark, places)
    absent = {b: candidates.why_not(b, is_checkpoint=source.is_dir()) for b in _baselines(recipe)}
    absent |= {t: plugins.load("targets", t).probe().missing for t in recipe.targets}
    named = [name for name, why in absent.items() if why is None]
    facts = _Facts(
        recipe=recipe,
        model=str(source),
        model_digest=checkpoint.digest(source),
        task={"task": recipe.task.model_dump(), "labels": list(labels), "seed": recipe.seed},
        head=task.head,
        max_length=task.max_length or longest(folder),
        benchmark=benchmark,
        candidates=named,
        absent={name: why for name, why in absent.items() if why is not None},
        here=environment.current(),
    )
    return facts, places


@dataclass(frozen=True)
class _Facts:
    """What the steps of one recipe have in common."""

    recipe: Recipe
    model: str
    model_digest: str
    task: dict[str, Any]
    head: str
    max_length: int
    benchmark: Benchmark
    candidates: list[str]
    absent: dict[str, str]
    here: environment.Environment

    @property
    def machine(self) -> str:
        """What figures of this machine and its runtimes are keyed by."""
        return canonical_digest(self.here.model_dump(mode="json"))

    @property
    def float_step(self) -> str:
        """The step whose graph is quantized."""
        if self.recipe.qat is not None:
            return "capture/trained"
        return "prepare" if self.recipe.transforms else "capture"

    @property
    def ranges_step(self) -> str:
        """The step whose ranges plans are made from."""
        return "calibrate" if self.recipe.qat is None else "qat"

    @property
    def trained(self) -> dict[str, str]:
        """The step whose checkpoint takes the place of the user's."""
        return {"finetune": "finetune"} if self.recipe.finetune is not None else {}

    def shape(self, target: str) -> dict[str, Any]:
        """The shape that a target's model is made for; nothing where it is free."""
        if plugins.load("targets", target).CAPABILITIES.shapes == "dynamic":
            return {}
        return {"shape": (self.recipe.shape or StaticShape(sequence=self.max_length)).model_dump()}

    def chosen(self, target: str) -> str:
        """The step whose plan a target gets."""
        return f"search/{target}" if self.recipe.accuracy is not None else f"quantize/{target}"


def _data_step(facts: _Facts, places: sources.Places) -> Step:
    settings = facts.recipe.data
    options = {
        **facts.task,
        "content": places.content(settings.revision),
        "alone": places.alone,
        "how": places.how,
        "hub": places.hub,
        "config": settings.config,
        "revision": settings.revision,
        "columns": list(settings.columns),
        "calibrate": {**settings.calibrate.model_dump(by_alias=True), "from": ""},
        "evaluate": {**settings.evaluate.model_dump(by_alias=True), "from": ""},
        "tune": {**settings.tune.model_dump(by_alias=True), "from": ""} if places.tune is not None else None,
        "finetune": {**settings.finetune.model_dump(by_alias=True), "from": ""} if places.train is not None else None,
        "allow_leakage": settings.allow_leakage,
    }
    named = {"calibrate": places.calibrate, "evaluate": places.evaluate, "tune": places.tune, "train": places.train}
    return Step("data", "data", {}, options, {name: place for name, place in named.items() if place is not None})


def _finetune_steps(facts: _Facts) -> list[Step]:
    """Training of the base model, where the recipe asks for it."""
    if facts.recipe.finetune is None:
        return []
    options, locations = _training_of(facts, facts.recipe.finetune)
    options["finetune"] = facts.recipe.finetune.model_dump()
    return [Step("finetune", "finetune", {"data": "data"}, options, locations, facts.recipe.training)]


def _training_of(facts: _Facts, settings: Finetune) -> tuple[dict[str, Any], dict[str, str]]:
    """(options, locations) of a training; what its settings name is a part of the key by its content."""
    options = {**facts.task, "model_digest": facts.model_digest, "allow_pickle": facts.recipe.allow_pickle}
    locations = {"model": facts.model, "training": facts.recipe.training.model_dump_json()}
    if settings.distill is not None and settings.distill.teacher is not None:
        teacher = checkpoint.locate(settings.distill.teacher, allow_pickle=facts.recipe.allow_pickle)
        options["teacher_digest"], locations["teacher"] = checkpoint.digest(teacher), str(teacher)
    if settings.code is not None:
        file = Path(settings.code.rpartition(":")[0])
        if not file.is_file():
            raise RecipeError("there is no such Python file", where="code", got=settings.code, expected="file.py:function")
        options["code_digest"] = file_digest(file)
    return options, locations


def _qat_steps(facts: _Facts, rows: dict[str, str]) -> list[Step]:
    """Training with the values rounded that any target's plan rounds, and the graph of what came of it."""
    recipe = facts.recipe
    if recipe.qat is None:
        return []
    options, locations = _training_of(facts, recipe.qat)
    options["qat"] = recipe.qat.model_dump()
    capabilities = {name: plugins.load("targets", name).CAPABILITIES for name in recipe.targets}
    options["methods"] = {name: _on_this_cpu(recipe.quantize, one, facts.here) for name, one in capabilities.items()}
    inputs = {**rows, "calibrate": "calibrate", **facts.trained}
    captured = {"head": facts.head, "model_digest": facts.model_digest, "allow_pickle": False}
    return [
        Step("qat", "qat", inputs, options, locations, recipe.training),
        Step("capture/trained", "capture", {"finetune": "qat"}, captured, {"model": facts.model}),
    ]


def _model_steps(facts: _Facts, how: str) -> list[Step]:
    """Capture, preparation, observation, calibration; then a quantized model for every target."""
    recipe = facts.recipe
    method = plugins.load("methods", recipe.quantize.name)
    targets = [plugins.load("targets", name).CAPABILITIES for name in recipe.targets]
    kinds = method.observed_kinds(options_of(recipe.quantize, "methods"), targets)
    captured = {"head": facts.head, "model_digest": facts.model_digest, "allow_pickle": recipe.allow_pickle}
    ranged = {
        "calibrator": recipe.calibrate.model_dump(),
        "model_digest": facts.model_digest,
        "source": how,
        "allow_leakage": recipe.data.allow_leakage,
    }
    rows = {"capture": "capture", "data": "data"}
    steps = [Step("capture", "capture", facts.trained, captured, {"model": facts.model})]
    if recipe.transforms:
        prepared = {"prepare": [one.model_dump() for one in recipe.transforms], **facts.task}
        steps.append(Step("prepare", "prepare", rows, prepared))
    rows = {**rows, "float": "prepare" if recipe.transforms else "capture"}
    steps += [
        Step("observe", "observe", rows, {"kinds": list(kinds), **facts.task}),
        Step("calibrate", "calibrate", {"observe": "observe"}, ranged),
        *_qat_steps(facts, rows),
    ]
    for target in recipe.targets:
        steps += _target_steps(facts, target, {**rows, "float": facts.float_step})
    return steps


def _target_steps(facts: _Facts, target: str, rows: dict[str, str]) -> list[Step]:
    """A plan and its model for one target, searched for where the recipe has a criterion."""
    recipe = facts.recipe
    capabilities = plugins.load("targets", target).CAPABILITIES
    given = {"method": _on_this_cpu(recipe.quantize, capabilities, facts.here), "target": target, **facts.task}
    given["refine"] = [one.model_dump() for one in recipe.corrections]
    given["strict"] = recipe.strict
    quantize = f"quantize/{target}"
    steps = [Step(quantize, "quantize", {**rows, "calibrate": facts.ranges_step}, given)]
    if recipe.sensitivity or recipe.accuracy is not None:
        inputs = {**rows, "quantize": quantize, "observe": "observe"}
        steps.append(Step(f"sensitivity/{target}", "sensitivity", inputs, facts.task))
    if recipe.accuracy is not None:
        inputs = {**rows, "quantize": quantize, "sensitivity": f"sensitivity/{target}"}
        wanted = {"accuracy": recipe.accuracy.model_dump(), "target": target, "machine": facts.machine, **facts.task}
        steps.append(Step(f"search/{target}", "search", inputs, wanted))
    written = {"target": target, "fast_norms": facts.here.cores <= capabilities.fast_norms, **facts.shape(target)}
    steps.append(Step(f"export/{target}", "export", {"quantize": facts.chosen(target)}, written))
    return steps


def _on_this_cpu(choice: Choice, capabilities: Capabilities, here: environment.Environment) -> dict[str, Any]:
    """The method's options with `reduce_range: auto` decided: it depends on the CPU, and so must the key."""
    options = options_of(choice, "methods")
    if options.reduce_range == "auto":
        options = options.model_copy(update={"reduce_range": saturates(capabilities, here.features)})
    return {"name": choice.name, "options": options.model_dump(mode="json")}


def _measure_steps(facts: _Facts) -> list[Step]:
    """Evaluation of every candidate, and one benchmark of all."""
    if not facts.recipe.measure:
        return []
    # Figures belong to a machine and its runtimes; on another one they are measured again.
    common = {**facts.task, "machine": facts.machine, "allow_pickle": facts.recipe.allow_pickle}
    place, steps = {"model": facts.model}, []
    for name in facts.candidates:
        inputs = {"capture": "capture", "data": "data", **facts.trained}
        if name in facts.recipe.targets:
            inputs[f"export/{name}"] = f"export/{name}"
        steps.append(Step(f"evaluate/{name}", "evaluate", inputs, {**common, "candidate": name}, place))
    inputs = {"capture": "capture", "data": "data", **facts.trained}
    inputs |= {f"export/{t}": f"export/{t}" for t in facts.recipe.targets}
    measured = [target for target in facts.recipe.targets if target in facts.candidates]
    for target in measured if facts.recipe.qat is not None else ():
        seen = {"capture": "capture", "data": "data", "qat": "qat", "quantize": facts.chosen(target)}
        steps.append(Step(f"simulate/{target}", "simulate", {**seen, "evaluate": f"evaluate/{target}"}, dict(facts.task)))
    options = {**common, "benchmark": facts.benchmark.model_dump(), "candidates": facts.candidates}
    return [*steps, Step("benchmark", "benchmark", inputs, options, place)]


def _result_steps(facts: _Facts) -> list[Step]:
    """The report of all, and a package for every target."""
    targets = facts.recipe.targets
    inputs = {"capture": "capture", "data": "data", "calibrate": facts.ranges_step}
    inputs |= {f"quantize/{t}": facts.chosen(t) for t in targets}
    inputs |= {step.name: step.name for step in _measure_steps(facts)}
    if facts.recipe.transforms:
        inputs["prepare"] = "prepare"
    for target in targets:
        if facts.recipe.sensitivity or facts.recipe.accuracy is not None:
            inputs[f"sensitivity/{target}"] = f"sensitivity/{target}"
    gathered = {
        **facts.task,
        "recipe": facts.recipe.model_dump(mode="json", by_alias=True),
        "candidates": facts.candidates if facts.recipe.measure else [],
        "targets": list(targets),
        "model_digest": facts.model_digest,
        "absent": facts.absent,
    }
    steps = [Step("report", "report", inputs, gathered)]
    for target in targets:
        inputs = {"capture": "capture", "calibrate": facts.ranges_step, "export": f"export/{target}", "report": "report"}
        steps.append(Step(f"package/{target}", "package", inputs, {"target": target}))
    return steps


def _trains(recipe: Recipe) -> bool:
    return recipe.finetune is not None or recipe.qat is not None


def _labels(recipe: Recipe, source: Path, places: sources.Places) -> tuple[str, ...]:
    """Class names: as the model's config states them, or for a model that gets a new head, as the training rows have them."""
    folder = checkpoint.side_folder(source)
    blank = build(recipe.task.name, recipe.task.options, ())
    if recipe.finetune is None or (source.is_dir() and checkpoint.has_head(source, blank.head)):
        return _stated_labels(folder)
    if blank.labels or places.train is None:
        return blank.labels
    settings = recipe.data
    place = {"hub": places.hub, "config": settings.config, "revision": settings.revision, "columns": settings.columns}
    where, rows = sources.read(places.train, **place)  # type: ignore[arg-type]
    return blank.labels_in(rows, where=where)


def _stated_labels(folder: Path) -> tuple[str, ...]:
    if not (folder / "config.json").is_file():
        return ()
    names = checkpoint.read_config(folder).get("id2label") or {}
    return tuple(str(names[k]) for k in sorted(names, key=int))


def _baselines(recipe: Recipe) -> list[str]:
    """What the recipe asks for, and the float model of every target's own runtime, without which nothing can be compared."""
    needed = {candidates.float_baseline(t) for t in recipe.targets} | {"ort-f32"}
    return [b for b in candidates.BASELINES if b in needed or b in recipe.baselines]
