"""Tasks: one file each, which texts go into a model, what is expected of them, and how outputs are scored."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from octobert.core import plugins
from octobert.core.errors import ColumnError, DataError, ModelError, RecipeError
from octobert.core.frozen import first_problem
from octobert.core.model_config import CONFIG, read_object, write_json
from octobert.core.results import TaskFacts
from octobert.data.sampling import Row
from octobert.tasks._measured import (
    ExternalMetric,
    MetricSpecs,
    measured,
    metric_specs,
    unmeasured,
    unpacked,
)
from octobert.tasks._retrieval import Retrieval
from octobert.tasks._rows import Table
from octobert.tasks._task import (
    NOTHING,
    Extremes,
    Fidelity,
    Metric,
    Outputs,
    Pair,
    Result,
    Task,
    TaskOptions,
    UserAnswer,
)
from octobert.tasks._vectors import Embedding, VectorForm

__all__ = [
    "NOTHING",
    "PLUGINS",
    "Embedding",
    "ExternalMetric",
    "Extremes",
    "Fidelity",
    "Metric",
    "MetricSpecs",
    "Outputs",
    "Pair",
    "Result",
    "Retrieval",
    "Table",
    "Task",
    "TaskField",
    "TaskOptions",
    "UserAnswer",
    "VectorForm",
    "check_columns",
    "each",
    "load",
    "measured",
    "metric_specs",
    "names",
    "need_search",
    "rebuild",
    "state",
    "unmeasured",
    "unpacked",
]


PLUGINS = plugins.Plugins("tasks", TaskOptions)
TaskField = Annotated[TaskOptions, PLUGINS]
names, load, each = PLUGINS.names, PLUGINS.load, PLUGINS.each


def rebuild(facts: TaskFacts, *, where: str | None = None) -> Task:
    """The task that a report or a package describes.

    Args:
        where: the file that describes it, for the error.

    Raises:
        ModelError: there is no such task, or it has other options or labels.
    """
    try:
        return PLUGINS.make(facts).build(facts)
    except (ValueError, RecipeError, DataError) as error:
        raise ModelError(
            f"the task {facts.name} cannot be made",
            where=where,
            got=first_problem(error) if isinstance(error, ValueError) else str(error),
            fix="install the octobert that the package was made with",
        ) from error


def state(facts: TaskFacts, folder: Path) -> None:
    """Write into `config.json` of a folder what other programs read of a task there: how answers are made of logits.

    Pipelines of transformers make a sigmoid of one logit and a softmax of several, unless a problem is stated.
    sentence-transformers reads the activation of one logit from release 4 on, and takes the sigmoid where none is stated.
    """
    config = read_object(folder / CONFIG)
    if facts.labels:
        config["id2label"] = dict(enumerate(facts.labels))
        config["label2id"] = {label: index for index, label in enumerate(facts.labels)}
    config["problem_type"] = "multi_label_classification" if facts.multi_label else None
    if activation := getattr(rebuild(facts), "activation", ""):
        settings = config.get("sentence_transformers")
        module = "linear" if activation == "Identity" else "activation"
        config["sentence_transformers"] = {
            **(settings if isinstance(settings, dict) else {}),
            "activation_fn": f"torch.nn.modules.{module}.{activation}",
        }
        config["problem_type"] = None if activation == "Sigmoid" else "regression"
    write_json(folder / CONFIG, config)


def check_columns(
    name: str, task: Task, rows: Sequence[Row], *, where: str, gold: bool = True
) -> None:
    """Check that rows have the columns that a task reads.

    Args:
        name: of the task's plugin.
        gold: what is expected is read too.

    Raises:
        ColumnError: some are missing. One message has all of them, and says how they are named.
    """
    errors: list[ColumnError] = []
    for read in (task.inputs, task.gold) if gold else (task.inputs,):
        try:
            read(rows[:1], where=where)
        except ColumnError as error:
            errors += [error] if error.what not in (earlier.what for earlier in errors) else []
        except DataError:
            # Of this row; reading all rows says which one.
            continue
    if not errors:
        return
    texts, golds = load(name).column_options()
    misspelled = len(errors) == 1 and str(errors[0].fix).startswith("did you mean")
    if misspelled or not texts or isinstance(task, Retrieval):
        raise errors[0]
    pair = texts == ("text",) and 2 in (
        getattr(task, "texts", 0),
        len(getattr(task, "columns", ())),
    )
    expected = [error.expected for error in errors if error.expected]
    if isinstance(task, Embedding):
        expected = [
            "two text columns and a score; texts alone, named by one --text-column; or queries and documents "
            f"(task: {{{name}: {{query: COLUMN, document: COLUMN}}}})"
        ]
    flags = ["--text-column COLUMN"] * (2 if pair else len(texts)) + ["--label-column COLUMN"] * (
        gold and len(golds)
    )
    written = [f"{option}: {'[COLUMN, COLUMN]' if pair else 'COLUMN'}" for option in texts]
    written += [f"{option}: COLUMN" for option in golds if gold]
    raise ColumnError(
        ", and ".join(error.what for error in errors),
        where=where,
        got=errors[0].got,
        expected=", and ".join(expected) or None,
        fix=f"name yours: {' '.join(flags)} (in a recipe, task: {{{name}: {{{', '.join(written)}}}}})",
    )


def need_search(task: Task) -> None:
    """Refuse a corpus for a task that searches none.

    Raises:
        RecipeError: it searches none.
    """
    if not task.searches:
        raise RecipeError(
            "the task searches no corpus",
            where="data.corpus",
            fix="leave it out, or give the task embedding with its options query and document",
        )
