"""What can be refused before anything runs: targets that cannot run here, settings that do not fit the model, task or data."""

from __future__ import annotations

import importlib.util

from octobert import targets
from octobert.config.choosing import Accuracy
from octobert.config.recipe import Recipe
from octobert.config.training import Finetune, Qat, TrainingSettings
from octobert.core import environment
from octobert.core.capability import Capabilities
from octobert.core.errors import ModelError, RecipeError, TargetError, did_you_mean
from octobert.core.heads import head_of
from octobert.core.onnx_files import ports_of, read_onnx
from octobert.core.session import SessionEntries
from octobert.data import sources
from octobert.data.tokenization import check_length
from octobert.models import checkpoint, heads, weights
from octobert.models.pooling import pooler_of
from octobert.models.sentence_transformers import modular_head
from octobert.models.source import ModelSource
from octobert.pipeline.run import Run, TargetRun
from octobert.quantization.methods.static import WHERE, Static
from octobert.quantization.observer import check_provider
from octobert.report import vendor
from octobert.targets import runtimes
from octobert.tasks import Task, need_search
from octobert.tasks.graph import GraphOptions


def check(run: Run, task: Task) -> None:
    """Refuse what can be known to be wrong about the model, the targets and the training.

    Args:
        task: the run's, with the metrics of the recipe.

    Raises:
        OctobertError: a target that is not installed, a model that is not supported, settings that do not fit; or a library of
            the report's page that is missing.
    """
    vendor.scripts()
    recipe, model, places = run.recipe, run.model, run.places
    if not task.reads_texts:
        _check_graph(run)
    for each in run.targets:
        capabilities, probe = each.target.capabilities, each.target.probe()
        if not probe.available and (
            recipe.accuracy is not None or not capabilities.written_anywhere
        ):
            raise TargetError(
                f"the target {each.name} cannot run here",
                where="targets",
                got=probe.missing,
                fix=probe.install or "choose another target (octobert targets)",
            )
        _check_opset(capabilities, recipe.opset)
        if recipe.measure and probe.available:
            _check_float_parts(each, recipe.quantize.name)
        if recipe.format == "qoperator" and not capabilities.rewrites.integer_products:
            takers = [
                other for other, its in targets.each() if its.capabilities.rewrites.integer_products
            ]
            raise RecipeError(
                f"the target {each.name} takes quantized products as Q/DQ only",
                where="format",
                got="qoperator",
                expected=f"targets {', '.join(takers)}",
                fix="set format: qdq",
            )
        if probe.available:
            _check_entries(capabilities, each.session)
    check_provider(recipe.calibration_provider)
    if recipe.tune and importlib.util.find_spec("optuna") is None:
        raise RecipeError(
            "tuning needs the package optuna", where="tune", fix=environment.install("tune")
        )
    head, folder = head_of(task.head), model.tokenizer_folder
    made = head if head.pooled else modular_head(folder, head) if model.is_checkpoint else None
    if made is not None:
        pooler_of(folder, made, allow_pickle=recipe.allow_pickle)
    if model.is_checkpoint:
        # Also refuses model types that are not supported: they have no family.
        heads.check_class(model, task.head)
        weights.weight_files(model.path, allow_pickle=recipe.allow_pickle)
        if recipe.finetune is None:
            heads.check_head(model, task.head)
    for name in ("finetune", "qat"):
        settings = getattr(recipe, name)
        if settings is not None:
            _check_training(name, settings, model, task)
    if recipe.qat is not None:
        _check_trained_types(recipe)
    if recipe.accuracy is not None:
        _check_criterion(recipe, recipe.accuracy, task, places)
    if places.corpus is not None:
        need_search(task)
    check_length(task.max_length, model.longest_input)
    most = task.max_length or model.longest_input
    if recipe.shape is not None and not most <= recipe.shape.sequence <= model.longest_input:
        raise RecipeError(
            "the shape does not fit the rows of the task",
            where="shape.sequence",
            got=str(recipe.shape.sequence),
            expected=f"{most}, which is the task's max_length, to {model.longest_input}, the longest that the model takes",
            fix="make it longer, or set the task's max_length to it",
        )


def _check_graph(run: Run) -> None:
    """Refuse what a graph of any kind does not have: a checkpoint, training, searches by a metric, fixed shapes of tokens."""
    recipe, model, options = run.recipe, run.model, run.spec.options
    assert isinstance(options, GraphOptions)
    if model.is_checkpoint:
        raise ModelError(
            "the task graph takes an ONNX file",
            where=str(model.path),
            got="a checkpoint",
            fix="export it, or choose the task that it was trained for",
        )
    signature = ports_of(read_onnx(model.path))
    outputs = [port.name for port in signature.outputs]
    for name in options.scores:
        if name not in outputs:
            raise RecipeError(
                f'the graph has no output "{name}"',
                where="task.graph.scores",
                expected=", ".join(outputs),
                fix=did_you_mean(name, outputs),
            )
    tables = [each.target.capabilities for each in run.targets]
    fixed = [table.name for table in tables if table.shapes == "fixed"]
    if fixed and not options.axes:
        ports = signature.inputs
        if free := [port for port in ports if port.shape is None or -1 in port.shape]:
            raise ModelError(
                f"the target {fixed[0]} takes files of one shape, and an input has free axes",
                where=str(model.path),
                got=str(free[0]),
                fix="fix them: task: {graph: {axes: {NAME: SIZE}}}, or export the graph with them",
            )
    fused = [table.name for table in tables if not table.qdq]
    if fused:
        raise RecipeError(
            f"the target {fused[0]} takes fused operators of whole encoders only",
            where="targets",
            got="the task graph",
            fix="choose another target",
        )
    keys = ("finetune", "qat", "accuracy", "opset", "shape", "search", "choose", "tune")
    for key in keys:
        if getattr(recipe, key, None):
            raise RecipeError(
                f"the task graph has no {key}",
                where=key,
                got=str(getattr(recipe, key))[:60],
                fix="leave it out",
            )


def absent_targets(recipe: Recipe) -> dict[str, str]:
    """Targets of a recipe whose models are written, but can be neither measured nor used on this machine → what is missing."""
    probes = {name: targets.load(name).probe() for name in recipe.targets}
    return {
        name: "; ".join(filter(None, (probe.missing, probe.install)))
        for name, probe in probes.items()
        if not probe.available
    }


def _check_opset(capabilities: Capabilities, opset: int | None) -> None:
    """Refuse an opset that a target does not take."""
    low, high = capabilities.onnx.opset
    if opset is not None and not low <= opset <= high:
        raise RecipeError(
            f"the target {capabilities.name} does not take this opset",
            where="opset",
            got=str(opset),
            expected=f"{low} to {high}",
            fix=f"set opset: {min(high, max(low, opset))}",
        )


def _check_float_parts(each: TargetRun, method: str) -> None:
    """Refuse a type of float operators that would change nothing: the file stays float32, and this machine computes in that."""
    capabilities, parts = each.target.capabilities, each.float_parts
    if (
        parts in capabilities.float_parts.in_files
        or parts not in capabilities.float_parts.by_options
    ):
        return
    problem = runtimes.float_problems(capabilities)[parts]
    if problem is not None:
        raise RecipeError(
            f"float operators cannot run in {parts} on this machine",
            where=f"quantize.{method}.float_parts",
            got=problem,
            fix="set float_parts: float32, or measure: false to write the model for another machine",
        )


def _check_entries(capabilities: Capabilities, entries: SessionEntries) -> None:
    """Refuse what a target's runtime does not take."""
    try:
        runtimes.load(capabilities.runtime).check_entries(entries, capabilities.device)
    except RecipeError as error:
        error.where = f"session.{capabilities.name}{str(error.where).removeprefix('session')}"
        raise


def _check_trained_types(recipe: Recipe) -> None:
    """Refuse types of values that training does not round to."""
    method = Static.model_validate(recipe.quantize.options)
    if method.activations == "float8e4m3":
        raise RecipeError(
            "training rounds to integers only",
            where=f"{WHERE}.activations",
            got="float8e4m3",
            fix="use an integer type, or no qat",
        )
    if method.weights_symmetric is False:
        raise RecipeError(
            "training rounds weights symmetrically only",
            where=f"{WHERE}.weights_symmetric",
            got="false",
            fix="remove it, or use no qat",
        )


def _check_training(name: str, settings: TrainingSettings, model: ModelSource, task: Task) -> None:
    """Refuse what cannot be trained."""
    if not model.is_checkpoint:
        raise RecipeError(
            "only a checkpoint can be trained",
            where="model",
            got=str(model.path),
            fix="give the PyTorch checkpoint",
        )
    if isinstance(settings, Qat) and settings.trained is not None:
        return
    if modular_head(model.tokenizer_folder, head_of(task.head)):
        raise RecipeError(
            "a cross-encoder whose scores modules make cannot be trained here",
            where=name,
            fix="train it with sentence-transformers, and leave this key out",
        )
    untrainable = head_of(task.head).taught
    if untrainable and (settings.distill is None or settings.distill.share < 1):
        raise RecipeError(
            f"{untrainable} can be trained by a teacher only",
            where=name,
            fix=f"{name}: {{distill: {{share: 1}}}}, or train them with a library for that first",
        )
    if not train_installed():
        raise RecipeError("training needs accelerate", where=name, fix=environment.install("train"))
    if settings.precision == "float16" and settings.code is None:
        _check_half(name)
    if isinstance(settings, Finetune) and settings.layers is not None:
        checkpoint.kept_layers(model, settings.layers)
        if settings.distill is not None and settings.distill.teacher is None:
            # The model teaches what is left of it.
            heads.check_head(model, task.head)


def _check_half(name: str) -> None:
    """Refuse float16 without a GPU: transformers' Trainer would compute in float32 there and say nothing."""
    import torch

    if not torch.cuda.is_available():
        raise RecipeError(
            "training in float16 needs a GPU",
            where=f"{name}.precision",
            got="a CPU only",
            fix="use bfloat16, or leave precision out",
        )


def train_installed() -> bool:
    """Whether transformers' Trainer has what it needs."""
    return importlib.util.find_spec("accelerate") is not None


def _check_criterion(
    recipe: Recipe, criterion: Accuracy, task: Task, places: sources.Places
) -> None:
    """Refuse a criterion of accuracy without a metric, or one that would be searched for on the evaluation rows."""
    metric = criterion.metric or task.primary
    if metric is None:
        raise RecipeError(
            "the task has no metric on this data",
            where="accuracy",
            fix="use data with gold labels"
            if task.metrics
            else "leave it out: the task compares 8 bits with float only",
        )
    if metric not in task.metrics:
        raise RecipeError(
            f'the task has no metric "{metric}"',
            where="accuracy.metric",
            fix=did_you_mean(metric, task.metrics),
        )
    if metric in task.costs:
        raise RecipeError(
            f"a lower {metric.replace('_', '-')} is better, and a criterion limits how far a metric drops",
            where="accuracy.metric",
            got=metric,
            fix=f"take {task.primary}",
        )
    if places.tune == places.evaluate and not places.alone:
        raise RecipeError(
            "the rows to search on are the evaluation rows",
            where="data.tune.from",
            got=recipe.data.tune.from_,
            fix="name another split or file",
        )
