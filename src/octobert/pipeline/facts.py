"""What is known of a run before anything runs: the model, the rows, the task, the machine, and what cannot run here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from octobert import targets, tasks
from octobert.config.measuring import Benchmark
from octobert.config.recipe import Choice, Recipe
from octobert.config.rows import AUTO
from octobert.core import environment, user_code
from octobert.core.capability import saturates
from octobert.core.errors import DataError
from octobert.core.files import canonical_digest
from octobert.core.heads import head_of
from octobert.core.plan import FloatType
from octobert.core.results import ModelMetadata
from octobert.core.session import SessionEntries, StaticShape
from octobert.core.user_code import UserCode
from octobert.data import readers, sources
from octobert.data.sampling import Row
from octobert.evaluation import candidates
from octobert.evaluation.latency import check_lengths, fit_lengths
from octobert.models import heads, source
from octobert.models.sentence_transformers import check_template
from octobert.models.source import ModelSource, read_metadata
from octobert.pipeline import preflight, user_model
from octobert.pipeline.contract import ScoredTask, TaskSpec
from octobert.quantization import methods
from octobert.quantization.methods import Method
from octobert.targets import runtimes
from octobert.tasks import (
    MetricSpecs,
    Table,
    check_columns,
    measured,
    metric_specs,
)
from octobert.tasks.embedding import Pairs, text_alone

# `quick: true`: on so many rows the interval of an accuracy is some seven points to either side; so many rounds are enough for
# a median; the seconds are four turns, the fewest that give an interval.
QUICK_ROWS, QUICK_ROUNDS, QUICK_SECONDS = 128, 12, 4.0


@dataclass(frozen=True)
class RunFacts:
    """What the steps of one recipe have in common.

    Args:
        model: the user's.
        absent: candidate → why it cannot run here.
        reads: the model, where its tokenizer has tokens that it has no embedding for.
        kinds: kinds of sites that are observed besides those that the method needs, so that several recipes share one pass.
    """

    recipe: Recipe
    model: ModelSource
    places: sources.Places
    spec: TaskSpec
    head: str
    max_length: int
    benchmark: Benchmark
    candidates: tuple[str, ...]
    absent: dict[str, str]
    here: environment.Environment
    preprocess: UserCode | None
    measures: MetricSpecs
    reads: ModelSource | None = None
    kinds: tuple[str, ...] = ()

    @property
    def scored(self) -> ScoredTask:
        """The task with the recipe's metrics."""
        return ScoredTask(**dict(self.spec), measures=self.measures)

    @property
    def supplement(self) -> bool:
        """Whether smoothing and ranges are calibrated on octobert's own texts, too."""
        return self.recipe.data.supplement and self.reads_texts

    @property
    def axes(self) -> dict[str, int]:
        """Axes of a graph of any kind that are fixed."""
        return {} if self.reads_texts else dict(self.recipe.task.options.get("axes", {}))

    @property
    def reads_texts(self) -> bool:
        """Whether the model reads texts; a graph of any kind reads feeds."""
        return head_of(self.head).reads_texts

    @property
    def integer_targets(self) -> tuple[str, ...]:
        """Targets that compute in integers alone: one graph is transformed for all."""
        names = self.recipe.targets
        return tuple(name for name in names if targets.load(name).capabilities.integer_only)

    @property
    def machine(self) -> str:
        """What figures of this machine and its runtimes are keyed by."""
        return canonical_digest(self.here.model_dump(mode="json"))

    def method(self, target: str) -> Choice:
        """The method with all decided that depends on the CPU, as the key must."""
        decided = self._method.decide(
            saturates=saturates(targets.load(target).capabilities, self.here.features),
            trained=self.recipe.qat is not None,
        )
        return Choice(name=self.recipe.quantize.name, options=decided.model_dump(mode="json"))

    def session(self, target: str) -> SessionEntries:
        """What the recipe sets for sessions of a target."""
        return self.recipe.session.get(target, SessionEntries())

    def entries(self, candidate: str) -> SessionEntries:
        """What sessions of a candidate are opened with: a target's model, or a float baseline, which keeps its precision."""
        baseline = candidates.float_baselines().get(candidate)
        if baseline is not None:
            return baseline.entries(self.recipe.session)
        return runtimes.entries_in(
            self.session(candidate),
            targets.load(candidate).capabilities,
            self.float_parts(candidate),
            per_token=self.recipe.quantize.options.get("bits") == 4,
        )

    @property
    def simulated(self) -> tuple[str, ...]:
        """Targets that cannot run here, whose plans are evaluated on the CPU. It has no kernels for bfloat16."""
        absent = [target for target in self.recipe.targets if target in self.absent]
        return tuple(target for target in absent if self.float_parts(target) != "bfloat16")

    def float_parts(self, target: str) -> FloatType:
        """The type of the operators of a target's model that are not quantized."""
        return self._method.float_type(targets.load(target).capabilities)

    @property
    def _method(self) -> Method:
        """The recipe's own."""
        return methods.PLUGINS.make(self.recipe.quantize)

    def shape(self, target: str) -> StaticShape | None:
        """The shape that a target's model is made for, and shorter ones, or the largest one; None where it is free."""
        capabilities = targets.load(target).capabilities
        if capabilities.shapes == "dynamic":
            return None
        if self.recipe.shape is not None and capabilities.shapes == "profiles":
            # One file takes all lengths up to the largest.
            return self.recipe.shape.of(self.recipe.shape.sequence)
        if self.recipe.shape is not None or capabilities.shapes == "either":
            return self.recipe.shape
        if capabilities.shapes == "fixed":
            # A graph of any kind has its own.
            shorter: Any = "auto" if self.reads_texts else ()
            return StaticShape(sequence=self.max_length, shorter=shorter)
        # A profile holds what is timed as well.
        lengths = (length for length in self.benchmark.sequence if length != "data")
        batch = max(self.benchmark.batch)
        return StaticShape(batch=batch, sequence=max(self.max_length, *lengths, 0))


def facts_of(recipe: Recipe, *, tune: bool) -> RunFacts:
    """What is known before anything runs.

    Raises:
        OctobertError: the model or the data cannot be found, a target is not installed, or a length is beyond the model.
    """
    available = [name for name in recipe.targets if targets.load(name).probe().available]
    full, recipe = recipe, quick_recipe(recipe, available)
    model = _model(recipe)
    trains = recipe.finetune is not None or (recipe.qat is not None and recipe.qat.trained is None)
    places = sources.places(
        recipe.data,
        evaluate=recipe.measure,
        tune=tune,
        train=trains,
        prefer=tasks.load(recipe.task.name).files,
    )
    recipe, places = _with_texts_alone(recipe, places)
    metadata = _model_metadata(recipe, model, places)
    task = tasks.PLUGINS.make(recipe.task).build(metadata)
    if recipe.data.corpus == AUTO and not task.searches:
        places = replace(places, corpus=None)
    longest = _longest(recipe, model, available)
    timed = fit_lengths(recipe.benchmark, longest)
    if not task.reads_texts:
        # Rows run alone, and nothing but rows fits.
        timed = timed.replaced(batch=(1,), sequence=("data",))
    measures = metric_specs(recipe.metric, recipe.postprocess, task)
    preflight.check(recipe, model, measured(task, measures), places)
    if recipe.measure:
        check_lengths(timed, longest)
    # Runtimes that nobody asks for may not take what else a graph computes.
    others, every = (
        each.baselines if task.reads_texts else each.baselines or () for each in (recipe, full)
    )
    baselines = candidates.baselines_of(available, others)
    absent = {
        baseline.name: baseline.why_not(is_checkpoint=model.is_checkpoint) for baseline in baselines
    }
    left_out = {baseline.name for baseline in candidates.baselines_of(available, every)} - set(
        absent
    )
    absent |= dict.fromkeys(sorted(left_out), "left out by quick: true")
    absent |= {name: targets.load(name).probe().missing for name in recipe.targets}
    return RunFacts(
        recipe=recipe,
        model=model,
        places=places,
        spec=TaskSpec(name=recipe.task.name, options=recipe.task.options, stated=metadata),
        head=task.head,
        max_length=task.max_length or model.longest_input,
        benchmark=timed,
        candidates=tuple(name for name, why in absent.items() if why is None),
        absent={name: why for name, why in absent.items() if why is not None},
        here=environment.current(),
        preprocess=_preprocess(recipe),
        measures=measures,
        reads=model
        if task.reads_texts and task.tokenizer(model.tokenizer_folder, model.config).unread
        else None,
    )


def _longest(recipe: Recipe, model: ModelSource, available: Sequence[str]) -> int:
    """Tokens of the longest row that all models take: those of one shape take no longer one."""
    shapes = {targets.load(name).capabilities.shapes for name in available}
    if recipe.shape is None or not shapes & {"fixed", "either"}:
        return model.longest_input
    return min(model.longest_input, recipe.shape.sequence)


def _model(recipe: Recipe) -> ModelSource:
    """The model that a recipe names, or that a function of the user makes."""
    name: str | Path = recipe.model
    if user_code.names_code(recipe.model):
        head = tasks.PLUGINS.make(recipe.task).build().head
        name = user_model.made(
            user_code.at(recipe.model, "model", where="model"), head, seed=recipe.seed
        )
    return source.resolve(
        name,
        revision=recipe.revision,
        allow_pickle=recipe.allow_pickle,
        family=recipe.family,
        tokenizer=recipe.tokenizer,
    )


def _preprocess(recipe: Recipe) -> UserCode | None:
    """The user's function that changes rows."""
    return (
        None
        if recipe.preprocess is None
        else user_code.at(recipe.preprocess, "preprocess", where="preprocess")
    )


def _rows(recipe: Recipe, places: sources.Places, place: str) -> tuple[str, list[Row]]:
    """The rows of a place, in words and as tasks read them."""
    if place in places.functions:
        where, rows = places.functions[place].read()
    else:
        settings = recipe.data
        where, rows = readers.read(
            place, hub=places.hub, revision=settings.revision, columns=settings.columns
        )
    code = _preprocess(recipe)
    return where, rows if code is None else sources.preprocessed(rows, code, where=where)


def _with_texts_alone(recipe: Recipe, places: sources.Places) -> tuple[Recipe, sources.Places]:
    """The recipe with the only text column of the rows, where the task embeds texts and nobody names columns."""
    chosen = recipe.task
    if not isinstance(tasks.PLUGINS.make(chosen).build(), Pairs) or chosen.options.get("text"):
        return recipe, places
    column = text_alone(Table(_rows(recipe, places, places.evaluate or places.calibrate)[1], ""))
    if column is None:
        return recipe, places
    named = chosen.replaced(options={**chosen.options, "text": [column]})
    how = f"{places.how}; texts alone, in the column {column}: judged by their closeness to float"
    return recipe.replaced(task=named), replace(places, how=how)


def _model_metadata(recipe: Recipe, model: ModelSource, places: sources.Places) -> ModelMetadata:
    """What the model states; for a model that gets a new head, class names as the training rows have them."""
    blank, metadata = tasks.PLUGINS.make(recipe.task).build(), read_metadata(model)
    # Rerankers, and retrieval before anything runs; of other embeddings the pooling finds it.
    if blank.together:
        check_template(model.tokenizer_folder)
    if recipe.finetune is None or (model.is_checkpoint and heads.has_head(model, blank.head)):
        return metadata
    new = metadata.replaced(labels=blank.labels, problem=None, activation=None)
    if blank.labels or places.train is None:
        return new
    where, rows = _rows(recipe, places, places.train)
    check_columns(recipe.task.name, blank, rows, where=where)
    labels = blank.labels_in(rows, where=where)
    written = {label.casefold(): label for label in labels}
    alike = [
        f"{label} and {written[label.casefold()]}"
        for label in labels
        if written[label.casefold()] != label
    ]
    if alike:
        raise DataError(
            "two labels differ only by case",
            where=where,
            got=", ".join(alike),
            fix="write them alike, or name all labels in the options of the task",
        )
    return new.replaced(labels=labels)


def quick_recipe(recipe: Recipe, measured: list[str]) -> Recipe:
    """A recipe with the settings that `quick: true` stands for; without it, the recipe itself.

    Args:
        recipe: of the run.
        measured: its targets that can run here.
    """
    if not recipe.quick:
        return recipe
    evaluated = recipe.data.evaluate
    rows = evaluated.replaced(samples=min(evaluated.samples or QUICK_ROWS, QUICK_ROWS))
    forms = dict.fromkeys(form for target in measured for form in candidates.float_forms(target))
    return recipe.replaced(
        data=recipe.data.replaced(evaluate=rows),
        baselines=tuple(forms) if recipe.baselines is None else recipe.baselines,
        benchmark=quick_benchmark(recipe.benchmark),
    )


def quick_benchmark(full: Benchmark) -> Benchmark:
    """A benchmark of one batch size in fewer rounds."""
    timed: dict[str, Any] = {
        "batch": (min(full.batch),),
        "repeats": min(full.repeats, QUICK_ROUNDS),
    }
    if full.seconds is not None or full.goal == "throughput":
        timed["seconds"] = min(full.seconds or QUICK_SECONDS, QUICK_SECONDS)
    return full.replaced(**timed)
