"""A recipe becomes a run: names become the values that they stand for, and what is left open is decided.

`Run` looks up plugins as they are asked for. `--dry-run` tells what is decided.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from octobert import targets, tasks
from octobert.config.measuring import Benchmark
from octobert.config.recipe import Recipe
from octobert.config.rows import AUTO
from octobert.core import environment, user_code
from octobert.core.errors import DataError
from octobert.core.results import ModelMetadata
from octobert.core.user_code import UserCode
from octobert.data import readers, sources
from octobert.data.sampling import Row
from octobert.evaluation import candidates
from octobert.evaluation.latency import check_lengths, fit_lengths
from octobert.models import heads, source
from octobert.models.sentence_transformers import check_template
from octobert.models.source import ModelSource, read_metadata
from octobert.pipeline import preflight, user_model
from octobert.pipeline.run import Run
from octobert.pipeline.task import TaskSpec
from octobert.targets import Target
from octobert.tasks import (
    Table,
    Task,
    TaskOptions,
    check_columns,
    measured,
    metric_specs,
)
from octobert.tasks.embedding import Pairs, text_alone

# `quick: true`: on so many rows the interval of an accuracy is some seven points to either side; so many rounds are enough for
# a median; the seconds are four turns, the fewest that give an interval.
QUICK_ROWS, QUICK_ROUNDS, QUICK_SECONDS = 128, 12, 4.0


def resolve(recipe: Recipe, *, tune: bool | None = None) -> Run:
    """Look up what a recipe names, and decide what it leaves open.

    Args:
        tune: rows to search on are needed; None where the recipe says so.

    Raises:
        OctobertError: the model or the data cannot be found, a target is not installed, or settings do not fit.
    """
    named = [targets.load(name) for name in recipe.targets]
    here = [target for target in named if target.probe().available]
    recipe = quick_recipe(recipe)
    options = tasks.PLUGINS.make(recipe.task)
    model = _model(recipe, options)
    trains = recipe.finetune is not None or (recipe.qat is not None and recipe.qat.trained is None)
    places = sources.places(
        recipe.data,
        evaluate=recipe.measure,
        tune=recipe.accuracy is not None if tune is None else tune,
        train=trains,
        prefer=options.files,
    )
    recipe, places = _with_texts_alone(recipe, options, places)
    options = tasks.PLUGINS.make(recipe.task)
    metadata = _model_metadata(recipe, options, model, places)
    task = options.build(metadata)
    if recipe.data.corpus == AUTO and not task.searches:
        places = replace(places, corpus=None)
    longest = _longest(recipe, model, here)
    timed = fit_lengths(recipe.benchmark, longest)
    if recipe.speed or recipe.choose or recipe.search:
        timed = timed.replaced(within=0.0)
    if not task.reads_texts:
        # Rows run alone, and nothing but rows fits.
        timed = timed.replaced(batch=(1,), sequence=("data",))
    measures = metric_specs(recipe.metric, recipe.postprocess, task)
    missing = _missing(recipe, task, model, here)
    missing |= {target.name: target.probe().missing for target in named}
    run = Run(
        recipe=recipe,
        model=model,
        places=places,
        spec=TaskSpec(options=options, stated=metadata),
        head=task.head,
        max_length=task.max_length or model.longest_input,
        benchmark=timed,
        candidates=tuple(name for name, why in missing.items() if why is None),
        absent={name: why for name, why in missing.items() if why is not None},
        here=environment.current(),
        preprocess=_preprocess(recipe),
        measures=measures,
    )
    preflight.check(run, measured(task, measures))
    if recipe.measure:
        check_lengths(timed, longest)
    return run


def _missing(
    recipe: Recipe, task: Task, model: ModelSource, here: Sequence[Target]
) -> dict[str, str | None]:
    """Return the float baselines of a run → why they are not measured, or None.

    Args:
        here: targets that can run on this machine.
    """
    measured, asked = [target.name for target in here], recipe.baselines
    # Runtimes that nobody asks for may not take what else a graph computes.
    every = candidates.baselines_of(measured, asked if task.reads_texts else asked or ())
    some = every
    if recipe.quick and asked is None:
        forms = {form for target in measured for form in candidates.float_forms(target)}
        some = candidates.baselines_of(measured, tuple(forms))
    found = {each.name: each.why_not(is_checkpoint=model.is_checkpoint) for each in some}
    left_out = sorted({each.name for each in every} - set(found))
    return found | dict.fromkeys(left_out, "left out by quick: true")


def _longest(recipe: Recipe, model: ModelSource, here: Sequence[Target]) -> int:
    """Tokens of the longest row that all models take: those of one shape take no longer one."""
    shapes = {target.capabilities.shapes for target in here}
    if recipe.shape is None or not shapes & {"fixed", "either"}:
        return model.longest_input
    return min(model.longest_input, recipe.shape.sequence)


def _model(recipe: Recipe, options: TaskOptions) -> ModelSource:
    """The model that a recipe names, or that a function of the user makes."""
    name: str | Path = recipe.model
    if user_code.names_code(recipe.model):
        head = options.build().head
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


def _with_texts_alone(
    recipe: Recipe, options: TaskOptions, places: sources.Places
) -> tuple[Recipe, sources.Places]:
    """The recipe with the only text column of the rows, where the task embeds texts and nobody names columns."""
    chosen = recipe.task
    if not isinstance(options.build(), Pairs) or chosen.options.get("text"):
        return recipe, places
    column = text_alone(Table(_rows(recipe, places, places.evaluate or places.calibrate)[1], ""))
    if column is None:
        return recipe, places
    named = chosen.replaced(options={**chosen.options, "text": [column]})
    how = f"{places.how}; texts alone, in the column {column}: judged by their closeness to float"
    return recipe.replaced(task=named), replace(places, how=how)


def _model_metadata(
    recipe: Recipe, options: TaskOptions, model: ModelSource, places: sources.Places
) -> ModelMetadata:
    """What the model states; for a model that gets a new head, class names as the training rows have them."""
    blank, metadata = options.build(), read_metadata(model)
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


def quick_recipe(recipe: Recipe) -> Recipe:
    """A recipe with the settings that `quick: true` stands for; without it, the recipe itself."""
    if not recipe.quick:
        return recipe
    evaluated = recipe.data.evaluate
    rows = evaluated.replaced(samples=min(evaluated.samples or QUICK_ROWS, QUICK_ROWS))
    return recipe.replaced(
        data=recipe.data.replaced(evaluate=rows),
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
