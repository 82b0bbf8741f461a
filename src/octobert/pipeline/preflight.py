"""What can be refused before anything runs: targets that are not here, settings that do not fit model, task or data."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from octobert.config.recipe import Benchmark, Recipe, options_of
from octobert.config.training import Finetune
from octobert.core import plugins
from octobert.core.errors import RecipeError, TargetError, did_you_mean
from octobert.data import sources
from octobert.data.tokenization import check_length, longest
from octobert.evaluation.latency import check_lengths
from octobert.models import checkpoint
from octobert.tasks._task import Task


def check(recipe: Recipe, source: Path, task: Task, benchmark: Benchmark, places: sources.Places) -> None:
    """Refuse what can be known to be wrong about the model, the targets and the training.

    Raises:
        OctobertError: a target that is not installed, a model that is not supported, settings that do not fit.
    """
    folder = checkpoint.side_folder(source)
    for name in recipe.targets:
        module = plugins.load("targets", name)
        probe = module.probe()
        if not probe.available and (recipe.accuracy is not None or not module.CAPABILITIES.written_anywhere):
            fix = probe.install or "choose another target (octobert targets)"
            raise TargetError(f"the target {name} cannot run here", where="targets", got=probe.missing, fix=fix)
    if source.is_dir():
        checkpoint.encoder_of(checkpoint.read_config(source), where=str(source / "config.json"))
        checkpoint.weight_files(source, allow_pickle=recipe.allow_pickle)
        if recipe.finetune is None:
            checkpoint.check_head(source, task.head)
    for name in ("finetune", "qat"):
        settings = getattr(recipe, name)
        if settings is not None:
            _check_training(name, settings, source, task)
    if recipe.qat is not None and options_of(recipe.quantize, "methods").activations == "float8e4m3":
        fix = "use an integer type, or no qat"
        raise RecipeError("training rounds to integers only", where="quantize.static.activations", got="float8e4m3", fix=fix)
    if recipe.accuracy is not None:
        _check_criterion(recipe, task, places)
    check_length(task.max_length, folder)
    most = task.max_length or longest(folder)
    if recipe.shape is not None and not most <= recipe.shape.sequence <= longest(folder):
        raise RecipeError(
            "the shape does not fit the rows of the task",
            where="shape.sequence",
            got=str(recipe.shape.sequence),
            expected=f"{most}, which is the task's max_length, to {longest(folder)}, the longest that the model takes",
            fix="make it longer, or set the task's max_length to it",
        )
    if recipe.measure:
        check_lengths(benchmark, longest(folder))


def _check_training(name: str, settings: Finetune, source: Path, task: Task) -> None:
    """Refuse what cannot be trained."""
    if not source.is_dir():
        raise RecipeError("only a checkpoint can be trained", where="model", got=str(source), fix="give the PyTorch checkpoint")
    if task.head == "embedding" and (settings.distill is None or settings.distill.share < 1):
        fix = f"{name}: {{distill: {{share: 1}}}}, or train them with a library for that first"
        raise RecipeError("embeddings are trained after a teacher only", where=name, fix=fix)
    if not train_installed():
        raise RecipeError("training needs accelerate", where=name, fix="pip install 'octobert[train]'")


def train_installed() -> bool:
    """Whether transformers' Trainer has what it needs."""
    return importlib.util.find_spec("accelerate") is not None


def _check_criterion(recipe: Recipe, task: Task, places: sources.Places) -> None:
    """Refuse a criterion that cannot be held against anything, or only against the rows that are scored in the end."""
    assert recipe.accuracy is not None
    metric = recipe.accuracy.metric or task.primary
    if metric is None:
        raise RecipeError("the task has no metric on this data", where="accuracy", fix="use data with gold labels")
    if metric not in task.metrics:
        raise RecipeError(f'the task has no metric "{metric}"', where="accuracy.metric", fix=did_you_mean(metric, task.metrics))
    if places.tune == places.evaluate and not places.alone:
        raise RecipeError(
            "a plan cannot be searched for on the rows that it is scored on in the end",
            where="data.tune.from",
            got=recipe.data.tune.from_,
            fix="name another split or file",
        )
