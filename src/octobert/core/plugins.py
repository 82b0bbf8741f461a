"""Plugins are files: `load("targets", "openvino-cpu")` imports `octobert/targets/openvino_cpu.py`.

There is no registry. The package of each family holds the family's `Protocol` and a typed `load`. A file whose name starts
with an underscore is shared code, not a plugin. Other Python packages add plugins through entry points of the group
`octobert.<family>` (`octobert.targets`, `octobert.calibrators`, …); the entry point's name is the plugin's, its value a module.

Importing a plugin must not import a runtime (onnxruntime, openvino, torch, transformers): a test checks every plugin.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from importlib.metadata import EntryPoint, entry_points
from types import ModuleType

from octobert.core.errors import RecipeError, did_you_mean

# Family → the package that holds its plugins.
PACKAGES = {
    "calibrators": "octobert.quantization.calibrators",
    "corrections": "octobert.quantization.corrections",
    "families": "octobert.models.families",
    "methods": "octobert.quantization.methods",
    "placements": "octobert.quantization.placements",
    "profilers": "octobert.inspection.profilers",
    "runtimes": "octobert.targets.runtimes",
    "targets": "octobert.targets",
    "tasks": "octobert.tasks",
    "transforms": "octobert.quantization.transforms",
}
FAMILIES = tuple(PACKAGES)
SINGULAR = {"families": "encoder family"}


def names(family: str) -> tuple[str, ...]:
    """The plugins of a family, as users write them (`openvino-cpu`), sorted."""
    return tuple(sorted({*_own(family), *_installed(family)}))


def load(family: str, name: str, *, where: str | None = None) -> ModuleType:
    """The module of one plugin.

    Args:
        family: a key of `PACKAGES`.
        name: as users write it, `openvino-cpu`.
        where: the recipe key or option that named it, for the error.

    Raises:
        RecipeError: no plugin of that name; the message suggests the nearest.
    """
    if name in _own(family):
        return importlib.import_module(f"{PACKAGES[family]}.{name.replace('-', '_')}")
    if name in _installed(family):
        return importlib.import_module(_installed(family)[name].value)
    singular = SINGULAR.get(family, family.removesuffix("s"))
    raise RecipeError(f'there is no {singular} "{name}"', where=where, fix=did_you_mean(name, names(family)))


@functools.cache
def _own(family: str) -> frozenset[str]:
    package = importlib.import_module(PACKAGES[family])
    modules = (module for module in pkgutil.iter_modules(package.__path__) if not module.ispkg)
    return frozenset(module.name.replace("_", "-") for module in modules if not module.name.startswith("_"))


@functools.cache
def _installed(family: str) -> dict[str, EntryPoint]:
    """Plugins of other packages; octobert's own come first where names are the same."""
    return {point.name: point for point in entry_points(group=f"octobert.{family}") if point.name not in _own(family)}
