"""Tasks: one file each, which texts go into a model, what is expected of them, and how outputs are scored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from octobert.core import plugins
from octobert.core.errors import DataError, ModelError, RecipeError
from octobert.core.frozen import FrozenModel, first_problem
from octobert.core.results import Stated, TaskFacts
from octobert.tasks._measured import Computed, Measures, measured, measures_of, unmeasured, unpacked
from octobert.tasks._task import NOTHING, Diverges, Fidelity, Metric, Outputs, Task

__all__ = [
    "NOTHING",
    "Computed",
    "Diverges",
    "Fidelity",
    "Measures",
    "Metric",
    "Outputs",
    "Task",
    "TaskPlugin",
    "build",
    "files_of",
    "load",
    "measured",
    "measures_of",
    "names",
    "rebuild",
    "unmeasured",
    "unpacked",
]


class TaskPlugin(Protocol):
    """What a task's module has."""

    @property
    def DESCRIPTION(self) -> str:
        """One line for people."""
        ...

    @property
    def FILES(self) -> tuple[str, ...]:
        """Words in the names of the files that are meant, where a folder holds several versions of the task's data set."""
        ...

    @property
    def Options(self) -> type[FrozenModel]:
        """The options, with defaults."""
        ...

    def build(self, options: Any, stated: Stated = NOTHING) -> Task:
        """The task for a model.

        Args:
            options: an instance of this module's `Options`.
            stated: what the model's files state.

        Raises:
            DataError: a model that does not fit the task.
        """
        ...


_PLUGINS = plugins.Family[TaskPlugin]("tasks")
names, load = _PLUGINS.names, _PLUGINS.load


def build(name: str, options: Mapping[str, Any], stated: Stated = NOTHING) -> Task:
    """A task with its options, for a model.

    Args:
        name: of the plugin, such as `text-classification`.
        options: by name, as a recipe has them.
        stated: what the model's files state.

    Raises:
        RecipeError: there is no such task.
        DataError: a model that does not fit the task.
    """
    plugin = load(name)
    return plugin.build(plugin.Options.model_validate(options), stated)


def rebuild(facts: TaskFacts, *, where: str | None = None) -> Task:
    """The task that a report or a package describes.

    Args:
        where: the file that describes it, for the error.

    Raises:
        ModelError: there is no such task, or it has other options or labels.
    """
    try:
        return build(facts.name, facts.options, facts)
    except (ValueError, RecipeError, DataError) as error:
        got = first_problem(error) if isinstance(error, ValueError) else str(error)
        what, fix = f"the task {facts.name} cannot be made", "install the octobert that the package was made with"
        raise ModelError(what, where=where, got=got, fix=fix) from error


def files_of(name: str) -> tuple[str, ...]:
    """Words in the names of a task's files, to choose between several files for the same split."""
    return load(name).FILES
