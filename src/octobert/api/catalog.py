"""What this installation offers: targets, tasks, placements, the recipe schema; and what this machine has."""

from __future__ import annotations

import functools
import importlib.util
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from octobert.core.capability import Capabilities, Probe
    from octobert.core.environment import Environment
    from octobert.core.plan import Placement
    from octobert.tasks import TaskOptions

# For the import of a runtime.
_SECONDS = 60
_DEADLY = (
    "importing {} ends Python at once: a known cause is a /proc/cpuinfo or /sys that is absent or of another machine, as in "
    "sandboxes and emulated systems"
)


def list_targets() -> dict[str, tuple[Capabilities, Probe]]:
    """Return every target: what it accepts, and whether it can run on this machine."""
    from octobert import targets
    from octobert.core.capability import Probe
    from octobert.targets import runtimes

    found = {}
    for name, module in sorted(targets.each()):
        table = module.capabilities
        deadly = [p for p in runtimes.load(table.runtime).packages if _ends_python(p)]
        found[name] = (
            table,
            Probe(available=False, missing=_DEADLY.format(deadly[0])) if deadly else module.probe(),
        )
    return found


@functools.cache
def _ends_python(package: str) -> bool:
    """Return whether importing a runtime ends the process. A child tries it, because no exception says so."""
    from octobert.core import processes

    if package in sys.modules or importlib.util.find_spec(package) is None:
        return False
    code = f"try:\n import {package}\nfinally:\n print({package!r})"
    output = processes.output_of((sys.executable, "-c", code), seconds=_SECONDS)
    return output is not None and package not in output.splitlines()


def list_tasks() -> dict[str, TaskOptions]:
    """Return every task: its description and its options."""
    from octobert import tasks

    return dict(sorted(tasks.each()))


def list_placements(name: str | None = None) -> dict[str, Placement]:
    """Return every placement: which values it quantizes, and why it leaves others in float.

    Args:
        name: List only this one.

    Raises:
        RecipeError: There is no placement of that name.
    """
    from octobert.quantization import placements

    return {name: placements.load(name)} if name else dict(sorted(placements.each()))


def recipe_schema() -> dict[str, Any]:
    """Return the JSON Schema of recipe files, with the names and options of the installed plugins."""
    from octobert.config import schema

    return schema.recipe_schema()


def doctor() -> tuple[Environment, list[str]]:
    """Return this machine with the installed packages, and sentences on what they mean for 8-bit models."""
    from octobert.core import environment

    here = environment.current()
    return here, environment.findings(here)
