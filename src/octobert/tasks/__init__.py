"""Tasks: one file each, which texts go into a model, what is expected of them, and how outputs are scored."""

from __future__ import annotations

from typing import Any, Protocol, cast

from octobert.core import plugins
from octobert.core.frozen import FrozenModel
from octobert.tasks._task import Task


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

    def build(self, options: Any, labels: tuple[str, ...] = ()) -> Task:
        """The task for a model with these class names.

        Args:
            options: an instance of this module's `Options`.
            labels: the model's class names, in the order of its logits; empty where its head has none.

        Raises:
            DataError: labels that do not fit the task.
        """
        ...


def names() -> tuple[str, ...]:
    """The names of all tasks, sorted."""
    return plugins.names("tasks")


def load(name: str, *, where: str | None = None) -> TaskPlugin:
    """The task plugin of that name; `build` of it makes the task.

    Args:
        name: such as `text-classification`.
        where: the recipe key or option that named it, for the error.

    Raises:
        RecipeError: there is no task of that name.
    """
    return cast(TaskPlugin, plugins.load("tasks", name, where=where))
