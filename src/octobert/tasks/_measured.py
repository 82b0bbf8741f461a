"""Metrics that a recipe asks for: built in, of the library `evaluate`, or a function of the user; and `postprocess`.

`measured` wraps a task so that its items hold what these metrics read. Nothing of the user is imported before a metric is used,
and a package is predicted with by the task alone.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, cast

import numpy as np

from octobert.config.measuring import EvaluateMetric
from octobert.core import environment, user_code
from octobert.core.errors import DataError, OctobertError, RecipeError, did_you_mean
from octobert.core.files import canonical_digest, file_digest
from octobert.core.frozen import FrozenModel
from octobert.core.origin import listed
from octobert.core.user_code import UserCode
from octobert.tasks._metrics import ALIASES, AUROC, auroc
from octobert.tasks._task import Extremes, Metric, Predictions, Result, Task

# Of packed items.
_ITEMS, _PREDICTIONS, _REFERENCES, _SCORES = "items", "predictions", "references", "scores"


class HubMetric(FrozenModel):
    """A metric of the library `evaluate`.

    Args:
        name: its name, or the folder of its module.
        arguments: of its `compute`, besides predictions and references.
        content: digest of the module; empty where the library finds it by name.
    """

    name: str
    arguments: dict[str, Any]
    content: str


class MetricSpecs(FrozenModel):
    """The metrics of a recipe, and its postprocessing.

    Args:
        metrics: names of built-in metrics, metrics of `evaluate`, and functions of the user; none for those of the task.
        postprocess: the user's function that makes predictions of outputs.
    """

    metrics: tuple[UserCode | HubMetric | str, ...] = ()
    postprocess: UserCode | None = None


def metric_specs(
    metrics: Sequence[str | EvaluateMetric], postprocess: str | None, task: Task
) -> MetricSpecs:
    """Return the metrics of a recipe, checked against a task.

    Raises:
        RecipeError: a metric that the task does not have, a file that does not exist, or `evaluate` is missing.
    """
    choices: list[UserCode | HubMetric | str] = []
    for metric in metrics:
        if isinstance(metric, EvaluateMetric):
            choices.append(_hub_metric(metric))
        elif user_code.names_code(metric):
            choices.append(user_code.at(metric, "metric", where="metric"))
        else:
            name = ALIASES.get(metric, metric)
            if name not in task.offered:
                meant = did_you_mean(metric, [*task.offered, *ALIASES])
                raise RecipeError(
                    f'the task has no metric "{metric}"',
                    where="metric",
                    fix=f"{meant} (or file.py:function, or {{evaluate: NAME}})",
                )
            choices.append(name)
    titles = list(map(_title, choices))
    if len(set(titles)) < len(titles):
        raise RecipeError(
            "two metrics have the same name",
            where="metric",
            got=", ".join(titles),
            fix="name each once",
        )
    code = None
    if postprocess is not None:
        code = user_code.at(postprocess, "postprocess", where="postprocess")
    if not task.judges and (code or any(not isinstance(metric, str) for metric in choices)):
        raise RecipeError(
            "the task's answers cannot be given to functions",
            where="metric" if code is None else "postprocess",
            fix="use the task's own metrics",
        )
    return MetricSpecs(metrics=tuple(choices), postprocess=code)


def _hub_metric(metric: EvaluateMetric) -> HubMetric:
    if importlib.util.find_spec("evaluate") is None:
        raise RecipeError(
            "the library evaluate is not installed",
            where="metric",
            fix=environment.install("metrics"),
        )
    path = Path(metric.name)
    files = [path] if path.is_file() else list(listed(path, "**/*.py").values())
    content = canonical_digest([[file.name, file_digest(file)] for file in files]) if files else ""
    return HubMetric(name=metric.name, arguments=metric.arguments, content=content)


def _title(metric: UserCode | HubMetric | str) -> str:
    """The name of a metric in results."""
    if isinstance(metric, str):
        return metric
    return metric.function if isinstance(metric, UserCode) else Path(metric.name).stem


@dataclass(frozen=True)
class ExternalMetric:
    """A metric that code of others computes from predictions and references. It may have several values.

    Args:
        title: its name in results.
        compute: function of packed items.
        single: one value is named by the title alone.
    """

    title: str
    compute: Callable[[np.ndarray], Any]
    single: bool = False

    def __call__(self, packed: np.ndarray) -> float:
        """The first value."""
        return next(iter(self.values(packed).values()))

    def values(self, packed: np.ndarray) -> dict[str, float]:
        """Name → value: `title` of a number, `title.key` of each number in a dict.

        Raises:
            DataError: it is neither.
        """
        result = self.compute(packed)
        if isinstance(result, Mapping):
            numbers = {str(key): _number(value) for key, value in result.items()}
            values = {key: value for key, value in numbers.items() if value is not None}
            if self.single and len(values) == 1:
                return {self.title: next(iter(values.values()))}
            if values and (self.single or len(values) == len(numbers)):
                return {f"{self.title}.{key}": value for key, value in values.items()}
        elif (value := _number(result)) is not None:
            return {self.title: value}
        raise DataError(
            "the metric does not return numbers",
            where=self.title,
            got=f"a {type(result).__name__}: {str(result)[:100]}",
            expected="a number, or a dict of numbers",
        )


def _argument(array: np.ndarray) -> Any:
    """Return the argument of a user's function: an array of numbers, or a list of other things."""
    return list(array) if array.dtype == object else array.copy()


def _number(value: Any) -> float | None:
    """A number of any library; None for anything else."""
    if isinstance(value, (str, bytes)) or value is None:
        return None
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        return None


@cache
def _module(metric_name: str) -> Any:
    """A metric of `evaluate`.

    Raises:
        RecipeError: it cannot be loaded.
    """
    import evaluate

    try:
        return evaluate.load(metric_name, keep_in_memory=True)
    except Exception as error:  # the library, the hub's client and the module itself raise anything
        message = " ".join(str(error).split())[:200]
        raise RecipeError(
            "evaluate cannot load the metric",
            where="metric",
            got=f"{metric_name}: {type(error).__name__}: {message}",
            fix="check its name, install what it imports, and without a network give the folder of its module",
        ) from error


def _compute(metric: HubMetric, packed: np.ndarray) -> Any:
    """Call a metric of `evaluate` with the arguments that its features name.

    Raises:
        RecipeError: it failed.
    """
    module = _module(metric.name)
    features = module.features[0] if isinstance(module.features, list) else module.features
    predictions, references = _argument(packed[_PREDICTIONS]), _argument(packed[_REFERENCES])
    name = "prediction_scores" if "prediction_scores" in features else "predictions"
    if name == "prediction_scores" and _SCORES in (packed.dtype.names or ()):
        scores = packed[_SCORES]
        predictions = (
            scores[:, 1]
            if scores.ndim == 2 and scores.shape[1] == 2 and references.ndim == 1
            else scores
        )
    elif (
        isinstance(features.get("predictions"), Mapping)
        and "prediction_text" in features["predictions"]
    ):
        predictions, references = _of_squad(predictions, references, features["predictions"])
    try:
        return module.compute(references=references, **{name: predictions}, **metric.arguments)
    except OctobertError:
        raise
    except Exception as error:  # a module of somebody else
        message = " ".join(str(error).split())[:200]
        raise RecipeError(
            "the metric of evaluate failed",
            where=f"metric: {metric.name}",
            got=f"{type(error).__name__}: {message}",
        ) from error


def _of_squad(
    predictions: Sequence[str], references: Sequence[Sequence[str]], features: Mapping[str, Any]
) -> tuple[Any, Any]:
    """Answers as the metrics squad and squad_v2 read them."""
    more = {"no_answer_probability": 0.0} if "no_answer_probability" in features else {}
    answers = [
        {"id": str(i), "prediction_text": text, **more} for i, text in enumerate(predictions)
    ]
    golds = [
        {"id": str(i), "answers": {"text": list(texts), "answer_start": [0] * len(texts)}}
        for i, texts in enumerate(references)
    ]
    return answers, golds


@dataclass(frozen=True)
class Measured:
    """A task with metrics that read more than its own items. Everything else is the task's own.

    Args:
        task: the task itself.
        metrics: functions of what `items` returns.
        primary: the first of them.
        postprocess: the user's function that makes predictions of outputs.
    """

    task: Task
    metrics: Mapping[str, Metric]
    primary: str | None
    postprocess: UserCode | None

    def __getattr__(self, name: str) -> Any:
        # A copy in the making has no task yet.
        return getattr(object.__getattribute__(self, "task"), name)

    def items(self, result: Result) -> np.ndarray:
        """[items] with what the metrics read in named columns, so that one resampling serves all of them."""
        judged, columns = self.task.judged(result), {}
        if self.postprocess is None:
            columns[_ITEMS] = self.task.items(result)
        else:
            judged = _postprocessed(self.postprocess, result, judged)
            if _like(judged.predictions, judged.references):
                columns[_ITEMS] = np.column_stack([judged.predictions, judged.references])
        columns |= {_PREDICTIONS: judged.predictions, _REFERENCES: judged.references}
        if judged.scores is not None:
            columns[_SCORES] = judged.scores
        return _packed(columns)

    def extremes(self, items: np.ndarray) -> Extremes:
        """The extremes of the task; for metrics that read texts or probabilities, a row has its own answer or another one's."""
        wrong, right = np.roll(items, len(items) // 2), items
        wrong[_REFERENCES] = items[_REFERENCES]
        if _ITEMS in (items.dtype.names or ()) and items.dtype[_PREDICTIONS].base.kind in "biuf":
            ends = self.task.extremes(items[_ITEMS])
            wrong, right = (
                np.resize(rows, len(end)) for rows, end in zip((wrong, right), ends, strict=True)
            )
            for rows, end in zip((wrong, right), ends, strict=True):
                rows[_ITEMS] = end
                rows[_PREDICTIONS], rows[_REFERENCES] = (
                    half.reshape(rows[_PREDICTIONS].shape) for half in np.hsplit(end, 2)
                )
        elif isinstance(items[_PREDICTIONS][0], list):
            # Tags of one sentence do not fit another.
            wrong = items
        return wrong, right

    def chance(self, items: np.ndarray) -> Mapping[str, float]:
        """The chance values of the task's metrics, and one half of AUROC."""
        chances = self.task.chance(items[_ITEMS]) if _ITEMS in (items.dtype.names or ()) else {}
        return {**chances, AUROC: 0.5}


def unmeasured(task: Task) -> Task:
    """The task itself, without the metrics of a recipe."""
    return task.task if isinstance(task, Measured) else task


def unpacked(items: np.ndarray) -> np.ndarray:
    """The items of the task itself."""
    return items[_ITEMS] if items.dtype.names else items


def _like(predictions: np.ndarray, references: np.ndarray) -> bool:
    """Return whether predictions are numbers as the task has them: scores, or classes by their numbers."""
    if (
        predictions.dtype.kind not in "biuf"
        or references.dtype.kind not in "biuf"
        or predictions.shape != references.shape
    ):
        return False
    return references.dtype.kind == "f" or bool(
        np.all((predictions >= 0) & (predictions == np.round(predictions)))
    )


def _packed(columns: Mapping[str, np.ndarray]) -> np.ndarray:
    """Columns as one array whose entries can be drawn together."""
    kinds = [(name, column.dtype, column.shape[1:]) for name, column in columns.items()]
    packed = np.empty(len(columns[_PREDICTIONS]), dtype=kinds)
    for name, column in columns.items():
        packed[name] = column
    return packed


def _postprocessed(code: UserCode, result: Result, judged: Predictions) -> Predictions:
    """Predictions that the user's function makes of outputs; numbers with a fraction are also scores.

    Raises:
        DataError: they are not one for each row.
    """
    output = user_code.load(code)({name: array.copy() for name, array in result.outputs.items()})
    predictions = np.asarray(output) if output is not None else np.empty(())
    count = len(judged.references)
    if output is None or predictions.ndim == 0 or len(predictions) != count:
        raise DataError(
            "postprocess does not give one prediction for each row",
            where=code.text,
            got="nothing" if output is None else f"shape {predictions.shape}",
            expected=f"{count} predictions, one for each row",
        )
    kind = predictions.dtype.kind
    return Predictions(
        predictions if kind in "biuf" else predictions.astype(object),
        judged.references,
        predictions.astype(np.float64) if kind == "f" else None,
    )


def measured(task: Task, measures: MetricSpecs) -> Task:
    """A task with the metrics of a recipe; the task itself where the recipe asks for none."""
    if measures == MetricSpecs():
        return task
    asked = measures.metrics or tuple(task.metrics)
    built_in = {
        name: metric
        for name in asked
        if isinstance(name, str) and (metric := task.offered[name]) is not None
    }
    task = replace(task, metrics=built_in)
    if measures.postprocess is None and len(built_in) == len(asked):
        return replace(task, primary=next(iter(built_in)))
    metrics: dict[str, Metric] = {}
    for name in asked:
        title = _title(name)
        if isinstance(name, UserCode):
            metrics[title] = ExternalMetric(title, partial(_call, name))
        elif isinstance(name, HubMetric):
            metrics[title] = ExternalMetric(title, partial(_compute, name), single=True)
        else:
            metrics[title] = _of_packed(name, built_in.get(name))
    primary = next(iter(metrics)) if measures.metrics else task.primary
    return cast(Task, Measured(task, metrics, primary, measures.postprocess))


def _call(code: UserCode, packed: np.ndarray) -> Any:
    return _loaded(code)(_argument(packed[_PREDICTIONS]), _argument(packed[_REFERENCES]))


# A metric is called for every resample.
_loaded = cache(user_code.load)


def _of_packed(name: str, metric: Metric | None) -> Metric:
    """A built-in metric as a function of packed items.

    Returns:
        A function that raises DataError where predictions are not those of the task.
    """

    def value(packed: np.ndarray) -> float:
        columns, references = packed.dtype.names or (), packed[_REFERENCES]
        if metric is not None and _ITEMS in columns:
            return metric(packed[_ITEMS])
        # Each of several labels needs its own scores.
        if (
            metric is None
            and _SCORES in columns
            and references.shape[1:] in ((), packed[_SCORES].shape[1:])
        ):
            return auroc(packed[_SCORES], references)
        raise DataError(
            f"{name} cannot be computed from what postprocess gives",
            where="metric",
            expected="probabilities" if metric is None else "predictions as the task has them",
            fix="name a metric of your own, file.py:function",
        )

    return value
