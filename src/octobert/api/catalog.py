"""What this installation offers: targets, tasks, placements, the recipe schema; and what this machine has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from octobert.core.capability import Capabilities, Probe
    from octobert.core.environment import Environment
    from octobert.core.plan import Placement
    from octobert.tasks import TaskPlugin


def list_targets() -> dict[str, tuple[Capabilities, Probe]]:
    """Every target: what it accepts, and whether it can run on this machine."""
    from octobert import targets

    return {name: (module.CAPABILITIES, module.probe()) for name, module in sorted(targets.each())}


def list_tasks() -> dict[str, TaskPlugin]:
    """Every task: its description and its options."""
    from octobert import tasks

    return dict(sorted(tasks.each()))


def list_placements(name: str | None = None) -> dict[str, Placement]:
    """Every placement: which values it quantizes, and why it leaves others in float.

    Args:
        name: List only this one.

    Raises:
        RecipeError: There is no placement of that name.
    """
    from octobert.quantization import placements

    return {name: placements.load(name)} if name else dict(sorted(placements.each()))


def recipe_schema() -> dict[str, Any]:
    """The JSON Schema of recipe files, with the names and options of the installed plugins."""
    from octobert.config import schema

    return schema.recipe_schema()


def doctor() -> tuple[Environment, list[str]]:
    """(this machine and the installed packages, what they mean for 8-bit models in sentences)."""
    from octobert.core import environment

    here = environment.current()
    return here, environment.findings(here)
