"""Plugins are files: `load("targets", "openvino-cpu")` imports `octobert/targets/openvino_cpu.py`.

There is no registry to keep. A file whose name starts with an underscore is shared code, not a plugin. Importing a plugin
must not import a runtime (onnxruntime, openvino, torch, transformers): a test holds every plugin to that.
"""

from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType

from octobert.errors import RecipeError, did_you_mean

FAMILIES = ("calibrators", "encoders", "methods", "placements", "preparers", "refiners", "targets", "tasks")


def names(family: str) -> tuple[str, ...]:
    """The plugins of a family, as users write them (`openvino-cpu`), sorted."""
    package = importlib.import_module(f"octobert.{family}")
    found = (module.name for module in pkgutil.iter_modules(package.__path__))
    return tuple(sorted(name.replace("_", "-") for name in found if not name.startswith("_")))


def load(family: str, name: str, *, where: str | None = None) -> ModuleType:
    """The module of one plugin.

    Raises:
        RecipeError: no file of that name; the message suggests the nearest.
    """
    if name not in names(family):
        singular = family.removesuffix("s")
        raise RecipeError(f'there is no {singular} "{name}"', where=where, fix=did_you_mean(name, names(family)))
    return importlib.import_module(f"octobert.{family}.{name.replace('-', '_')}")
