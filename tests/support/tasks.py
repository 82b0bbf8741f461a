"""Tasks with their options, for a model that states something or nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from octobert import tasks
from octobert.config.recipe import Choice
from octobert.core.results import ModelMetadata


def build(
    name: str, options: Mapping[str, Any] | None = None, metadata: ModelMetadata = tasks.NOTHING
) -> Any:
    """Return a task as a recipe names it."""
    choice = Choice(name=name, options=dict(options or {}))
    return tasks.PLUGINS.make(choice).build(metadata)
